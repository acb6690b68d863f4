// bench: measurements behind the project's numbers, each as ratios within one run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>

#include "bench/context.h"
#include "bench/kernels.h"
#include "bench/loader.h"
#include "bench/pipeline.h"
#include "bench/plans.h"
#include "bench/step.h"
#include "tools/output.h"

namespace {

using Run = std::function<void()>;

void print(bool json, const std::string& text, const std::string& object) { fmt::print("{}{}", json ? object : text, json ? "\n" : ""); }

const auto to_stderr = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };

CLI::App* add_command(CLI::App& app, const char* name, const char* what, bool& json) {
  CLI::App* command = app.add_subcommand(name, what);
  command->add_flag("--json", json, "print one JSON object instead");
  return command;
}

void add_lengths(CLI::App* command, std::string& folder) {
  command->add_option("--lengths", folder, "folder of the document lengths")->capture_default_str()->type_name("FOLDER");
}

/// The peers' folder: what is given, else build/peers where it is there.
struct PeerOptions {
  std::string folder = "build/peers";
  bool none = false;
  CLI::Option* given = nullptr;
  void add(CLI::App* command, std::string& script, double& patience) {
    given = command->add_option("--peers", folder, "folder of the peers' environments, made by tests/peers/setup; without it build/peers, where that is there")->type_name("FOLDER");
    command->add_flag("--no-peers", none, "measure Quire alone")->excludes(given);
    command->add_option("--peer-script", script, "what a peer's python runs")->capture_default_str()->type_name("FILE");
    command->add_option("--patience", patience, "seconds to wait for one answer of a peer")->capture_default_str();
  }
  std::string chosen() const {
    if (none) return "";
    if (given->count() > 0 || std::filesystem::is_directory(folder)) return folder;
    fmt::print(stderr, "no peers: there is no {} (tests/peers/setup makes it)\n", folder);
    return "";
  }
};

