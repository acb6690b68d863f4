// plan CONFIG [KEY=VALUE]...: what a run's layout comes to, for any number of ranks, without starting them and without reading a token.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <optional>

#include "run/planned_step.h"
#include "tools/output.h"

namespace {

using namespace quire;

struct Options {
  std::string config;
  std::optional<std::string> svg;
  std::vector<std::string> overrides;
  int64_t step = 1, microbatch = 0;
  bool json = false;
};

/// The file that the picture is written to: what a link points to. Nothing but a regular file is replaced.
std::string picture_file(const std::string& svg) {
  if (svg.empty() || svg == "-")
    fail<ConfigError>("plan", "--svg is '{}'; a file's name is needed, as in --svg picture.svg; the picture is not printed", svg);
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(svg, error);
  if (std::filesystem::is_directory(status) || svg.back() == '/')
    fail<ConfigError>("plan", "--svg {} is a folder; name a file in it, as in --svg {}{}picture.svg", svg, svg, svg.back() == '/' ? "" : "/");
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    fail<ConfigError>("plan", "--svg {} is no regular file; name a new file or one that may be replaced", svg);
  std::filesystem::path file = svg;
  for (int links = 0; links < 40 && std::filesystem::is_symlink(std::filesystem::symlink_status(file, error)); ++links) {
    const std::filesystem::path target = std::filesystem::read_symlink(file, error);
    file = target.is_absolute() ? target : file.parent_path() / target;
  }
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (!std::filesystem::is_directory(folder, error))
    fail<ConfigError>("plan", "--svg {}: there is no folder {}; make it or name another one", file.string(), folder.string());
  return file.string();
}

void print_plan(const Options& options) {
  std::string file;
  if (options.svg) file = picture_file(*options.svg);
  const Config config = load_config(options.config, options.overrides);
  check_planned_ranks(config.distributed.cp);
  const PlannedStep planned = plan_step(config, options.step);
  std::optional<ContextReport> context;
  if (config.distributed.cp > 1) context = report_planned(config, planned, options.microbatch);
  if (options.svg) {
    if (!context) fail<ConfigError>("plan", "--svg shows the ranks that share a microbatch; there is one: set distributed.cp");
    write_atomically(disk(), file, picture_of(config, planned, *context));
  }
  if (options.json) {
    fmt::print("{{\"layout\":{}{}}}\n", planned.to_json(), context ? ",\"context\":" + context->to_json() : "");
    return;
  }
  fmt::print("{}", planned.table());
  if (context) fmt::print("\n{}", context->table());
  if (options.svg) fmt::print("\npicture: {}\n", *options.svg);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Shows what the layout of a run comes to, for any number of ranks, without starting them: which rank holds which tokens of a packed "
      "microbatch, how work is\n"
      "balanced, which keys and values travel, beside every other layout and exchange. What is `auto` is chosen as a run would, with speeds of this "
      "machine.\n"
      "Over more than 1024 ranks only the layout and exchange in force (for auto: balanced, ring) and one microbatch are planned, and nothing is predicted; "
      "more than\n"
      "65536 ranks, or 6 million transfers of keys, are refused.");
  app.add_option("config", options.config, "the run's TOML file")->required()->type_name("CONFIG");
  app.add_option("override", options.overrides, "settings instead of the file's: section.key=value")->type_name("KEY=VALUE");
  app.add_option("--step", options.step, "the training step that is planned; 1 is the first")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--microbatch", options.microbatch, "the microbatch of the step that is shown; 0 is the first")->capture_default_str();
  app.add_flag("--json", options.json, "print one JSON object instead of tables");
  app.add_option("--svg", options.svg, "write a picture of the microbatch's mask and exchanges: a new file, or a regular one, which is replaced")->type_name("FILE");
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
