// bench: measurements behind the project's numbers, each as ratios within one run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "bench/context.h"
#include "bench/plans.h"
#include "tools/output.h"

int main(int argc, char** argv) {
  CLI::App app("Measures what the project says of itself. Run it from the root of a checkout, on a quiet machine.");
  app.require_subcommand(1);
  bool json = false;

  quire::bench::PlansOptions plans;
  CLI::App* plans_command = app.add_subcommand(
      "plans", "balance and traffic of context plans, beside their peers, on committed document lengths; prints Markdown (docs/context_plans.md)");
  plans_command->add_option("--rows", plans.rows, "rows of each line of the table")->capture_default_str()->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  plans_command->add_option("--cp", plans.ranks, "numbers of ranks, divided by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 16));
  plans_command->add_option("--tokens", plans.tokens, "lengths of rows, divided by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  plans_command->add_option("--lengths", plans.lengths, "folder of the document lengths")->capture_default_str()->type_name("FOLDER");
  plans_command->add_flag("--json", json, "print one JSON object instead");

  quire::bench::ContextBenchOptions context;
  CLI::App* context_command = app.add_subcommand(
      "context", "whole training steps of one packed row: one rank beside two that share it, every layout and exchange, one thread each.\n"
                 "Progress goes to stderr. A measurement that the machine disturbed is made again, up to three times, and what stays disturbed is said. "
                 "With the defaults it takes one to three minutes on a quiet machine, up to four times as long on a disturbed one");
  context_command->add_option("--tokens", context.tokens, "length of the row")->capture_default_str()->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  context_command->add_option("--rounds", context.rounds, "measurements of each, of which the median counts")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  context_command->add_option("--documents", context.corpus, "name of the document lengths in the folder")->capture_default_str();
  context_command->add_option("--lengths", context.lengths, "folder of the document lengths")->capture_default_str()->type_name("FOLDER");
  context_command->add_flag("--json", json, "print one JSON object instead");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "[bench] {}; --help lists the options\n", error.what());
    return 1;
  }
  try {
    if (*plans_command) {
      const quire::bench::PlansResult result = quire::bench::bench_plans(plans);
      fmt::print("{}{}", json ? result.to_json() : result.markdown(), json ? "\n" : "");
    } else {
      context.progress = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
      const quire::bench::ContextBenchResult result = quire::bench::bench_context(context);
      fmt::print("{}{}", json ? result.to_json() : result.table(), json ? "\n" : "");
    }
    finish_output("bench");
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
