// Documents counted literally, and the operations that count them on any rank.
#pragma once
#include "ops/kernel_test.h"

namespace quire::test::doc_ids {

constexpr int32_t eos = 2;

using Numbers = std::vector<int32_t>;
struct DocumentNumbers { Numbers starts, ids, positions; };

/// The counter loop: after each EOS a document begins.
inline DocumentNumbers literal(const Numbers& tokens) {
  DocumentNumbers out;
  int32_t start = 0, id = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    out.starts.push_back(start);
    out.ids.push_back(id);
    out.positions.push_back(static_cast<int32_t>(i) - start);
    if (tokens[i] == eos) {
      start = static_cast<int32_t>(i + 1);
      ++id;
    }
  }
  return out;
}

/// make(count, in, out) gives the arguments.
template <class Make>
Numbers run(Rank& rank, const Numbers& in, const Make& make) {
  const int64_t count = static_cast<int64_t>(in.size());
  const Placed<int32_t> on_in(rank, in), out(rank, count);
  dispatch(rank, make(count, on_in.data(), out.data()));
  return out.values();
}
inline Numbers starts_from_eos(Rank& rank, const Numbers& tokens) {
  return run(rank, tokens, [](int64_t count, const int32_t* in, int32_t* out) { return StartsFromEosArgs{count, in, eos, out}; });
}
inline Numbers ids_from_starts(Rank& rank, const Numbers& starts) {
  return run(rank, starts, [](int64_t count, const int32_t* in, int32_t* out) { return DocumentIdsArgs{count, in, out}; });
}
inline Numbers starts_from_ids(Rank& rank, const Numbers& ids) {
  return run(rank, ids, [](int64_t count, const int32_t* in, int32_t* out) { return StartsFromIdsArgs{count, in, out}; });
}
inline Numbers positions(Rank& rank, const Numbers& indices, const Numbers& starts) {
  const Placed<int32_t> on_indices(rank, indices);
  return run(rank, starts, [&](int64_t count, const int32_t* in, int32_t* out) { return PositionsArgs{count, on_indices.data(), in, out}; });
}

/// Tokens of which about one in `per_eos` is EOS (0: none).
inline Numbers random_tokens(std::mt19937_64& random, int64_t count, uint64_t per_eos) {
  Numbers tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(per_eos && random() % per_eos == 0 ? eos : 3 + static_cast<int32_t>(random() % 50));
  return tokens;
}

/// All four agree with the counter loop.
inline void check(Rank& rank, const Numbers& tokens) {
  const DocumentNumbers expected = literal(tokens);
  Numbers spread = expected.ids, indices(tokens.size());
  for (int32_t& id : spread) id = 3 * id - 1000;  // ascending, not dense
  std::iota(indices.begin(), indices.end(), 0);
  const bool right = starts_from_eos(rank, tokens) == expected.starts && ids_from_starts(rank, expected.starts) == expected.ids &&
                     starts_from_ids(rank, expected.ids) == expected.starts && starts_from_ids(rank, spread) == expected.starts &&
                     positions(rank, indices, expected.starts) == expected.positions;
  BOOST_TEST(right, tokens.size() << " tokens");
}

}  // namespace quire::test::doc_ids
