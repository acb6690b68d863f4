#include "parallel/boundary_record.h"

#include <cstring>
#include <vector>

namespace quire {

namespace {

constexpr uint64_t record_magic = 0x31646e4265726951;  // "QireBnd1"

/// The header's words of 8 bytes; the last two are zero.
struct Layout {
  uint64_t magic;
  int64_t step, stage, microbatch, tokens;
  uint64_t digest;
  uint64_t spare[2];
};
static_assert(sizeof(Layout) == boundary_header_words * sizeof(int32_t));

}  // namespace

Shape boundary_record_shape(int64_t tokens) { return {boundary_header_words + tokens}; }

Tensor make_boundary_record(Rank& rank, const BoundaryHeader& header, const Documents& documents) {
  const int64_t tokens = documents.tokens();
  for (int64_t i = 0; i < tokens; ++i)
    if (documents.indices()[static_cast<size_t>(i)] != i)
      fail<UnsupportedError>("boundary_record", "token {} of the microbatch has index {}: a shard does not travel between stages", i, documents.indices()[static_cast<size_t>(i)]);
  const Layout layout{record_magic, header.step, header.stage, header.microbatch, tokens, documents.digest(), {0, 0}};
  std::vector<int32_t> words(static_cast<size_t>(boundary_header_words + tokens));
  std::memcpy(words.data(), &layout, sizeof layout);
  std::copy(documents.starts().begin(), documents.starts().end(), words.begin() + boundary_header_words);
  return Tensor::from<int32_t>(rank, boundary_record_shape(tokens), words, Category::data);
}

BoundaryRecord read_boundary_record(const Tensor& record) {
  const std::vector<int32_t> words = record.to_vector<int32_t>();
  Layout layout{};
  if (static_cast<int64_t>(words.size()) < boundary_header_words) fail<BoundaryError>("boundary_record", "a record of {} bytes; allowed: 64 or more", words.size() * 4);
  std::memcpy(&layout, words.data(), sizeof layout);
  const int64_t tokens = static_cast<int64_t>(words.size()) - boundary_header_words;
  if (layout.magic != record_magic) fail<BoundaryError>("boundary_record", "what was received is no record of boundaries");
  if (layout.tokens != tokens) fail<BoundaryError>("boundary_record", "a record for {} tokens was received where {} were due", layout.tokens, tokens);
  BoundaryRecord result{{layout.step, layout.stage, layout.microbatch}, layout.digest, {}};
  try {
    result.documents = Documents::from_starts(std::span(words).subspan(boundary_header_words));
  } catch (const DataError& error) {
    fail<BoundaryError>("boundary_record", "the boundaries received for stage {}, microbatch {} can not be: {}", layout.stage, layout.microbatch, error.what());
  }
  return result;
}

}  // namespace quire
