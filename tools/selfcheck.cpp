// selfcheck CONFIG [KEY=VALUE]...: proves on the user's own model and data that documents are kept apart.
#include <fmt/format.h>


#include "run/selfcheck.h"
#include "tools/command_line.h"
#include "tools/output.h"

int main(int argc, char** argv) {
  std::string config_path;
  std::vector<std::string> overrides;
  quire::SelfcheckOptions options;
  bool json = false;
  quire::CommandLine app(
      "selfcheck",
      "Checks on your own model, settings and data that packed documents do not see each other: changes one token and looks which logits move,\n"
      "sends the loss of one document back and looks where gradients arrive, and compares packed documents with each one alone; then breaks the\n"
      "boundaries on purpose, which must be seen. Uses the run folder's newest checkpoint where there is one. Exit status 0: all passed.");
  app.option("config", config_path, "the run's TOML file").required().type_name("CONFIG");
  app.option("override", overrides, "settings instead of the file's: section.key=value").type_name("KEY=VALUE");
  app.flag("--json", json, "print {\"passed\": ..., \"checks\": [...]} instead of the table");
  app.option("--break", options.broken, "break a property on purpose, so that the checks fail: dropped (attention loses the boundaries); with pipeline stages also "
                 "dropped@stageK (stage K loses those it received) and swapped (stages use another microbatch's); with context ranks also ring_step (received keys are masked as one "
                 "document), dkv_owner (gradients of keys and values go to other tokens), labels (targets are made after the cut) and denominator (each rank divides by its own targets)")
      .not_empty();
  app.option("--tokens", options.tokens, "most tokens of a probed row").with_default().within(4, int64_t{1} << 24);
  if (const auto ended = app.parse(argc, argv)) return *ended;
  try {
    if (!json)
      options.print = [](const std::string& line) {  // at once, through a pipe too: many ranks take minutes
        fmt::print("{}\n", line);
        std::fflush(stdout);
      };
    const quire::SelfcheckReport report = quire::selfcheck(quire::load_config(config_path, overrides), options);
    fmt::print("{}\n", json ? report.to_json() : report.outcome());
    finish_output("selfcheck");
    return report.passed() ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
