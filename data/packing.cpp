#include "data/packing.h"

#include <algorithm>
#include <limits>

#include "data/best_fit.h"
#include "runtime/digest.h"
#include "runtime/error.h"

namespace quire {

namespace {

uint64_t fingerprint_of(const Corpus& corpus, const PackingSettings& s) {
  Digest digest;
  const int64_t buffer = s.strategy == PackingStrategy::bfd ? s.buffer : 0;
  for (const uint64_t value : {corpus.digest(), static_cast<uint64_t>(corpus.document_count()), static_cast<uint64_t>(s.seq_len),
                               static_cast<uint64_t>(s.strategy), static_cast<uint64_t>(s.overflow), static_cast<uint64_t>(buffer),
                               s.shuffle ? s.seed : 0, static_cast<uint64_t>(s.shuffle)})
    digest.update_value(value);
  return std::max<uint64_t>(digest.value(), 1);
}

void check_settings(const Corpus& corpus, const PackingSettings& s) {
  if (s.seq_len < 1 || s.seq_len > std::numeric_limits<int32_t>::max())
    fail<ConfigError>("packing", "seq_len {} is not in [1, 2^31)", s.seq_len);
  if (s.buffer < 1) fail<ConfigError>("packing", "buffer {} is below 1", s.buffer);
  if (s.epochs < 0) fail<ConfigError>("packing", "epochs {} is below 0 (0 is for no end)", s.epochs);
  const int64_t documents = corpus.document_count();
  if (documents < 1) fail<DataError>("packing", "'{}' has no documents", corpus.info().path);
  if (s.overflow != Overflow::refuse || corpus.info().longest <= s.seq_len) return;
  for (int64_t d = 0; d < documents; ++d)
    if (const int64_t length = corpus.length(d); length > s.seq_len)
      fail<DataError>("packing", "document {} of '{}' has {} tokens, a row {}; raise seq_len, or set overflow to split or truncate",
                      d, corpus.info().path, length, s.seq_len);
}

}  // namespace

PackingPlan::PackingPlan(std::shared_ptr<const Corpus> corpus, const PackingSettings& settings)
    : corpus_(std::move(corpus)), settings_(settings) {
  check_settings(*corpus_, settings_);
  state_.fingerprint = fingerprint_of(*corpus_, settings_);
  start_epoch();
}

void PackingPlan::start_epoch() {
  const uint64_t stream = random_bits(settings_.seed, stream_of("data.shuffle"), static_cast<uint64_t>(state_.epoch), 0);
  order_.emplace(static_cast<uint64_t>(corpus_->document_count()), settings_.seed, stream);
  buffer_.clear();
}

int64_t PackingPlan::document_at(int64_t position) const {
  return settings_.shuffle ? static_cast<int64_t>((*order_)(static_cast<uint64_t>(position))) : position;
}

int64_t PackingPlan::packed_length(const DocumentInfo& document) const {
  return settings_.overflow == Overflow::truncate ? std::min(document.length, settings_.seq_len) : document.length;
}

/// The next at most `room` inputs of the stream's document at `position`; advances position and offset.
Piece PackingPlan::take_piece(int64_t& position, int64_t& offset, int64_t room) const {
  const int64_t d = document_at(position);
  const DocumentInfo document = corpus_->document(d);
  const int64_t length = std::min(packed_length(document) - offset, room);
  const Piece piece{d, offset, length, corpus_->valid_in(d, document, offset, length)};
  offset += length;
  if (offset == packed_length(document)) {
    ++position;
    offset = 0;
  }
  return piece;
}

void PackingPlan::concat_row(Row& row) {
  for (int64_t room = settings_.seq_len; room > 0 && state_.position < corpus_->document_count(); room -= row.back().length)
    row.push_back(take_piece(state_.position, state_.offset, room));
}

void PackingPlan::single_row(Row& row) { row.push_back(take_piece(state_.position, state_.offset, settings_.seq_len)); }

/// Packs the pieces from the state's position on. Rows are shuffled, or the long documents of every buffer would come first.
void PackingPlan::fill_buffer() {
  std::vector<Piece> pieces;
  std::vector<int64_t> lengths;
  buffer_end_position_ = state_.position;
  buffer_end_offset_ = state_.offset;
  while (static_cast<int64_t>(pieces.size()) < settings_.buffer && buffer_end_position_ < corpus_->document_count()) {
    pieces.push_back(take_piece(buffer_end_position_, buffer_end_offset_, settings_.seq_len));
    lengths.push_back(pieces.back().length);
  }
  std::vector<std::vector<int64_t>> bins = best_fit_decreasing(lengths, settings_.seq_len);
  const uint64_t stream = random_bits(settings_.seed, stream_of("data.rows"), static_cast<uint64_t>(state_.epoch),
                                      static_cast<uint64_t>(state_.position));
  const Permutation order(bins.size(), settings_.seed, stream);
  buffer_.assign(bins.size(), {});
  for (size_t i = 0; i < bins.size(); ++i) {
    std::vector<int64_t>& bin = bins[settings_.shuffle ? order(i) : i];
    std::sort(bin.begin(), bin.end());  // the order of the stream
    for (const int64_t item : bin) buffer_[i].push_back(pieces[static_cast<size_t>(item)]);
  }
}

void PackingPlan::bfd_row(Row& row) {
  if (buffer_.empty()) fill_buffer();
  row = std::move(buffer_[static_cast<size_t>(state_.row)]);
  if (++state_.row < static_cast<int64_t>(buffer_.size())) return;
  state_.position = buffer_end_position_;
  state_.offset = buffer_end_offset_;
  state_.row = 0;
  buffer_.clear();
}

bool PackingPlan::next_row(Row& row) {
  if (finished()) return false;
  switch (settings_.strategy) {
    case PackingStrategy::concat: concat_row(row); break;
    case PackingStrategy::bfd: bfd_row(row); break;
    case PackingStrategy::single: single_row(row); break;
  }
  settle();
  return true;
}

/// At an epoch's end the state is the next epoch's beginning, so that a state has one form only.
void PackingPlan::settle() {
  if (state_.position < corpus_->document_count()) return;
  ++state_.epoch;
  state_.position = state_.offset = state_.row = 0;
  start_epoch();
}

StepPlan PackingPlan::next_step(int64_t global_batch_size) {
  if (global_batch_size < 1) fail<ConfigError>("packing", "global_batch_size {} is below 1", global_batch_size);
  StepPlan plan;
  plan.step = state_.step;
  plan.epoch = state_.epoch;
  Digest digest;
  for (int64_t i = 0; i < global_batch_size; ++i) {
    Row row;
    if (!next_row(row)) break;
    digest.update_value(static_cast<int64_t>(row.size()));
    digest.update(std::as_bytes(std::span(row)));
    for (const Piece& piece : row) {
      plan.tokens += piece.length;
      plan.valid += piece.valid;
      plan.documents += piece.offset == 0;
      if (piece.offset == 0 && settings_.overflow == Overflow::truncate) {
        const DocumentInfo document = corpus_->document(piece.document);
        plan.dropped_tokens += document.length - packed_length(document);
      }
    }
    plan.pieces += static_cast<int64_t>(row.size());
    plan.rows.push_back(std::move(row));
  }
  plan.digest = digest.value();
  if (!plan.empty()) ++state_.step;
  return plan;
}

void PackingPlan::restore(const PackingState& state) {
  const PackingState before = state_;
  if (state.fingerprint != 0 && state.fingerprint != before.fingerprint)
    fail<ConfigError>("packing",
                      "the saved state belongs to other data or packing settings ({}, here {}); seq_len, strategy, overflow, "
                      "buffer, data_seed and corpus must "
                      "be those of the run that is resumed",
                      to_hex(state.fingerprint), to_hex(before.fingerprint));
  const int64_t documents = corpus_->document_count();
  const bool possible = state.step >= 0 && state.epoch >= 0 && state.position >= 0 && state.position < documents &&
                        state.offset >= 0 && state.row >= 0 && (settings_.strategy == PackingStrategy::bfd || state.row == 0);
  if (!possible) fail<DataError>("packing", "the saved state is impossible: {} of {} documents", state.to_json(), documents);
  state_ = state;
  state_.fingerprint = before.fingerprint;
  start_epoch();
  bool fits = state.offset < packed_length(corpus_->document(document_at(state.position)));
  if (fits && state.row > 0) {
    fill_buffer();
    fits = state.row < static_cast<int64_t>(buffer_.size());
  }
  if (fits) return;
  restore(before);
  fail<DataError>("packing", "the saved state is impossible: {}", state.to_json());
}

}  // namespace quire
