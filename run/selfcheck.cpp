#include "run/selfcheck.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "run/data_source.h"
#include "run/layout_parity.h"
#include "run/rank_options.h"
#include "run/model_source.h"
#include "run/pipeline_layout.h"

namespace quire {

namespace {

constexpr int64_t most_documents_alone = 32;

CheckResult begin_result(const char* probe, const ProbeLayout& layout, const ProbeRow& row, const ProbeMode& mode) {
  CheckResult result;
  result.name = fmt::format("{}, {}", probe, row.name);
  result.layout = layout.name();
  result.backend = name_of(mode.backend);
  return result;
}

double percent(const CheckResult& result) { return 100 * result.changed_fraction; }

/// Rows of a matrix in host memory.
std::span<const double> row_of(const std::vector<double>& values, size_t rows, size_t row) {
  const size_t width = values.size() / rows;
  return std::span(values).subspan(row * width, width);
}

bool same_bits(std::span<const double> a, std::span<const double> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) { return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y); });
}

/// Largest |a - b|; infinity where one is not a number.
double difference(std::span<const double> a, std::span<const double> b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= most)) most = std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
  }
  return most;
}

/// The run that holds a place of the row.
const DocumentRun& document_at(const std::vector<DocumentRun>& runs, int64_t place) {
  return *std::find_if(runs.begin(), runs.end(), [&](const DocumentRun& run) { return place < int64_t{run.local} + run.length; });
}

}  // namespace

CheckResult leak_probe(ProbeLayout& layout, const ProbeRow& row, const ProbeMode& mode, std::span<const int64_t> changes, int64_t vocabulary) {
  CheckResult result = begin_result("leak probe", layout, row, mode);
  const size_t rows = row.input.tokens.size();
  const std::vector<DocumentRun> runs = row.input.documents.runs();
  const std::vector<double> before = layout.logits(row.input, mode);
  bool seen = true;
  for (const int64_t place : changes) {
    ProbeInput input = row.input;
    int32_t& token = input.tokens[static_cast<size_t>(place)];
    token = static_cast<int32_t>((token + 1) % vocabulary);
    const std::vector<double> after = layout.logits(input, mode);
    const DocumentRun& own = document_at(runs, place);
    int64_t changed = 0;
    for (size_t i = 0; i < rows; ++i) {
      const auto a = row_of(before, rows, i), b = row_of(after, rows, i);
      const bool same = same_bits(a, b);
      if (static_cast<int64_t>(i) == place && same) seen = false;
      if (same) continue;
      ++changed;
      if (static_cast<int64_t>(i) >= place && static_cast<int64_t>(i) < int64_t{own.local} + own.length) continue;
      ++result.leaked_rows;
      result.max_difference = std::max(result.max_difference, difference(a, b));
    }
    result.changed_fraction = std::max(result.changed_fraction, static_cast<double>(changed) / static_cast<double>(rows));
  }
  result.passed = seen && result.leaked_rows == 0;
  const char* documents = runs.size() == 2 ? "the two documents" : "the documents";
  if (!seen) result.words = "the changed token's own row did not change: the model does not look at its input";
  else if (result.passed) result.words = fmt::format("{:.1f} % of rows changed: {} are kept apart", percent(result), documents);
  else result.words = fmt::format("{:.1f} % of rows changed: {} are mixed up, {} rows saw what they must not", percent(result), documents, result.leaked_rows);
  return result;
}

