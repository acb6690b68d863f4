// Trains a model: train CONFIG [section.key=value]...
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "parallel/mesh.h"
#include "run/session.h"
#include "run/signals.h"

namespace {

using namespace quire;

void train(const std::string& config_path, const std::vector<std::string>& overrides) {
  const Config config = load_config(config_path, overrides);
  check_world_size(mesh_shape(config), 1);
  Session session(config);
  Trainer& trainer = session.trainer();
  StopSignals signals;

  while (!signals.stop_requested()) {
    const LoadedStep batch = session.next_batch();
    if (batch.empty()) break;
    trainer.begin_step();
    trainer.forward_backward(batch);             // every microbatch, through the pipeline's schedule
    const StepResult result = trainer.update();  // gradient norm, clipping, AdamW
    session.record(batch, result);               // metrics, evaluation, checkpoint
  }

  session.finish(signals.signal());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Trains a decoder on packed documents. The same command again resumes from the run folder."};
  std::string config;
  std::vector<std::string> overrides;
  app.add_option("config", config, "TOML file; every key is listed in docs/config.md")->required();
  app.add_option("overrides", overrides, "section.key=value, instead of what the file says");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "[train] %s; --help lists the options\n", error.what());
    return 1;
  }
  try {
    train(config, overrides);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
