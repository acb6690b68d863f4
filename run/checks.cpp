#include "run/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "run/ranks_layout.h"

namespace quire {

namespace {

constexpr int64_t most_documents_alone = 32;
constexpr AttentionBackend all_backends[] = {AttentionBackend::block, AttentionBackend::dense};

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
  else if (result.passed && runs.size() == 2 && runs[0].length == runs[1].length) result.words = fmt::format("{:.1f} % of rows changed: {} are kept apart", percent(result), documents);
  else if (result.passed) result.words = fmt::format("only rows of the changed document changed ({:.1f} % of all{})", percent(result), changes.size() > 1 ? " at most" : "");
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

}  // namespace

CheckResult as_control(CheckResult result, const std::string& broken) {
  result.name = fmt::format("control, {}: {}", broken, result.name);
  result.passed = result.leaked_rows > 0;
  if (result.name.ends_with("boundary records") || result.name.ends_with("layout parity") || result.name.find(": targets") != std::string::npos) {
    result.words = result.passed ? fmt::format("the check fails where something is broken ({}), as it must: {}", broken, result.words)
                                 : fmt::format("the check holds even where something is broken ({}): the check above proves nothing", broken);
    return result;
  }
  result.words = result.passed ? fmt::format("{:.1f} % of rows are touched with the boundaries broken ({}): the check sees a leak", percent(result), broken)
                               : fmt::format("no leak seen with the boundaries broken ({}): the checks above prove nothing", broken);
  return result;
}

namespace {

/// What ranks said of the records that reached them.
CheckResult record_check(const ProbeLayout& layout, const ProbeMode& mode, int64_t mismatches) {
  CheckResult result;
  result.name = "boundary records";
  result.layout = layout.name();
  result.backend = name_of(mode.backend);
  result.leaked_rows = mismatches;
  result.passed = mismatches == 0;
  result.words = result.passed ? "every rank received the boundaries that the plan has" : fmt::format("in {} passes a rank received other boundaries than the plan's", mismatches);
  return result;
}

void add_once(std::vector<int64_t>& all, int64_t value) {
  if (value >= 0 && std::find(all.begin(), all.end(), value) == all.end()) all.push_back(value);
}

/// Whether the break is one of records, or of attention that takes them for something else.
bool breaks_records(const std::string& broken) { return broken == "swapped" || broken.starts_with("dropped@"); }

/// Probes with one of the layout's breaks: each must see it, where the row shows it.
void add_controls(ProbeLayout& layout, const ProbeRow& row, const ProbeMode& control, std::vector<int64_t> changes, std::vector<int64_t> scored,
                  int64_t vocabulary, const CheckSink& found) {
  const std::optional<ProbeLeak> leak = layout.leak_of(row.input, control.broken);
  if (!leak) return;
  add_once(changes, leak->place);
  add_once(scored, leak->document);
  std::vector<CheckResult> seen{leak_probe(layout, row, control, changes, vocabulary), gradient_probe(layout, row, control, scored)};
  const int64_t mismatches = layout.take_mismatches();
  if (layout.carries_records() && breaks_records(control.broken)) seen.push_back(record_check(layout, control, mismatches));
  for (CheckResult& result : seen) found(as_control(std::move(result), control.broken));
}

}  // namespace

CheckResult target_check(RanksLayout& layout, const ProbeRow& row, const ProbeMode& mode) {
  CheckResult result = begin_result("targets", layout, row, mode);
  using Pair = std::pair<int32_t, int32_t>;
  std::vector<Pair> expected, off;
  for (size_t i = 0; i < row.input.tokens.size(); ++i) expected.emplace_back(row.input.tokens[i], row.input.targets[i]);
  std::sort(expected.begin(), expected.end());
  const std::vector<Pair> found = layout.targets(row.input, mode);
  std::set_difference(expected.begin(), expected.end(), found.begin(), found.end(), std::back_inserter(off));
  result.leaked_rows = static_cast<int64_t>(std::max(off.size(), found.size() > expected.size() ? found.size() - expected.size() : 0));
  result.changed_fraction = static_cast<double>(result.leaked_rows) / static_cast<double>(expected.size());
  result.passed = result.leaked_rows == 0;
  result.words = result.passed ? fmt::format("all {} tokens have their targets after the cut", expected.size())
                               : fmt::format("{} of {} tokens lost their targets in the cut", result.leaked_rows, expected.size());
  return result;
}

void check_layout(ProbeLayout& layout, ProbeLayout& reference, const ModelConfig& model, const std::vector<ProbeRow>& rows, const std::string& broken,
                  std::span<const AttentionBackend> backends, const CheckSink& found) {
  const int64_t reach = influence_reach(model);
  const auto scored_documents = [](const ProbeRow& row) {
    const int64_t documents = static_cast<int64_t>(row.input.documents.runs().size());
    return documents > 2 ? std::vector<int64_t>{documents - 1, documents / 2} : std::vector<int64_t>{documents - 1};
  };
  for (const AttentionBackend backend : backends) {
    const ProbeMode mode{backend, broken};
    int64_t mismatches = 0;
    for (const ProbeRow& row : rows) {
      found(leak_probe(layout, row, mode, places_to_change(row, reach >= 0), model.vocab_size));
      found(gradient_probe(layout, row, mode, scored_documents(row)));
      found(alone_probe(layout, reference, row, mode));
      mismatches += layout.take_mismatches();
    }
    if (layout.carries_records()) found(record_check(layout, mode, mismatches));
  }
  if (reach == 0) return;
  for (const AttentionBackend backend : backends)
    for (const ProbeRow& row : rows)
      for (const std::string& name : layout.breaks())
        add_controls(layout, row, {backend, name}, places_to_change(row, reach >= 0), scored_documents(row), model.vocab_size, found);
}

std::vector<CheckResult> check_layout(ProbeLayout& layout, ProbeLayout& reference, const ModelConfig& model, const std::vector<ProbeRow>& rows,
                                      const std::string& broken) {
  std::vector<CheckResult> results;
  check_layout(layout, reference, model, rows, broken, all_backends, [&](CheckResult result) { results.push_back(std::move(result)); });
  return results;
}

}  // namespace quire
