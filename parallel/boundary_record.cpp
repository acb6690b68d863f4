#include "parallel/boundary_record.h"

#include <cstddef>
#include <cstring>
#include <vector>

namespace quire {

namespace {

constexpr uint64_t record_magic = 0x31646e4265726951;  // "QireBnd1"

/// The header's words of 8 bytes; the last one is zero.
struct Layout {
  uint64_t magic;
  int64_t step, stage, microbatch, tokens;
  uint64_t digest, plan, spare;
};
static_assert(sizeof(Layout) == boundary_header_words * sizeof(int32_t) && offsetof(Layout, digest) == boundary_digest_offset);

constexpr int64_t most_stages = int64_t{1} << 12, most_layers = int64_t{1} << 12;  ///< of codes

bool is_whole(const Documents& documents) {
  for (int64_t i = 0; i < documents.tokens(); ++i)
    if (documents.indices()[static_cast<size_t>(i)] != i) return false;
  return true;
}

}  // namespace

Shape boundary_record_shape(const Documents& documents) { return {boundary_header_words + documents.tokens() * (is_whole(documents) ? 1 : 2)}; }

Tensor make_boundary_record(Rank& rank, const BoundaryHeader& header, const Documents& documents) {
  const Layout layout{record_magic, header.step, header.stage, header.microbatch, documents.tokens(), documents.digest(), header.plan, 0};
  std::vector<int32_t> words(static_cast<size_t>(boundary_header_words));
  std::memcpy(words.data(), &layout, sizeof layout);
  if (!is_whole(documents)) words.insert(words.end(), documents.indices().begin(), documents.indices().end());
  words.insert(words.end(), documents.starts().begin(), documents.starts().end());
  return Tensor::from<int32_t>(rank, {static_cast<int64_t>(words.size())}, words, Category::data);
}

BoundaryRecord read_boundary_record(const Tensor& record, int64_t tokens) {
  const std::vector<int32_t> words = record.to_vector<int32_t>();
  Layout layout{};
  if (static_cast<int64_t>(words.size()) < boundary_header_words) fail<BoundaryError>("boundary_record", "a record of {} bytes; allowed: 64 or more", words.size() * 4);
  std::memcpy(&layout, words.data(), sizeof layout);
  const int64_t given = static_cast<int64_t>(words.size()) - boundary_header_words;
  if (layout.magic != record_magic) fail<BoundaryError>("boundary_record", "what was received is no record of boundaries");
  if (layout.tokens != tokens || (given != tokens && given != 2 * tokens))
    fail<BoundaryError>("boundary_record", "a record for {} tokens was received where {} were due", layout.tokens, tokens);
  BoundaryRecord result{{layout.step, layout.stage, layout.microbatch, layout.plan}, layout.digest, {}};
  const std::span<const int32_t> body = std::span(words).subspan(boundary_header_words), starts = body.last(static_cast<size_t>(tokens));
  try {
    if (given == tokens) result.documents = Documents::from_starts(starts);
    else result.documents = Documents::shard({body.begin(), body.begin() + tokens}, {starts.begin(), starts.end()});
  } catch (const DataError& error) {
    fail<BoundaryError>("boundary_record", "the boundaries received for stage {}, microbatch {} can not be: {}", layout.stage, layout.microbatch, error.what());
  }
  return result;
}

double code_of(const BoundaryMismatch& mismatch) {
  return static_cast<double>(1 + (mismatch.microbatch * most_stages + mismatch.stage) * most_layers + mismatch.layer + 1);
}

BoundaryMismatch mismatch_of(double code) {
  const int64_t number = static_cast<int64_t>(code) - 1;
  return {number / most_layers % most_stages, number / most_layers / most_stages, number % most_layers - 1};
}

}  // namespace quire
