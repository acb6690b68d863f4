// plan CONFIG [KEY=VALUE]...: what a run's layout comes to, for any number of ranks, without starting them and without reading a token.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "run/plan_command.h"
#include "tools/output.h"

int main(int argc, char** argv) {
  quire::PlanOptions options;
  CLI::App app(
      "Shows what the layout of a run comes to, for any number of ranks, without starting them: stages and their balance, memory of each rank, every pipeline schedule's\n"
      "simulated time, bubble and memory, what is sent; and where ranks share a microbatch, which rank holds which tokens, how work is balanced, which keys and values\n"
      "travel, beside every other layout and exchange. What is `auto` is chosen as a run would, with speeds of this machine.\n"
      "Over more than 1024 context ranks only the layout and exchange in force (for auto: balanced, ring) and one microbatch are planned, and nothing is predicted; more "
      "than\n65536 ranks, or 6 million transfers of keys, are refused.");
  app.add_option("config", options.config, "the run's TOML file")->required()->type_name("CONFIG");
  app.add_option("override", options.overrides, "settings instead of the file's: section.key=value")->type_name("KEY=VALUE");
  app.add_option("--step", options.step, "the training step that is planned; 1 is the first")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--microbatch", options.microbatch, "the microbatch of the step whose context plan is shown; 0 is the first")->capture_default_str();
  app.add_option("--lengths", options.lengths, "documents of drawn lengths instead of the config's data: lognormal:MEAN, lognormal:MEAN:SIGMA or fixed:LENGTH")->type_name("LAW");
  app.add_option("--flops", options.flops, "of products, as 400T; not given: speeds of this machine are measured")->type_name("PER-SECOND");
  app.add_option("--attention-flops", options.attention_flops, "of attention; not given: as --flops")->type_name("PER-SECOND");
  app.add_option("--link", options.link, "bytes between two ranks, as 50GB/s; not given: measured, with --flops as many as you like")->type_name("PER-SECOND");
  app.add_option("--latency", options.latency, "of a message, as 5us; not given: measured, with --flops none")->type_name("TIME");
  app.add_option("--memory-limit", options.memory_limit, "of a rank, as 80GiB: says what fits, and the best schedule within it")->type_name("BYTES");
  app.add_flag("--json", options.json, "print one JSON object instead of tables");
  app.add_option("--svg", options.svg, "write a picture: a new file, or a regular one, which is replaced")->type_name("FILE");
  app.add_option("--picture", options.picture,
                 "what --svg shows: pipeline (what each rank computes when, simulated), context (a microbatch's mask and exchanges); not given: pipeline where distributed.pp is above 1")
      ->type_name("WHAT");
  app.add_option("--trace", options.trace, "write the simulated pipeline as a Chrome trace")->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "[plan] {}; --help lists the options\n", error.what());
    return 1;
  }
  try {
    fmt::print("{}", quire::run_plan(options));
    finish_output("plan");
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