Run add_plans(CLI::App& app, bool& json) {
  static quire::bench::PlansOptions plans;
  CLI::App* command = add_command(app, "plans", "balance and traffic of context plans, beside their peers, on committed document lengths; prints Markdown (docs/context_plans.md)", json);
  command->add_option("--rows", plans.rows, "rows of each line of the table")->capture_default_str()->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command->add_option("--cp", plans.ranks, "numbers of ranks, divided by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 16));
  command->add_option("--tokens", plans.tokens, "lengths of rows, divided by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  add_lengths(command, plans.lengths);
  return [command, &json] {
    if (!*command) return;
    const quire::bench::PlansResult result = quire::bench::bench_plans(plans);
    print(json, result.markdown(), result.to_json());
  };
}

Run add_context(CLI::App& app, bool& json) {
  static quire::bench::ContextBenchOptions context;
  CLI::App* command = add_command(
      app, "context",
      "whole training steps of one packed row: one rank beside two that share it, every layout and exchange, one thread each.\n"
      "Progress goes to stderr. A measurement that the machine disturbed is made again, up to three times, and what stays disturbed is said. "
      "With the defaults it takes one to three minutes on a quiet machine, up to four times as long on a disturbed one",
      json);
  command->add_option("--tokens", context.tokens, "length of the row")->capture_default_str()->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  command->add_option("--rounds", context.rounds, "measurements of each, of which the median counts")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  command->add_option("--documents", context.corpus, "name of the document lengths in the folder")->capture_default_str();
  add_lengths(command, context.lengths);
  return [command, &json] {
    if (!*command) return;
    context.progress = to_stderr;
    const quire::bench::ContextBenchResult result = quire::bench::bench_context(context);
    print(json, result.table(), result.to_json());
  };
}

Run add_step(CLI::App& app, bool& json) {
  static quire::bench::StepBenchOptions step;
  static PeerOptions peers;
  CLI::App* command = add_command(app, "step",
                                  "whole training steps beside PyTorch's, in pairs; prints Markdown (docs/performance.md). Progress goes to stderr.\n"
                                  "Each peer first tries its variants; a step of shape b takes PyTorch about 15 s",
                                  json);
  command->add_option("--shapes", step.shapes, "a, b, c, divided by commas")->delimiter(',')->capture_default_str();
  command->add_option("--documents", step.documents, "packed, one, divided by commas")->delimiter(',')->capture_default_str();
  command->add_option("--dtype", step.dtypes, "f32, bf16, divided by commas; peers take part in the first")->delimiter(',')->capture_default_str();
  command->add_option("--pairs", step.pairs, "measurements of each side")->capture_default_str();
  command->add_option("--tries", step.tries, "times a measurement is made while the machine disturbs it")->capture_default_str();
  command->add_option("--threads", step.threads, "more than one: Quire with so many beside Quire with one, by wall time")->capture_default_str();
  command->add_option("--variant", step.variant, "of the peers, instead of the quickest of a trial: causal, dense, loop or flex, with +compile or without");
  command->add_flag("--dense", step.dense, "also shape c, packed, against a dense document mask (minutes)");
  command->add_flag("--profile", step.profile, "also print where the time of Quire's step goes");
  add_lengths(command, step.lengths);
  peers.add(command, step.peer_script, step.patience_seconds);
  return [command, &json] {
    if (!*command) return;
    if (step.threads > 1 && peers.given->count() == 0) peers.none = true;
    check(step);
    step.peers = peers.chosen();
    step.progress = to_stderr;
    const quire::bench::StepBenchResult result = quire::bench::bench_step(step);
    print(json, result.markdown(), result.to_json());
  };
}

Run add_kernels(CLI::App& app, bool& json) {
  static quire::bench::KernelsOptions kernels;
  static PeerOptions peers;
  CLI::App* command = add_command(app, "kernels",
                                  "products beside OpenBLAS and Eigen, attention beside PyTorch, operations bound by memory beside a copy; prints Markdown (docs/performance.md). "
                                  "Progress goes to stderr. Without peers it takes about two minutes",
                                  json);
  command->add_option("--parts", kernels.parts, "products, attention, memory, divided by commas")->delimiter(',')->capture_default_str();
  command->add_option("--dtype", kernels.dtypes, "of products: f32, bf16, divided by commas")->delimiter(',')->capture_default_str();
  command->add_option("--pairs", kernels.pairs, "measurements of each side")->capture_default_str();
  command->add_option("--tries", kernels.tries, "times a product's or attention's measurement is made while something else keeps this core busy")->capture_default_str();
  command->add_option("--draws", kernels.draws, "rows of drawn documents for attention")->capture_default_str();
  command->add_option("--openblas", kernels.openblas, "library to load instead of the first that is found; none for none")->type_name("FILE");
  add_lengths(command, kernels.lengths);
  peers.add(command, kernels.peer_script, kernels.patience_seconds);
  return [command, &json] {
    if (!*command) return;
    check(kernels);
    if (std::ranges::find(kernels.parts, "attention") != kernels.parts.end()) kernels.peers = peers.chosen();
    kernels.progress = to_stderr;
    const quire::bench::KernelsResult result = quire::bench::bench_kernels(kernels);
    print(json, result.markdown(), result.to_json());
  };
}

Run add_pipeline(CLI::App& app, bool& json) {
  static quire::bench::PipelineBenchOptions pipeline;
  CLI::App* command = add_command(app, "pipeline",
                                  "a real pipeline of two ranks (threads) under every schedule, beside the simulation fed with its own measured times; with --simulated instead every schedule\n"
                                  "on packed rows within one memory limit, as packed and arranged by cost, with speeds of this machine; prints Markdown (docs/performance.md)",
                                  json);
  command->add_flag("--simulated", pipeline.simulated, "simulate alone");
  command->add_option("--documents", pipeline.corpora, "names of document lengths to simulate, divided by commas")->delimiter(',')->capture_default_str();
  command->add_option("--rows", pipeline.rows_per_microbatch, "rows of a microbatch to simulate, divided by commas")->delimiter(',')->capture_default_str()->check(CLI::Range(int64_t{1}, int64_t{64}));
  command->add_option("--ranks", pipeline.ranks, "of the simulated pipeline")->capture_default_str()->check(CLI::Range(int64_t{1}, int64_t{32}));
  command->add_option("--microbatches", pipeline.microbatches, "of a simulated step")->capture_default_str()->check(CLI::Range(int64_t{1}, int64_t{4096}));
  command->add_option("--steps", pipeline.steps, "simulated of each")->capture_default_str()->check(CLI::Range(int64_t{1}, int64_t{1000}));
  command->add_option("--rounds", pipeline.rounds, "measurements of each schedule")->capture_default_str()->check(CLI::Range(int64_t{1}, int64_t{1000}));
  add_lengths(command, pipeline.lengths);
  return [command, &json] {
    if (!*command) return;
    pipeline.progress = to_stderr;
    const quire::bench::PipelineBenchResult result = quire::bench::bench_pipeline(pipeline);
    print(json, result.markdown(), result.to_json());
  };
}

Run add_loader(CLI::App& app, bool& json) {
  static quire::bench::LoaderBenchOptions loader;
  CLI::App* command = add_command(app, "loader", "prepare, and the loader with its packer, per core from the disk cache; prints Markdown (docs/performance.md)", json);
  command->add_option("--text", loader.text, "file or folder of text with lines of % between documents; without it Debian's fortunes, or made-up text")->type_name("PATH");
  command->add_option("--megabytes", loader.megabytes, "of text, which is repeated to this size")->capture_default_str();
  command->add_option("--tokens", loader.tokens, "length of a row")->capture_default_str();
  command->add_option("--rows", loader.rows, "rows of a step")->capture_default_str();
  command->add_option("--rounds", loader.rounds, "measurements of each")->capture_default_str();
  command->add_option("--scratch", loader.scratch, "folder for text and corpus; without it a temporary one")->type_name("FOLDER");
  return [command, &json] {
    if (!*command) return;
    loader.progress = to_stderr;
    const quire::bench::LoaderBenchResult result = quire::bench::bench_loader(loader);
    print(json, result.markdown(), result.to_json());
  };
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures what the project says of itself. Run it from the root of a checkout, on a quiet machine.");
  app.require_subcommand(1);
  bool json = false;
  const Run runs[] = {add_plans(app, json), add_context(app, json), add_step(app, json), add_kernels(app, json), add_loader(app, json), add_pipeline(app, json)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "[bench] {}; --help lists the options\n", error.what());
    return 1;
  }
  try {
    for (const Run& run : runs) run();
    finish_output("bench");
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
