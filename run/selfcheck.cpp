#include "run/selfcheck.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "run/context_decision.h"
#include "run/data_source.h"
#include "run/layout_parity.h"
#include "run/model_source.h"
#include "run/pipeline_stages.h"
#include "run/rank_options.h"
#include "run/ranks_layout.h"
#include "run/run_folder.h"
#include "run/shared_documents.h"

namespace quire {

bool SelfcheckReport::passed() const {
  return !checks.empty() && std::all_of(checks.begin(), checks.end(), [](const CheckResult& check) { return check.passed; });
}

std::string SelfcheckReport::to_json() const {
  nlohmann::ordered_json json;
  json["passed"] = passed();
  json["checks"] = nlohmann::ordered_json::array();
  const auto number = [](double x) { return std::isfinite(x) ? x : std::numeric_limits<double>::max(); };  // JSON has no infinity
  for (const CheckResult& check : checks)
    json["checks"].push_back({{"name", check.name},
                              {"layout", check.layout},
                              {"backend", check.backend},
                              {"changed_fraction", check.changed_fraction},
                              {"leaked_rows", check.leaked_rows},
                              {"max_difference", number(check.max_difference)},
                              {"passed", check.passed}});
  return json.dump(2);
}

std::string SelfcheckReport::table() const {
  std::string text;
  for (const std::string& note : notes) text += note + "\n";
  for (const CheckResult& check : checks) text += line(check) + "\n";
  return text + outcome() + "\n";
}

std::string SelfcheckReport::line(const CheckResult& check) const {
  return fmt::format("{:<6} {:<{}}  {:<{}}  {:<5}  {}", check.passed ? "ok" : "FAILED", check.name, name_width, check.layout, layout_width, check.backend, check.words);
}

std::string SelfcheckReport::outcome() const {
  const auto failed = std::count_if(checks.begin(), checks.end(), [](const CheckResult& check) { return !check.passed; });
  return failed == 0 ? fmt::format("{} checks passed: documents are kept apart", checks.size()) : fmt::format("{} of {} checks FAILED", failed, checks.size());
}

namespace {

/// What is done where a name is broken.
std::string meaning_of(const std::string& broken) {
  if (broken == "dropped") return "attention takes a microbatch for one document";
  if (broken == "swapped") return "stages use the boundaries of another microbatch in flight";
  if (broken == "ring_step") return "received keys are masked as one document";
  if (broken == "dkv_owner") return "gradients of received keys and values go to other tokens than theirs";
  if (broken == "labels") return "each rank makes its targets after the cut";
  if (broken == "denominator") return "each rank divides by its own targets";
  return "the stage loses the boundaries that it received";
}

void check_break(const std::string& broken, const std::vector<std::string>& known, const ContextSharing& context) {
  if (broken.empty() || std::find(known.begin(), known.end(), broken) != known.end()) return;
  const auto need = [&](const char* what, const char* how) {
    fail<ConfigError>("selfcheck", "--break {} needs {}: set {}; known: {}", broken, what, how, fmt::join(known, ", "));
  };
  const bool pipeline = std::find(known.begin(), known.end(), "swapped") != known.end();
  if (!pipeline && (broken == "swapped" || broken.starts_with("dropped@stage"))) need("boundaries that travel between pipeline stages", "distributed.pp to 2 or more");
  if (broken == "ring_step" || broken == "dkv_owner" || broken == "labels" || broken == "denominator") {
    if (context.ranks == 1) need("ranks that share microbatches", "distributed.cp to 2 or more");
    need("keys that are sent to queries", "distributed.cp_exchange to \"ring\" or \"gather\"");
  }
  const std::string near = nearest(broken, known);
  fail<ConfigError>("selfcheck", "--break '{}' is unknown; known: {}{}", broken, fmt::join(known, ", "), near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

/// The config with what `auto` stands for in its run folder; else what a trainer takes it for. Says so in the notes.
Config with_choices(Config config, FileSystem& fs, std::vector<std::string>& notes) {
  if (config.distributed.cp == 1) return config;
  std::string how;
  if (is_context_open(config)) {
    ContextDecision decision{"balanced", "ring", {}, {}};
    const bool recorded = recorded_decision(config, stored_choices(config.run.dir, fs), decision);
    if (!recorded && config.distributed.cp_layout != "auto") decision.layout = config.distributed.cp_layout;
    if (!recorded && config.distributed.cp_exchange != "auto") decision.exchange = config.distributed.cp_exchange;
    how = recorded ? " (auto, as this run's choices.json has it)" : " (auto is not decided yet in this run: train decides it)";
    config = resolved(with_decision(std::move(config), decision));
  }
  const Config::Distributed& d = config.distributed;
  notes.push_back(fmt::format("context: {} ranks share each microbatch, layout {}, exchange {}{}", d.cp, d.cp_layout, d.cp_exchange, how));
  return config;
}

/// The newest checkpoint of the run folder, else the one to start from; nothing without either.
std::unique_ptr<ModelSource> weights_of(const Config& config, FileSystem& fs) {
  if (has_checkpoint(fs, config.run.dir)) return open_model_source(fs, config.run.dir);
  if (!config.checkpoint.load_path.empty()) return open_model_source(fs, config.checkpoint.load_path);
  return nullptr;
}

/// Rows are cut so that the logits of two passes, in f64, stay below half a GiB.
int64_t most_tokens(const SelfcheckOptions& options, int64_t vocabulary) {
  return std::max<int64_t>(std::min(options.tokens, (int64_t{1} << 25) / vocabulary), 4);
}

using NoteSink = std::function<void(std::string)>;

constexpr int64_t few_ranks = 8;  ///< more take long where they are threads of one machine

void check_parity(const Config& config, const std::shared_ptr<const Corpus>& corpus, ModelSource* weights, const std::string& broken,
                  const std::vector<std::string>& breaks, const CheckSink& found, const NoteSink& note) {
  const std::string in_force = broken == "dropped" ? std::string() : broken;  // attention's own fault has no part in a training step
  const LayoutParity parity(config, corpus, weights);
  found(parity.check(in_force));
  const auto seen = [&](const std::string& name) {
    const bool sees = parity_sees(config, corpus, name);
    if (!sees) note(fmt::format("note:  '{}' would change nothing in the first training step, so layout parity has no such control", name));
    return sees;
  };
  for (const std::string& name : breaks)
    if (name != "dropped" && seen(name)) found(as_control(parity.check(name), name));
  if (seen("unpacked")) found(parity.unpacked_control());
}

/// The row's tokens as one document, as far as it may be long: wherever it is cut, the cut is inside of a document.
ProbeRow one_document_row(const ModelConfig& model, const ProbeInput& from) {
  ProbeInput input;
  const auto length = static_cast<int64_t>(std::min(from.tokens.size(), static_cast<size_t>(model.max_seq_len)));
  input.tokens.assign(from.tokens.begin(), from.tokens.begin() + length);
  input.targets.assign(input.tokens.begin() + 1, input.tokens.end());
  input.targets.push_back(ignored_target);
  input.documents = Documents::from_lengths(std::span(&length, 1));
  return {"one document", std::move(input)};
}

/// What a layout is probed with: where documents fit on ranks so well that no keys travel, also documents that ranks must share. Says what can not be seen.
std::vector<ProbeRow> rows_for(RanksLayout& layout, const ModelConfig& model, const ProbeRow& equal, const ProbeRow& packed, const NoteSink& note) {
  std::vector<ProbeRow> rows{equal, packed};
  if (influence_reach(model) == 0) return rows;
  if (ContextPlanner* planner = layout.planner(); planner != nullptr && !keys_travel(*planner->plan(packed.input.documents))) {
    if (std::optional<ProbeRow> shared = shared_probe_row(model, *planner, packed.input)) rows.push_back(std::move(*shared));
    else note("note:  no keys travel between ranks in these rows: there are too few tokens to share");
  }
  for (const std::string& name : layout.breaks())
    if (std::none_of(rows.begin(), rows.end(), [&](const ProbeRow& row) { return layout.leak_of(row.input, name).has_value(); }))
      note(fmt::format("note:  '{}' lets no token reach another document in these rows, so the probes have no such control", name));
  return rows;
}

/// Targets of these rows, with what must be seen where they are made after the cut.
void check_targets(RanksLayout& layout, const std::vector<ProbeRow>& rows, const std::string& broken, const CheckSink& found) {
  const std::string in_force = broken == "labels" ? broken : std::string();
  for (const ProbeRow& row : rows) found(target_check(layout, row, {AttentionBackend::block, in_force}));
  for (const ProbeRow& row : rows)
    if (layout.labels_change(row.input)) found(as_control(target_check(layout, row, {AttentionBackend::block, "labels"}), "labels"));
}

[[noreturn]] void refuse_break(const std::string& broken, const char* why) {
  fail<ConfigError>("selfcheck", "--break {} changes nothing in this layout and data: {}; choose another one, or other windows, rows or documents", broken, why);
}

/// A break that can not be seen would pass: it is refused before anything is computed where that is known.
void check_visible(const std::string& broken, const Config& config, const std::shared_ptr<const Corpus>& corpus) {
  if ((broken == "dropped" || broken == "ring_step") && influence_reach(config.model) == 0) refuse_break(broken, "every layer's window is 1, so tokens never meet");
  if ((broken == "dkv_owner" || broken == "denominator") && !parity_sees(config, corpus, broken))
    refuse_break(broken, broken == "dkv_owner" ? "no keys travel between ranks in the first training step, or its tokens are all alike" : "one rank holds all targets of the first training step");
}

/// Widths of the table's columns, before any check is made: of the longest names there may be.
void set_widths(SelfcheckReport& report, const std::vector<std::string>& breaks, const std::vector<std::string>& layouts) {
  report.name_width = std::string("gradient probe, two equal documents").size();
  size_t longest = std::string("dropped").size();
  for (const std::string& name : breaks) longest = std::max(longest, name.size());
  report.name_width += std::string("control, : ").size() + longest;
  report.layout_width = std::string("single").size();
  for (const std::string& name : layouts) report.layout_width = std::max(report.layout_width, name.size());
}

}  // namespace

SelfcheckReport selfcheck(const Config& given, const SelfcheckOptions& options, FileSystem& fs) {
  SelfcheckReport report;
  std::vector<std::string> context_notes;
  const Config config = with_choices(given, fs, context_notes);
  const MeshShape shape = mesh_shape(config);
  const PipelineStages stages = pipeline_stages(config);
  const ContextSharing sharing = context_sharing(config);
  const std::vector<std::string> leaking = leaking_breaks(stages, sharing), training = training_breaks(sharing);
  std::vector<std::string> breaks = leaking;
  breaks.insert(breaks.end(), training.begin(), training.end());
  check_break(options.broken, breaks, sharing);
  if (config.model.vocab_size < 2) fail<ConfigError>("selfcheck", "model.vocab_size is {}: no token can be replaced by another; allowed: 2 or more", config.model.vocab_size);
  const CorpusSplit data = open_data(config, fs);
  check_visible(options.broken, config, data.train);
  const std::unique_ptr<ModelSource> weights = weights_of(config, fs);
  Rank rank(rank_options(config));
  check_device(rank, config.dtype());
  check_attention(rank, config);
  check_messages(rank.device(), static_cast<int>(shape.ranks()));
  Model model(rank, config.model, config.dtype());
  if (weights) weights->load(rank, model);
  else model.initialize(rank, static_cast<uint64_t>(config.train.seed));

  const ProbeRow packed = packed_probe_row(config, data.train, most_tokens(options, config.model.vocab_size));
  const ProbeRow equal = equal_probe_row(config.model, packed.input, most_tokens(options, config.model.vocab_size));
  ForwardOptions forward;
  forward.recomputation = recomputation_from(config.train.activation_checkpointing);
  forward.z_weight = config.train.z_loss_weight;
  SingleLayout single(rank, model, forward);

  const auto say = [&](const std::string& line) { if (options.print) options.print(line); };
  const auto note = [&](std::string text) { say(report.notes.emplace_back(std::move(text))); };
  const auto found = [&](CheckResult check) { say(report.line(report.checks.emplace_back(std::move(check)))); };
  note(fmt::format("model: {} parameters in {}, weights: {}", model.parameters().elements(), config.train.mixed_precision,
                   weights ? weights->info().origin : fmt::format("initial (seed {})", config.train.seed)));
  const auto describe_row = [](const ProbeRow& row) { return fmt::format("{}: {} tokens, {} documents", row.name, row.input.tokens.size(), row.input.documents.runs().size()); };
  note(fmt::format("data:  {}; {}; {}", config.data.dataset_path, describe_row(packed), describe_row(equal)));
  for (std::string& text : context_notes) note(std::move(text));
  for (const double logit : single.logits(packed.input, {}))
    if (!std::isfinite(logit))
      fail<NonFiniteError>("selfcheck", "the model's logits are not finite, so nothing can be said about its documents; look at the training that led there");
  if (influence_reach(config.model) == 0) note("note:  every layer's window is 1, so tokens never meet and there is no control");
  if (!options.broken.empty()) note(fmt::format("note:  '{}' is broken on purpose ({}): the checks must fail", options.broken, meaning_of(options.broken)));
  std::vector<AttentionBackend> backends{AttentionBackend::block, AttentionBackend::dense};
  if (rank.accelerator() != nullptr) {
    backends = {AttentionBackend::block};
    if (config.model.attention_backend == "cudnn") backends.push_back(AttentionBackend::cudnn);
    note(fmt::format("note:  on {} {} checked; dense is the CPU's", to_string(rank.device()), backends.size() > 1 ? "the backends block and cudnn are" : "the block backend alone is"));
  }
  const int64_t probed_ranks = shape.pp * shape.cp;
  const bool many = probed_ranks > few_ranks;
  std::unique_ptr<RanksLayout> ranks;
  if (stages.stages() > 1 || sharing.ranks > 1) {
    ranks = std::make_unique<RanksLayout>(shared_rank_options(config, probed_ranks), model, stages, forward, sharing);
  }
  set_widths(report, breaks, {ranks ? ranks->name() : "single", Mesh(shape).name()});
  const bool leaks = options.broken.empty() || std::find(leaking.begin(), leaking.end(), options.broken) != leaking.end();
  if (options.broken.empty() || options.broken == "dropped") check_layout(single, single, config.model, {equal, packed}, options.broken, backends, found);
  if (ranks) {
    if (many) {
      backends = {config.model.attention_backend == "dense" ? AttentionBackend::dense : AttentionBackend::block};
      note(fmt::format("note:  {} ranks are threads of this machine here, which may take minutes: they are checked with the {} backend alone", probed_ranks, name_of(backends[0])));
    }
    if (leaks) check_layout(*ranks, single, config.model, rows_for(*ranks, config.model, equal, packed, note), options.broken, backends, found);  // else nothing of it is broken
    if (sharing.ranks > 1) check_targets(*ranks, {packed, one_document_row(config.model, packed.input)}, options.broken, found);
  }
  if (shape.ranks() > 1 || stages.stages() > 1) check_parity(config, data.train, weights.get(), options.broken, breaks, found, note);
  if (!options.broken.empty() && report.passed()) refuse_break(options.broken, "all checks hold with it");
  return report;
}

}  // namespace quire