CheckResult gradient_probe(ProbeLayout& layout, const ProbeRow& row, const ProbeMode& mode, std::span<const int64_t> documents) {
  CheckResult result = begin_result("gradient probe", layout, row, mode);
  const size_t rows = row.input.tokens.size();
  const std::vector<DocumentRun> runs = row.input.documents.runs();
  bool seen = true;
  for (const int64_t document : documents) {
    const DocumentRun& own = runs[static_cast<size_t>(document)];
    const auto begin = static_cast<size_t>(own.local), end = begin + static_cast<size_t>(own.length);
    ProbeInput input = row.input;
    const bool scored = std::any_of(input.targets.begin() + own.local, input.targets.begin() + own.local + own.length, [](int32_t t) { return t != ignored_target; });
    for (size_t i = 0; i < rows; ++i) {
      if (i < begin || i >= end) input.targets[i] = ignored_target;
      else if (!scored) input.targets[i] = input.tokens[i];  // a document that scores nothing: any target will do
    }
    const std::vector<double> gradient = layout.embedding_gradient(input, mode);
    int64_t touched = 0, inside = 0;
    for (size_t i = 0; i < rows; ++i) {
      const auto values = row_of(gradient, rows, i);
      double most = 0;
      for (const double x : values)
        if (!(std::abs(x) <= most)) most = std::isnan(x) ? std::numeric_limits<double>::infinity() : std::abs(x);
      if (most == 0) continue;
      ++touched;
      if (i >= begin && i < end) { ++inside; continue; }
      ++result.leaked_rows;
      result.max_difference = std::max(result.max_difference, most);
    }
    seen = seen && inside > 0;
    result.changed_fraction = std::max(result.changed_fraction, static_cast<double>(touched) / static_cast<double>(rows));
  }
  result.passed = seen && result.leaked_rows == 0;
  if (!seen) result.words = "a document's loss has no gradient at the document itself: the model does not look at its input";
  else if (result.passed) result.words = "one document's loss moves no other document: their gradients are exactly 0";
  else result.words = fmt::format("one document's loss moves others: {} rows of other documents have a gradient", result.leaked_rows);
  return result;
}

CheckResult alone_probe(ProbeLayout& layout, ProbeLayout& reference, const ProbeRow& row, const ProbeMode& mode) {
  CheckResult result = begin_result("packed against alone", layout, row, mode);
  const size_t rows = row.input.tokens.size();
  const std::vector<DocumentRun> runs = row.input.documents.runs();
  const std::vector<double> packed = layout.logits(row.input, mode);
  const ProbeMode whole{mode.backend, {}};
  const int64_t count = std::min<int64_t>(static_cast<int64_t>(runs.size()), most_documents_alone), number = static_cast<int64_t>(runs.size());
  int64_t compared = 0;
  for (int64_t n = 0; n < count; ++n) {
    const DocumentRun& run = runs[static_cast<size_t>(count == 1 ? 0 : n * (number - 1) / (count - 1))];
    const auto part = [&](const std::vector<int32_t>& all) { return std::vector<int32_t>(all.begin() + run.local, all.begin() + run.local + run.length); };
    const int64_t length = run.length;
    const std::vector<double> alone = reference.logits({part(row.input.tokens), part(row.input.targets), Documents::from_lengths(std::span(&length, 1))}, whole);
    double largest = 0;
    for (const double x : alone) largest = std::max(largest, std::abs(x));
    for (int64_t i = 0; i < length; ++i) {
      const double off = difference(row_of(packed, rows, static_cast<size_t>(run.local + i)), row_of(alone, static_cast<size_t>(length), static_cast<size_t>(i)));
      const double relative = off == 0 ? 0 : off / largest;
      if (!(relative <= layout.tolerance())) ++result.leaked_rows;
      result.max_difference = std::max(result.max_difference, relative);
    }
    compared += length;
  }
  result.changed_fraction = static_cast<double>(result.leaked_rows) / static_cast<double>(compared);
  result.passed = result.leaked_rows == 0;
  if (result.max_difference == 0) result.words = fmt::format("{} documents say in the row what they say alone, to the bit", count);
  else if (result.passed) result.words = fmt::format("{} documents say in the row what they say alone, to {:.1e} of the largest logit", count, result.max_difference);
  else result.words = fmt::format("{:.1f} % of rows say something else in the row than alone (by {:.1e} of the largest logit)", percent(result), result.max_difference);
  return result;
}

namespace {

/// Places to change: where influence has a bound, a document's last token is the one that the next document would see first.
std::vector<int64_t> places_to_change(const ProbeRow& row, bool bounded) {
  const std::vector<DocumentRun> runs = row.input.documents.runs();
  const auto last = [](const DocumentRun& run) { return int64_t{run.local} + run.length - 1; };
  if (runs.size() == 2) return {bounded ? last(runs[0]) : int64_t{0}};
  std::set<int64_t> places{0, last(runs[0])};
  const DocumentRun &middle = runs[runs.size() / 2], &late = runs[runs.size() - 2];
  places.insert(int64_t{middle.local} + middle.length / 2);
  places.insert(last(late));
  return {places.begin(), places.end()};
}

CheckResult as_control(CheckResult result, const std::string& broken) {
  result.name = fmt::format("control, {}: {}", broken, result.name);
  result.passed = result.leaked_rows > 0;
  if (result.name.ends_with("boundary records") || result.name.ends_with("layout parity")) {
    result.words = result.passed ? fmt::format("the check fails with the boundaries broken ({}), as it must: {}", broken, result.words)
                                 : fmt::format("the check holds even with the boundaries broken ({}): the check above proves nothing", broken);
    return result;
  }
  result.words = result.passed ? fmt::format("{:.1f} % of rows are touched with the boundaries broken ({}): the check sees a leak", percent(result), broken)
                               : fmt::format("no leak seen with the boundaries broken ({}): the checks above prove nothing", broken);
  return result;
}

}  // namespace

