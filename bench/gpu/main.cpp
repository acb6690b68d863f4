// One phase of tools/gpu_report: gpu_report PHASE --parts FOLDER ... The script docs/gpu_report.md describes runs it, one phase after the other, each with a limit.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>

#include "bench/gpu/phases.h"
#include "bench/gpu/wrappers.h"
#include "parallel/nccl.h"
#include "parallel/tcp.h"
#include "runtime/accelerator.h"
#include "runtime/error.h"

using namespace quire;
using namespace quire::gpu_report;

namespace {

constexpr const char* usage =
  "gpu_report PHASE [--parts FOLDER] [--shapes full|tiny]\n"
  "  device                     names the device\n"
  "  goldens --goldens FILE [--found FILE]   compares outputs of instructions with those of FILE\n"
  "  goldens --write FILE       writes this device's\n"
  "  tests | kernels | steps\n"
  "  nccl                       one of two processes, as RANK, WORLD_SIZE and QUIRE_MASTER_FILE say\n";

struct Options {
  std::string phase, parts, write;
  PhaseOptions phases;
};

Options parse(int count, char** arguments) {
  Options options;
  if (count < 2) fail<ConfigError>("gpu_report", "no phase is named; usage:\n{}", usage);
  options.phase = arguments[1];
  const std::map<std::string, std::function<void(const std::string&)>> known = {
    {"--parts", [&](const std::string& value) { options.parts = value; }},
    {"--write", [&](const std::string& value) { options.write = value; }},
    {"--goldens", [&](const std::string& value) { options.phases.goldens = value; }},
    {"--found", [&](const std::string& value) { options.phases.found = value; }},
    {"--shapes", [&](const std::string& value) {
       if (value != "full" && value != "tiny") fail<ConfigError>("gpu_report", "--shapes is '{}'; allowed: full, tiny", value);
       options.phases.tiny = value == "tiny";
     }},
  };
  for (int i = 2; i < count; i += 2) {
    const auto found = known.find(arguments[i]);
    if (found == known.end()) fail<ConfigError>("gpu_report", "unknown option '{}'; usage:\n{}", arguments[i], usage);
    if (i + 1 == count) fail<ConfigError>("gpu_report", "{} needs a value", arguments[i]);
    found->second(arguments[i + 1]);
  }
  return options;
}

struct Phase {
  const char* name;
  const char* title;
  void (*run)(Rank& rank, const PhaseOptions& options, PhaseReport& report);
};
constexpr Phase phases[] = {
  {"goldens", "Outputs of instructions", compare_goldens},
  {"tests", "Kernels against literal loops", run_checks},
  {"kernels", "Kernels, timed", measure_kernels},
  {"steps", "Steps of models", measure_steps},
};

Rank device_rank() { return Rank(RankOptions{.device = {DeviceKind::cuda, 0}}); }

/// The exit status: 1 where something is wrong.
int finish(PhaseReport& report) {
  report.complete();
  return report.failures() == 0 ? 0 : 1;
}

/// Whether NCCL takes two ranks on one device. Where it does not, its reason is the phase's finding, and nothing failed.
bool connected(Communicator& world, Rank& rank, PhaseReport& report) {
  try {
    report.note(fmt::format("NCCL {}, two processes on one device by NCCL_HOSTID, over sockets of this machine.", nccl_version()));
    connect_both_ways(world, rank);
    return true;
  } catch (const CommunicationError& error) {
    report.note(fmt::format("NCCL does not allow it here: {}", error.what()));
  } catch (const UnsupportedError& error) {
    report.note(fmt::format("Not possible here: {}", error.what()));
  }
  return false;
}

/// Rank 0 speaks for both.
int communicate(const Options& options) {
  prepare_cuda_connections();
  std::unique_ptr<Communicator> world = join_tcp({.watchdog_seconds = 40}, 20);
  if (world->size() != 2) fail<ConfigError>("gpu_report", "{} processes; needed: 2", world->size());
  PhaseReport report(world->rank() == 0 ? options.parts : "", "nccl", "NCCL between two processes on one device");
  try {
    world = with_device_memory(std::move(world));
    Rank rank(RankOptions{.device = {DeviceKind::cuda, 0}, .memory_limit = int64_t{1} << 30});
    if (connected(*world, rank, report)) {
      try_communication(*world, rank, options.phases, report);
      const std::vector<std::string> failures = world->gather_texts(fmt::format("{}", report.failures()), {.purpose = "the report"});
      if (world->rank() == 1 && report.failures() > 0) std::fprintf(stderr, "rank 1:\n%s\n", report.markdown().c_str());
      if (world->rank() == 0 && failures[1] != "0") report.failure(fmt::format("rank 1 has failures, too ({}): see the log", failures[1]));
      world.reset();
    }
  } catch (const std::exception& error) {
    report.failure(error.what());
    std::fprintf(stderr, "%s\n", error.what());
  }
  const int status = finish(report);
  std::fflush(nullptr);
  if (world != nullptr) std::_Exit(status);  // what is broken is not taken leave of
  return status;
}

int run(const Options& options) {
  if (options.phase == "device") {
    std::printf("%s\n", device_rank().accelerator()->description().c_str());
    return 0;
  }
  if (options.phase == "goldens" && !options.write.empty()) {
    Rank rank = device_rank();
    Goldens goldens = run_wrappers(rank, {});
    for (Golden& output : goldens.outputs) output = condensed(output);
    goldens.made_on = cuda_availability().emulated ? "the emulated device of tests/emulation" : rank.accelerator()->description();
    const std::string text = goldens_text(goldens);
    std::FILE* const file = std::fopen(options.write.c_str(), "wb");
    if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file) != text.size() || std::fclose(file) != 0) fail<FileError>("goldens", "{} can not be written", options.write);
    return 0;
  }
  if (options.phase == "nccl") return communicate(options);
  for (const Phase& phase : phases) {
    if (options.phase != phase.name) continue;
    PhaseReport report(options.parts, phase.name, phase.title);
    try {
      Rank rank = device_rank();
      report.note(fmt::format("Device: {}.", rank.accelerator()->description()));
      phase.run(rank, options.phases, report);
    } catch (const std::exception& error) {
      report.failure(error.what());
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
    return finish(report);
  }
  fail<ConfigError>("gpu_report", "unknown phase '{}'; usage:\n{}", options.phase, usage);
}

}  // namespace

int main(int count, char** arguments) {
  int status = 1;
  try {
    status = run(parse(count, arguments));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  std::fflush(nullptr);
  if (status != 0) std::_Exit(status);  // a device that failed may not let go: nothing is waited for
  return 0;
}
