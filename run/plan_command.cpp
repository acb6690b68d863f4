#include "run/plan_command.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <filesystem>

#include "run/context_report.h"
#include "run/drawn_lengths.h"
#include "run/pipeline_report.h"
#include "run/planned_step.h"
#include "runtime/error.h"

namespace quire {

namespace {

/// The file that is written: what a link points to. Nothing but a regular file is replaced.
std::string file_to_write(const std::string& option, const std::string& name, const std::string& example) {
  if (name.empty() || name == "-")
    fail<ConfigError>("plan", "{} is '{}'; a file's name is needed, as in {} {}; it is not printed", option, name, option, example);
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(name, error);
  if (std::filesystem::is_directory(status) || name.back() == '/')
    fail<ConfigError>("plan", "{0} {1} is a folder; name a file in it, as in {0} {1}{2}{3}", option, name, name.back() == '/' ? "" : "/", example);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    fail<ConfigError>("plan", "{} {} is no regular file; name a new file or one that may be replaced", option, name);
  std::filesystem::path file = name;
  for (int links = 0; links < 40 && std::filesystem::is_symlink(std::filesystem::symlink_status(file, error)); ++links) {
    const std::filesystem::path target = std::filesystem::read_symlink(file, error);
    file = target.is_absolute() ? target : file.parent_path() / target;
  }
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (!std::filesystem::is_directory(folder, error))
    fail<ConfigError>("plan", "{} {}: there is no folder {}; make it or name another one", option, file.string(), folder.string());
  return file.string();
}

/// Given ones; what is not given is measured, or, where --flops is given, free.
std::optional<PipelineRates> rates_of(const PlanOptions& options, const Config& config) {
  if (options.flops.empty() && !options.attention_flops.empty()) fail<ConfigError>("plan", "--attention-flops is given without --flops; give both, or none to have them measured");
  PipelineRates rates;
  if (options.flops.empty()) {
    if (config.distributed.pp == 1 && !options.trace && options.picture != "pipeline") return {};  // nothing to compare
    rates = measure_pipeline_rates(config);
  } else {
    rates.product_flops = quantity("--flops", options.flops, "FLOP/s");
    rates.attention_flops = options.attention_flops.empty() ? rates.product_flops : quantity("--attention-flops", options.attention_flops, "FLOP/s");
    rates.attention_backward_flops = rates.attention_flops;
    if (!(rates.product_flops > 0 && rates.attention_flops > 0)) fail<ConfigError>("plan", "--flops and --attention-flops must be above 0");
  }
  if (!options.link.empty()) rates.link_bytes = quantity("--link", options.link, "B/s");
  if (!options.latency.empty()) rates.latency = quantity("--latency", options.latency, "s");
  return rates;
}

/// 0: none.
int64_t memory_limit_of(const PlanOptions& options) {
  if (options.memory_limit.empty()) return 0;
  const double bytes = quantity("--memory-limit", options.memory_limit, "B");
  if (bytes >= 0x1p63) fail<ConfigError>("plan", "--memory-limit is '{}'; allowed: less than 2^63 bytes", options.memory_limit);
  return static_cast<int64_t>(bytes);
}

bool shows_pipeline(const PlanOptions& options, const Config& config) {
  if (options.picture.empty()) return config.distributed.pp > 1;
  if (options.picture != "pipeline" && options.picture != "context")
    fail<ConfigError>("plan", "--picture is '{}'; allowed: pipeline (what each rank computes when), context (who holds which tokens, and what travels)", options.picture);
  return options.picture == "pipeline";
}

}  // namespace

double quantity(const std::string& option, const std::string& text, const std::string& unit) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string rest(end, text.data() + text.size());
  while (!rest.empty() && rest.front() == ' ') rest.erase(rest.begin());
  const auto refuse = [&] {
    fail<ConfigError>("plan", "{} is '{}'; allowed: a number of 0 or more, a prefix (k M G T P, Ki Mi Gi Ti, m u n) or none, and {} or nothing, as in 50G{}", option, text, unit, unit);
  };
  if (error != std::errc() || !std::isfinite(value) || value < 0) refuse();
  if (rest.ends_with(unit)) rest.resize(rest.size() - unit.size());
  static const std::pair<const char*, double> prefixes[] = {{"", 1},    {"k", 1e3},       {"M", 1e6},       {"G", 1e9},       {"T", 1e12},     {"P", 1e15}, {"Ki", 0x1p10},
                                                            {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}, {"m", 1e-3},      {"u", 1e-6},     {"n", 1e-9}};
  for (const auto& [prefix, factor] : prefixes)
    if (rest == prefix) return value * factor;
  refuse();
  return 0;
}

std::string run_plan(const PlanOptions& options) {
  std::string picture, trace;
  if (options.svg) picture = file_to_write("--svg", *options.svg, "picture.svg");
  if (options.trace) trace = file_to_write("--trace", *options.trace, "trace.json");
  if (options.trace && options.svg && picture == trace) fail<ConfigError>("plan", "--svg and --trace are both {}; name a file for each", picture);
  if (!options.picture.empty() && !options.svg) fail<ConfigError>("plan", "--picture is given without --svg FILE, which it is a choice of");
  const Config config = load_config(options.config, options.overrides);
  check_planned_ranks(config.distributed.cp);
  const bool draws_pipeline = shows_pipeline(options, config);
  PipelineReportOptions pipeline_options;
  pipeline_options.memory_limit = memory_limit_of(options);
  if (options.lengths.empty() && !disk().exists(config.data.dataset_path))
    fail<ConfigError>("plan", "there is no data in '{}' (data.dataset_path); make it with tools/prepare, or draw documents instead, as in --lengths lognormal:2048",
                      config.data.dataset_path);
  pipeline_options.rates = rates_of(options, config);
  const PlannedStep planned = plan_step(config, options.step, options.lengths.empty() ? nullptr : drawn_corpus(options.lengths));
  std::optional<ContextReport> context;
  if (config.distributed.cp > 1) context = report_planned(config, planned, options.microbatch);
  pipeline_options.workspace = planned_workspace(config, planned.microbatches);
  const PipelineReport pipeline = report_pipeline(config, planned.microbatches, pipeline_options);
  if (options.svg && draws_pipeline) {
    write_atomically(disk(), picture, to_svg(pipeline.timeline));
  } else if (options.svg) {
    if (!context) fail<ConfigError>("plan", "--svg shows the ranks that share a microbatch; there is one: set distributed.cp, or distributed.pp for a picture of the pipeline");
    write_atomically(disk(), picture, picture_of(config, planned, *context));
  }
  if (options.trace) write_atomically(disk(), trace, to_chrome_trace(pipeline.timeline));
  if (options.json)
    return fmt::format("{{\"layout\":{},\"pipeline\":{}{}{}}}\n", planned.to_json(), pipeline.to_json(), context ? ",\"context\":" : "", context ? context->to_json() : "");
  std::string text = planned.table() + "\n" + pipeline.table();
  if (context) text += fmt::format("\n{}", context->table());
  if (options.svg) text += fmt::format("\npicture of the {}: {}\n", draws_pipeline ? "pipeline" : "microbatch", *options.svg);
  if (options.trace) text += fmt::format("\ntrace: {}\n", *options.trace);
  return text;
}

}  // namespace quire
