// plan CONFIG [KEY=VALUE]...: what a run's layout comes to, for any number of ranks, without starting them and without reading a token.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "run/planned_step.h"
#include "run/context_picture.h"
#include "tools/output.h"

namespace {

using namespace quire;

struct Options {
  std::string config, svg;
  std::vector<std::string> overrides;
  int64_t step = 1, microbatch = 0;
  bool json = false;
};

void print_plan(const Options& options) {
  const Config config = load_config(options.config, options.overrides);
  const PlannedStep planned = plan_step(config, options.step);
  std::optional<ContextReport> context;
  if (config.distributed.cp > 1) context = report_planned(config, planned, options.microbatch);
  if (!options.svg.empty()) {
    if (!context) fail<ConfigError>("plan", "--svg shows the ranks that share a microbatch; there is one: set distributed.cp");
    write_atomically(disk(), options.svg, picture_of(config, planned, *context));
  }
  if (options.json) {
    fmt::print("{{\"layout\":{}{}}}\n", planned.to_json(), context ? ",\"context\":" + context->to_json() : "");
    return;
  }
  fmt::print("{}", planned.table());
  if (context) fmt::print("\n{}", context->table());
  if (!options.svg.empty()) fmt::print("\npicture: {}\n", options.svg);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Shows what the layout of a run comes to, for any number of ranks, without starting them: which rank holds which tokens of a packed "
      "microbatch, how work is\n"
      "balanced, which keys and values travel, beside every other layout and exchange. What is `auto` is chosen as a run would, with speeds of this "
      "machine.");
  app.add_option("config", options.config, "the run's TOML file")->required()->type_name("CONFIG");
  app.add_option("override", options.overrides, "settings instead of the file's: section.key=value")->type_name("KEY=VALUE");
  app.add_option("--step", options.step, "the training step that is planned; 1 is the first")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--microbatch", options.microbatch, "the microbatch of the step that is shown; 0 is the first")->capture_default_str();
  app.add_flag("--json", options.json, "print one JSON object instead of tables");
  app.add_option("--svg", options.svg, "write a picture of the microbatch's mask and exchanges")->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "[plan] {}; --help lists the options\n", error.what());
    return 1;
  }
  try {
    print_plan(options);
    finish_output("plan");
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