namespace {

/// What stages said of the records that reached them.
CheckResult record_check(const ProbeLayout& layout, const ProbeMode& mode, int64_t mismatches) {
  CheckResult result;
  result.name = "boundary records";
  result.layout = layout.name();
  result.backend = name_of(mode.backend);
  result.leaked_rows = mismatches;
  result.passed = mismatches == 0;
  result.words = result.passed ? "every stage received the boundaries that the plan has" : fmt::format("in {} passes a stage received other boundaries than the plan's", mismatches);
  return result;
}

/// Probes with one of the layout's breaks: each must see it.
void add_controls(ProbeLayout& layout, const ProbeRow& row, const ProbeMode& control, std::span<const int64_t> changes, std::span<const int64_t> scored,
                  int64_t vocabulary, std::vector<CheckResult>& results) {
  std::vector<CheckResult> seen{leak_probe(layout, row, control, changes, vocabulary), gradient_probe(layout, row, control, scored)};
  const int64_t mismatches = layout.take_mismatches();
  if (layout.carries_records() && control.broken != "dropped") seen.push_back(record_check(layout, control, mismatches));  // `dropped` is attention's own fault
  for (CheckResult& result : seen) results.push_back(as_control(std::move(result), control.broken));
}

}  // namespace

std::vector<CheckResult> check_layout(ProbeLayout& layout, ProbeLayout& reference, const ModelConfig& model, const std::vector<ProbeRow>& rows,
                                      const std::string& broken) {
  std::vector<CheckResult> results;
  const int64_t reach = influence_reach(model);
  for (const AttentionBackend backend : {AttentionBackend::block, AttentionBackend::dense}) {
    const ProbeMode mode{backend, broken};
    int64_t mismatches = 0;
    for (const ProbeRow& row : rows) {
      const int64_t documents = static_cast<int64_t>(row.input.documents.runs().size());
      const std::vector<int64_t> changes = places_to_change(row, reach >= 0);
      std::vector<int64_t> scored{documents - 1};
      if (documents > 2) scored.push_back(documents / 2);
      results.push_back(leak_probe(layout, row, mode, changes, model.vocab_size));
      results.push_back(gradient_probe(layout, row, mode, scored));
      results.push_back(alone_probe(layout, reference, row, mode));
      mismatches += layout.take_mismatches();
      if (reach == 0) continue;
      for (const std::string& name : layout.breaks()) add_controls(layout, row, {backend, name}, changes, scored, model.vocab_size, results);
    }
    if (layout.carries_records()) results.push_back(record_check(layout, mode, mismatches));
  }
  // What holds first, then what would be seen if it did not.
  std::stable_partition(results.begin(), results.end(), [](const CheckResult& result) { return !result.name.starts_with("control"); });
  return results;
}

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
  size_t name = 0, layout = 0;
  for (const CheckResult& check : checks) {
    name = std::max(name, check.name.size());
    layout = std::max(layout, check.layout.size());
  }
  for (const CheckResult& check : checks)
    text += fmt::format("{:<6} {:<{}}  {:<{}}  {:<5}  {}\n", check.passed ? "ok" : "FAILED", check.name, name, check.layout, layout, check.backend, check.words);
  const auto failed = std::count_if(checks.begin(), checks.end(), [](const CheckResult& check) { return !check.passed; });
  text += failed == 0 ? fmt::format("{} checks passed: documents are kept apart\n", checks.size())
                      : fmt::format("{} of {} checks FAILED\n", failed, checks.size());
  return text;
}

