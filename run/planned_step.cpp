#include "run/planned_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "parallel/communicator.h"
#include "run/context_decision.h"
#include "run/context_picture.h"
#include "run/context_speeds.h"
#include "run/data_source.h"
#include "run/machine.h"
#include "run/rank_options.h"
#include "run/run_folder.h"
#include "run/trainer.h"

namespace quire {

namespace {

/// At most `most` of a step's microbatches.
std::vector<Documents> documents_of_step(const LoadedStep& step, size_t most) {
  std::vector<Documents> all;
  for (size_t m = 0; m < std::min(most, step.microbatches.size()); ++m) all.push_back(step.microbatches[m].documents);
  return all;
}

/// Two ranks are threads here: what a rank computes while another one does, and what a message between them costs.
ContextSpeeds local_speeds(const Config& config) {
  ContextSpeeds speeds;
  run_local(2, {}, [&](Communicator& world) {
    RankOptions options = rank_options(config);
    options.first_processor = -1;
    options.device = {};
    if (config.run.threads == 0) options.threads = std::max(1, usable_processors() / 2);
    Rank rank(options);
    const ContextSpeeds measured = measure_context_speeds(rank, world, config);
    if (world.rank() == 0) speeds = measured;
  });
  return speeds;
}

}  // namespace

PlannedStep plan_step(const Config& config, int64_t step, std::shared_ptr<const Corpus> corpus) {
  LoaderSettings settings = loader_settings(config);
  settings.content = Content::documents;
  settings.prefetch = 0;
  Loader loader(corpus ? std::move(corpus) : open_data(config).train, settings);
  PlannedStep planned;
  planned.mesh = mesh_shape(config);
  planned.step = step;
  planned.row_length = config.train.seq_len;
  for (int64_t i = 1; i <= step; ++i) {
    LoadedStep loaded = loader.next_step();
    if (loaded.empty()) fail<ConfigError>("plan", "step {} is asked for; the data ends after step {} (data.epochs)", step, i - 1);
    if (i == 1) planned.first_step = documents_of_step(loaded, context_decision_microbatches);
    if (i < step) continue;
    for (HostBatch& batch : loaded.microbatches) planned.microbatches.push_back(std::move(batch.documents));
    planned.rows = static_cast<int64_t>(loaded.plan.rows.size());
    planned.tokens = loaded.plan.tokens;
    planned.valid = loaded.plan.valid;
    planned.documents = loaded.plan.pieces;
  }
  return planned;
}

ContextReport report_planned(const Config& config, const PlannedStep& planned, int64_t microbatch) {
  const auto report = [&](const Config& decided, const std::string& reason, const std::optional<ContextSpeeds>& speeds) {
    ContextChoice choice = choose_context(planned.first_step, config.distributed.cp, context_model(config), speeds.value_or(ContextSpeeds{}),
                                          asked_layout(decided), asked_exchange(decided));
    if (!reason.empty()) choice.reason = fmt::format("{}, {}: {}", name_of(choice.layout), name_of(choice.exchange), reason);
    return report_context(config, planned.microbatches, planned.step, microbatch, choice, speeds);
  };
  check_planned_ranks(config.distributed.cp);
  if (!is_context_open(config)) return report(config, {}, {});
  ContextDecision recorded;
  if (!config.run.dir.empty() && recorded_decision(config, stored_choices(config.run.dir), recorded))
    return report(with_decision(config, recorded), "as the run in " + config.run.dir + " began", {});
  if (config.distributed.cp > most_compared_ranks) {
    ContextDecision shown;
    shown.exchange = asked_exchange(config) ? config.distributed.cp_exchange : "ring";
    shown.layout = asked_layout(config) ? config.distributed.cp_layout : shown.exchange == "heads" ? "contiguous" : "balanced";
    return report(with_decision(config, shown), fmt::format("over more than {} ranks nothing is predicted; a run may choose another for auto", most_compared_ranks), {});
  }
  return report(config, {}, local_speeds(config));
}

std::string picture_of(const Config& config, const PlannedStep& planned, const ContextReport& report) {
  const ContextLine& line = report.lines.at(report.chosen);
  const int64_t window = context_model(config).costs.windows.front().window;
  const std::string name = config.data.dataset_path.substr(config.data.dataset_path.rfind('/') + 1);
  PictureText text;
  text.title = fmt::format("{}: {} in {} over {}; {} layout, {}", name, counted(report.tokens, "token"),
                           counted(report.documents, "document"), counted(report.ranks, "rank"),
                           name_of(line.layout), name_of(line.exchange));
  text.subtitle = fmt::format(
      "largest over mean: tokens {:.3f}, pairs {:.3f}, step {:.3f}; keys received: {:.1f} % of a full ring{}; {}; {}{}",
      line.tokens, line.pairs, line.cost, line.received, 
      report.windows || !line.within ? "" : fmt::format(" (at least {:.1f} % where so balanced)", report.bound), tiles_text(line),
      steps_text(line.steps, line.exchange, report.ranks), window > 0 ? fmt::format("; layers with a window of {}", window) : "");
  return context_picture(*report.plan, planned.microbatches.at(static_cast<size_t>(report.microbatch)), window, text);
}

std::string PlannedStep::table() const {
  return fmt::format("layout: {} ({}); step {}: {} of up to {} in {}, {}, {}, {}\n", Mesh(mesh).name(), counted(mesh.ranks(), "rank"), step,
                     counted(rows, "row"), counted(row_length, "token"), microbatches.size() == 1 ? "1 microbatch" : fmt::format("{} microbatches", microbatches.size()),
                     counted(tokens, "token"), counted(valid, "target"), counted(documents, "document"));
}

std::string PlannedStep::to_json() const {
  const nlohmann::ordered_json object = {{"pp", mesh.pp},         {"dp", mesh.dp},    {"cp", mesh.cp},         {"tp", mesh.tp},
                                         {"ranks", mesh.ranks()}, {"step", step},     {"rows", rows},          {"microbatches", microbatches.size()},
                                         {"tokens", tokens},      {"targets", valid}, {"documents", documents}};
  return object.dump();
}

}  // namespace quire
