#include "data/loader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "data/arrangement.h"
#include "runtime/error.h"

namespace quire {

namespace {

/// Targets of one piece, of which `tokens` are the inputs, or empty where those were not read. Returns the targets that count.
int64_t load_targets(const Corpus& corpus, const Piece& piece, std::span<const int32_t> tokens, std::span<int32_t> targets,
                     std::vector<uint8_t>& mask) {
  const DocumentInfo document = corpus.document(piece.document);
  const bool last = piece.offset + piece.length == document.length;
  const size_t count = targets.size() - (last ? 1 : 0);
  if (last) targets.back() = ignored_target;
  if (tokens.empty()) {
    corpus.read(piece.document, piece.offset + 1, targets.first(count));
  } else {
    std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
    if (!last) corpus.read(piece.document, piece.offset + piece.length, targets.last(1));
  }
  if (!corpus.has_mask() || document.valid == document.length - 1) return static_cast<int64_t>(count);
  mask.resize(count);
  corpus.read_mask(piece.document, piece.offset + 1, mask);
  int64_t valid = 0;
  for (size_t i = 0; i < count; ++i) {
    if (mask[i]) ++valid;
    else targets[i] = ignored_target;
  }
  return valid;
}

}  // namespace

std::string_view name_of(Content content) {
  switch (content) {
    case Content::all: return "all";
    case Content::tokens: return "tokens";
    case Content::targets: return "targets";
    case Content::documents: return "documents";
  }
  return "";
}

HostBatch load_rows(const Corpus& corpus, std::span<const Row> rows, Content content) {
  const bool with_tokens = content == Content::all || content == Content::tokens;
  const bool with_targets = content == Content::all || content == Content::targets;
  HostBatch batch;
  std::vector<int64_t> lengths;
  int64_t total = 0;
  for (const Row& row : rows)
    for (const Piece& piece : row) {
      lengths.push_back(piece.length);
      total += piece.length;
      batch.valid += piece.valid;
    }
  if (total > std::numeric_limits<int32_t>::max())
    fail<DataError>("loader", "a microbatch of {} tokens; at most 2^31 - 1: lower microbatch_size or seq_len", total);
  if (with_tokens) batch.tokens.resize(static_cast<size_t>(total));
  if (with_targets) batch.targets.resize(static_cast<size_t>(total));
  batch.documents = Documents::from_lengths(lengths);
  batch.rows = static_cast<int64_t>(rows.size());
  batch.plan.assign(rows.begin(), rows.end());
  size_t at = 0;
  std::vector<uint8_t> mask;
  for (const Row& row : rows)
    for (const Piece& piece : row) {
      const size_t n = static_cast<size_t>(piece.length), first = std::exchange(at, at + n);
      std::span<int32_t> tokens;
      if (with_tokens) {
        tokens = std::span(batch.tokens).subspan(first, n);
        corpus.read(piece.document, piece.offset, tokens);
      }
      if (!with_targets) continue;
      const int64_t valid = load_targets(corpus, piece, tokens, std::span(batch.targets).subspan(first, n), mask);
      if (valid != piece.valid)  // the denominator of the loss was taken from the plan
        fail<DataError>("loader", "document {} of '{}' has {} counted targets in tokens [{}, {}), the index says {}: it is damaged",
                        piece.document, corpus.info().path, valid, piece.offset, piece.offset + piece.length, piece.valid);
    }
  return batch;
}

std::vector<int64_t> shared_microbatches(int64_t microbatches, const BatchShare& share, bool arranged) {
  std::vector<int64_t> numbers;
  if (arranged)
    for (int64_t m = share.index; m < microbatches; m += share.count) numbers.push_back(m);
  else
    for (int64_t m = microbatches * share.index / share.count; m < microbatches * (share.index + 1) / share.count; ++m) numbers.push_back(m);
  return numbers;
}

Loader::Loader(std::shared_ptr<const Corpus> corpus, const LoaderSettings& settings, BatchShare share)
    : corpus_(std::move(corpus)), settings_(settings), share_(share), plan_(corpus_, settings.packing), state_(plan_.state()) {
  if (settings.global_batch_size < 1) fail<ConfigError>("loader", "global_batch_size {} is below 1", settings.global_batch_size);
  if (settings.microbatch_size < 1) fail<ConfigError>("loader", "microbatch_size {} is below 1", settings.microbatch_size);
  if (settings.prefetch < 0) fail<ConfigError>("loader", "prefetch {} is below 0", settings.prefetch);
  if (share.count < 1 || share.index < 0 || share.index >= share.count)
    fail<ConfigError>("loader", "share {} of {} does not exist", share.index, share.count);
}

Loader::~Loader() { stop(); }

Loader::Entry Loader::produce() {
  Entry entry;
  try {
    LoadedStep& step = entry.step;
    step.plan = plan_.next_step(settings_.global_batch_size);
    entry.after = plan_.state();
    if (settings_.row_cost) arrange(step.plan.rows);
    const int64_t rows = static_cast<int64_t>(step.plan.rows.size()), size = settings_.microbatch_size;
    const int64_t microbatches = (rows + size - 1) / size;
    for (const int64_t m : shared_microbatches(microbatches, share_, static_cast<bool>(settings_.row_cost))) {
      step.microbatches.push_back(load_rows(
          *corpus_,
          std::span(step.plan.rows).subspan(static_cast<size_t>(m * size), static_cast<size_t>(std::min(size, rows - m * size))),
          settings_.content));
      step.microbatches.back().index = m;
      if (settings_.read) settings_.read(step.microbatches.back());
    }
  } catch (...) {
    entry.error = std::current_exception();
  }
  return entry;
}

void Loader::arrange(std::vector<Row>& rows) const {
  std::vector<int64_t> costs;
  for (const Row& row : rows) costs.push_back(settings_.row_cost(row));
  std::vector<Row> arranged;
  for (const size_t row : arrange_rows(costs, settings_.microbatch_size)) arranged.push_back(std::move(rows[row]));
  rows = std::move(arranged);
}

void Loader::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || static_cast<int64_t>(ready_.size()) < settings_.prefetch; });
      if (stopping_) return;
    }
    Entry entry = produce();
    const bool last = entry.error || entry.step.empty();
    {
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(entry));
    }
    changed_.notify_all();
    if (last) return;
  }
}

void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  stopping_ = false;
  ready_.clear();
}

LoadedStep Loader::next_step() {
  if (error_) std::rethrow_exception(error_);
  if (ended_) return {};
  Entry entry;
  if (settings_.prefetch == 0) {
    entry = produce();
  } else {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty(); });
    entry = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
  }
  if (entry.error) {
    error_ = entry.error;
    std::rethrow_exception(error_);
  }
  ended_ = entry.step.empty();
  state_ = entry.after;
  return std::move(entry.step);
}

void Loader::restore(const PackingState& state) {
  stop();
  error_ = nullptr;
  ended_ = false;
  try {
    plan_.restore(state);
  } catch (...) {
    plan_.restore(state_);  // what was read ahead is forgotten: continue where the caller is
    throw;
  }
  state_ = plan_.state();
}

LoaderSettings evaluation_settings(LoaderSettings settings) {
  settings.packing.shuffle = false;
  settings.packing.epochs = 1;
  settings.row_cost = {};  // nothing is added up over microbatches that must cost alike
  return settings;
}

}  // namespace quire
