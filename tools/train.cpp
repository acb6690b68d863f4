// Trains a model: train CONFIG [section.key=value]... [--ranks N]
#include <csignal>
#include <cstdio>

#include "parallel/mesh.h"
#include "run/launcher.h"
#include "run/rank_options.h"
#include "run/rank_process.h"
#include "run/session.h"
#include "run/signals.h"
#include "tools/command_line.h"

namespace {

using namespace quire;

void train(Communicator& world, LaunchBoard* board, const Config& config) {
  check_world_size(mesh_shape(config), world.size());
  Session session(config, disk(), {}, &world);
  Trainer& trainer = session.trainer();
  StopSignals signals;
  int stop = 0;

  while ((stop = session.agree_on_signal(signals.signal())) == 0) {
    const LoadedStep batch = session.next_batch();
    if (batch.empty()) break;
    if (board != nullptr) board->set_step(trainer.steps_done() + 1);
    trainer.begin_step();
    trainer.forward_backward(batch);  // every microbatch, through the pipeline's schedule
    trainer.submit();                 // gradient norm, clipping, AdamW
    session.record(batch);            // metrics, evaluation, checkpoint
  }

  session.finish(stop);
}

/// Checks here, before anything is started, what every rank would refuse.
int launch(const std::string& config_path, const std::vector<std::string>& overrides, int ranks) {
  const Config config = load_config(config_path, overrides);
  check_world_size(mesh_shape(config), ranks);
  check_devices(config, ranks);
  LaunchOptions options{.program = "train", .ranks = ranks, .arguments = {config_path}, .watchdog_seconds = config.distributed.watchdog_seconds};
  options.arguments.insert(options.arguments.end(), overrides.begin(), overrides.end());
  return launch_ranks(options);
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine app{"train", "Trains a decoder on packed documents. The same command again resumes from the run folder."};
  std::string config, launch_folder;
  std::vector<std::string> overrides;
  int ranks = 0;
  app.option("config", config, "TOML file; every key is listed in docs/config.md").required();
  app.option("overrides", overrides, "section.key=value, instead of what the file says");
  app.option("--ranks", ranks, "Start this many ranks on this machine (through mpirun); without it the program joins what mpirun or srun started")
      .within(1, 4096);
  app.option("--launched-from", launch_folder, "given by --ranks to the ranks that it starts").hidden();
  if (const auto ended = app.parse(argc, argv)) return *ended;
  try {
    if (ranks > 1) return launch(config, overrides, ranks);  // one is this process itself
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  RankProcessOptions options{.launch_folder = launch_folder};
  return run_rank("train", options, [&](Communicator& world, LaunchBoard* board) {
    const Config read = load_config(config, overrides);
    world.set_watchdog(read.distributed.watchdog_seconds);
    train(world, board, read);
  });
}