namespace {

void check_break(const std::string& broken, const std::vector<std::string>& known) {
  if (broken.empty() || std::find(known.begin(), known.end(), broken) != known.end()) return;
  if (known.size() == 1 && (broken == "swapped" || broken.starts_with("dropped@stage")))
    fail<ConfigError>("selfcheck", "--break {} needs boundaries that travel between pipeline stages: set distributed.pp to 2 or more; known: {}", broken, fmt::join(known, ", "));
  const std::string near = nearest(broken, known);
  fail<ConfigError>("selfcheck", "--break '{}' is unknown; known: {}{}", broken, fmt::join(known, ", "), near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
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

std::vector<CheckResult> check_parity(const Config& config, const std::shared_ptr<const Corpus>& corpus, ModelSource* weights, const std::string& broken,
                                      const PipelineStages& stages, std::vector<std::string>& notes) {
  const std::string in_force = broken == "dropped" ? std::string() : broken;  // attention's own fault has no part in a training step
  std::vector<CheckResult> results{parity_check(config, corpus, weights, in_force)};
  const auto seen = [&](const std::string& name) {
    const bool sees = parity_sees(config, corpus, name);
    if (!sees) notes.push_back(fmt::format("note:  '{}' would change nothing in the first training step, so layout parity has no such control", name));
    return sees;
  };
  for (const std::string& name : pipeline_breaks(stages))
    if (name != "dropped" && seen(name)) results.push_back(as_control(parity_check(config, corpus, weights, name), name));
  if (seen("unpacked")) results.push_back(unpacked_control(config, corpus, weights));
  return results;
}

}  // namespace

SelfcheckReport selfcheck(const Config& config, const SelfcheckOptions& options, FileSystem& fs) {
  const MeshShape shape = mesh_shape(config);
  const Config::Distributed& d = config.distributed;
  const PipelineStages stages = cut_into_stages(config.model, d.pp_schedule, d.pp, d.pp_chunks, d.pp_layers);
  check_break(options.broken, pipeline_breaks(stages));
  if (config.model.vocab_size < 2) fail<ConfigError>("selfcheck", "model.vocab_size is {}: no token can be replaced by another; allowed: 2 or more", config.model.vocab_size);
  SelfcheckReport report;
  const CorpusSplit data = open_data(config, fs);
  const std::unique_ptr<ModelSource> weights = weights_of(config, fs);
  Rank rank(rank_options(config));
  Model model(rank, config.model, config.dtype());
  if (weights) weights->load(rank, model);
  else model.initialize(rank, static_cast<uint64_t>(config.train.seed));

  const ProbeRow packed = packed_probe_row(config, data.train, most_tokens(options, config.model.vocab_size));
  const ProbeRow equal = equal_probe_row(config.model, packed.input, most_tokens(options, config.model.vocab_size));
  ForwardOptions forward;
  forward.recomputation = recomputation_from(config.train.activation_checkpointing);
  forward.z_weight = config.train.z_loss_weight;
  SingleLayout single(rank, model, forward);

  report.notes.push_back(fmt::format("model: {} parameters in {}, weights: {}", model.parameters().elements(), config.train.mixed_precision,
                                     weights ? weights->info().origin : fmt::format("initial (seed {})", config.train.seed)));
  const auto describe_row = [](const ProbeRow& row) { return fmt::format("{}: {} tokens, {} documents", row.name, row.input.tokens.size(), row.input.documents.runs().size()); };
  report.notes.push_back(fmt::format("data:  {}; {}; {}", config.data.dataset_path, describe_row(packed), describe_row(equal)));
  for (const double logit : single.logits(packed.input, {}))
    if (!std::isfinite(logit))
      fail<NonFiniteError>("selfcheck", "the model's logits are not finite, so nothing can be said about its documents; look at the training that led there");
  if (influence_reach(config.model) == 0) report.notes.push_back("note:  every layer's window is 1, so tokens never meet and there is no control");
  if (!options.broken.empty()) report.notes.push_back(fmt::format("note:  '{}' is broken on purpose: the checks must fail", options.broken));
  const auto add = [&](std::vector<CheckResult> checks) { report.checks.insert(report.checks.end(), checks.begin(), checks.end()); };
  if (options.broken.empty() || options.broken == "dropped") add(check_layout(single, single, config.model, {equal, packed}, options.broken));
  if (stages.stages() > 1) {
    RankOptions of_stage = rank_options(config);
    of_stage.threads = std::max<int>(1, of_stage.threads / static_cast<int>(shape.pp));
    PipelineLayout pipeline(of_stage, model, stages, forward);
    add(check_layout(pipeline, single, config.model, {equal, packed}, options.broken));
  }
  if (shape.ranks() > 1 || stages.stages() > 1) add(check_parity(config, data.train, weights.get(), options.broken, stages, report.notes));
  return report;
}

}  // namespace quire
