// plan CONFIG [KEY=VALUE]...: what a run's layout comes to, for any number of ranks, without starting them and without reading a token.
#include <fmt/format.h>


#include "run/plan_command.h"
#include "tools/command_line.h"
#include "tools/output.h"

int main(int argc, char** argv) {
  quire::PlanOptions options;
  quire::CommandLine app(
      "plan",
      "Shows what the layout of a run comes to, for any number of ranks, without starting them: stages and their balance, memory of each rank, every pipeline schedule's\n"
      "simulated time, bubble and memory, what is sent; and where ranks share a microbatch, which rank holds which tokens, how work is balanced, which keys and values\n"
      "travel, beside every other layout and exchange. What is `auto` is chosen as a run would, with speeds of this machine.\n"
      "Over more than 1024 context ranks only the layout and exchange in force (for auto: balanced, ring) and one microbatch are planned, and nothing is predicted; more "
      "than\n65536 ranks, or 6 million transfers of keys, are refused.");
  app.option("config", options.config, "the run's TOML file").required().type_name("CONFIG");
  app.option("override", options.overrides, "settings instead of the file's: section.key=value").type_name("KEY=VALUE");
  app.option("--step", options.step, "the training step that is planned; 1 is the first").with_default().within(1, int64_t{1} << 40);
  app.option("--microbatch", options.microbatch, "the microbatch of the step whose context plan is shown; 0 is the first").with_default();
  app.option("--lengths", options.lengths, "documents of drawn lengths instead of the config's data: lognormal:MEAN, lognormal:MEAN:SIGMA or fixed:LENGTH").type_name("LAW");
  app.option("--flops", options.flops, "of products, as 400T; not given: speeds of this machine are measured").type_name("PER-SECOND");
  app.option("--attention-flops", options.attention_flops, "of attention; not given: as --flops").type_name("PER-SECOND");
  app.option("--link", options.link, "bytes between two ranks, as 50GB/s; not given: measured, with --flops as many as you like").type_name("PER-SECOND");
  app.option("--latency", options.latency, "of a message, as 5us; not given: measured, with --flops none").type_name("TIME");
  app.option("--memory-limit", options.memory_limit, "of a rank, as 80GiB: says what fits, and the best schedule within it").type_name("BYTES");
  app.flag("--json", options.json, "print one JSON object instead of tables");
  app.option("--svg", options.svg, "write a picture: a new file, or a regular one, which is replaced").type_name("FILE");
  app.option("--picture", options.picture,
                 "what --svg shows: pipeline (what each rank computes when, simulated), context (a microbatch's mask and exchanges); not given: pipeline where distributed.pp is above 1")
      .type_name("WHAT");
  app.option("--trace", options.trace, "write the simulated pipeline as a Chrome trace").type_name("FILE");
  if (const auto ended = app.parse(argc, argv)) return *ended;
  try {
    fmt::print("{}", quire::run_plan(options));
    finish_output("plan");
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
