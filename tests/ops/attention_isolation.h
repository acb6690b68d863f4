// Checks that documents do not see each other and that shards add up, for attention on any device.
#pragma once
#include "ops/attention_case.h"
#include "runtime/dispatch.h"

namespace quire::test {

inline bool same_document(const AttentionCase& c, const AttentionResult& a, const AttentionResult& b, int64_t begin, int64_t end, int64_t other) {
  return same_rows(a.forward.out, b.forward.out, c.query_width(), begin, end, other) &&
         same_rows(a.forward.lse, b.forward.lse, c.heads, begin, end, other) &&
         same_rows(a.backward.dq, b.backward.dq, c.query_width(), begin, end, other) &&
         same_rows(a.backward.dk, b.backward.dk, c.key_width(), begin, end, other) &&
         same_rows(a.backward.dv, b.backward.dv, c.key_width(), begin, end, other);
}

inline bool same(const AttentionCase& c, const AttentionResult& a, const AttentionResult& b) { return same_document(c, a, b, 0, c.tokens(), 0); }

inline void copy_tokens(AttentionCase& to, int64_t at, const AttentionCase& from, int64_t begin, int64_t count) {
  const auto copy = [&](std::vector<double>& a, const std::vector<double>& b, int64_t width) {
    std::copy_n(b.begin() + begin * width, count * width, a.begin() + at * width);
  };
  copy(to.q, from.q, to.query_width());
  copy(to.dout, from.dout, to.query_width());
  copy(to.k, from.k, to.key_width());
  copy(to.v, from.v, to.key_width());
}

template <class T>
void check_leak(Rank& rank, const AttentionCase& before, std::mt19937_64& random) {
  const std::vector<int64_t> lengths = {20, 65, 1, 130, 34};
  AttentionCase merged = before;  // control: documents 1 to 3 pass for one
  merged.documents = Documents::from_lengths(std::vector<int64_t>{20, 65 + 1 + 130, 34});
  AttentionCase after = before, merged_after = merged;
  const AttentionCase other = random_case(random, lengths, before.heads, before.kv_heads, before.head_dim, before.window);
  copy_tokens(after, 20, other, 20, 65);
  copy_tokens(merged_after, 20, other, 20, 65);
  const AttentionResult a = both<T>(rank, before), b = both<T>(rank, after);
  BOOST_TEST(same_document(before, a, b, 0, 20, 0));
  BOOST_TEST(same_document(before, a, b, 85, before.tokens(), 85));
  BOOST_TEST(!same_document(before, a, b, 20, 85, 20));
  const AttentionResult x = both<T>(rank, merged), y = both<T>(rank, merged_after);
  BOOST_TEST(!same_document(before, x, y, 86, 216, 86));
  BOOST_TEST(same_document(before, x, y, 216, 250, 216));
}

/// Random ranges of the case's tokens, each in one of `parts` shards.
inline std::vector<Documents> random_shards(std::mt19937_64& random, const Documents& documents, int parts) {
  std::vector<std::vector<int32_t>> indices(static_cast<size_t>(parts)), starts(static_cast<size_t>(parts));
  for (int64_t at = 0; at < documents.tokens();) {
    const size_t part = random() % static_cast<size_t>(parts);
    const int64_t end = std::min(documents.tokens(), at + 1 + static_cast<int64_t>(random() % 60));
    for (; at < end; ++at) {
      indices[part].push_back(static_cast<int32_t>(at));
      starts[part].push_back(documents.starts()[static_cast<size_t>(at)]);
    }
  }
  std::vector<Documents> shards;
  for (size_t part = 0; part < indices.size(); ++part) shards.push_back(Documents::shard(indices[part], starts[part]));
  return shards;
}

template <class T>
void merge(Rank& rank, const AttentionCase& c, AttentionForward& into, const AttentionForward& from) {
  using A = Accumulator<T>;
  const auto tokens = static_cast<int64_t>(into.lse.size()) / c.heads;
  const Tensor out1 = tensor_of<A>(rank, into.out), out2 = tensor_of<A>(rank, from.out), lse1 = tensor_of<A>(rank, into.lse), lse2 = tensor_of<A>(rank, from.lse);
  const auto all = std::make_shared<const RunList>(std::vector<DocumentRun>{{0, 0, static_cast<int32_t>(tokens), 0}});
  dispatch(rank, AttentionMergeArgs{dtype_of<T>::value, tokens, c.heads, c.head_dim, *all, out1.raw(), lse1.raw(), out2.raw(), lse2.raw(), all->table(rank, tokens)});
  into = {doubles(out1.to_vector<A>()), doubles(lse1.to_vector<A>())};
}

inline void scatter(std::vector<double>& to, const std::vector<double>& from, std::span<const int32_t> indices, int64_t width, bool add) {
  for (size_t i = 0; i < indices.size(); ++i)
    for (int64_t c = 0; c < width; ++c) {
      double& value = to[static_cast<size_t>(indices[i] * width + c)];
      value = (add ? value : 0) + from[i * static_cast<size_t>(width) + static_cast<size_t>(c)];
    }
}

template <class T>
void check_shards(Rank& rank, const AttentionCase& c, std::mt19937_64& random, double tolerance) {
  const AttentionResult whole = both<T>(rank, c);
  const std::vector<double> deltas = delta<T>(rank, c, whole.forward.out);
  AttentionResult sum = whole;
  for (std::vector<double>* values : {&sum.forward.out, &sum.forward.lse, &sum.backward.dq, &sum.backward.dk, &sum.backward.dv})
    std::fill(values->begin(), values->end(), 0.0);
  const std::vector<Documents> query_shards = random_shards(random, c.documents, 3), key_shards = random_shards(random, c.documents, 4);
  for (const Documents& queries : query_shards) {
    AttentionForward merged;
    for (const Documents& keys : key_shards) {
      AttentionForward partial = forward<T>(rank, c, queries, keys, true);
      if (merged.lse.empty()) merged = partial;
      else merge<T>(rank, c, merged, partial);
      const AttentionBackward gradients = backward<T>(rank, c, queries, keys, whole.forward.lse, deltas);
      scatter(sum.backward.dq, gradients.dq, queries.indices(), c.query_width(), true);
      scatter(sum.backward.dk, gradients.dk, keys.indices(), c.key_width(), true);
      scatter(sum.backward.dv, gradients.dv, keys.indices(), c.key_width(), true);
    }
    scatter(sum.forward.out, merged.out, queries.indices(), c.query_width(), false);
    scatter(sum.forward.lse, merged.lse, queries.indices(), c.heads, false);
  }
  BOOST_TEST(relative_difference(sum.forward.out, whole.forward.out) <= tolerance);
  BOOST_TEST(relative_difference(sum.forward.lse, whole.forward.lse) <= tolerance);
  BOOST_TEST(relative_difference(sum.backward.dq, whole.backward.dq) <= tolerance);
  BOOST_TEST(relative_difference(sum.backward.dk, whole.backward.dk) <= tolerance);
  BOOST_TEST(relative_difference(sum.backward.dv, whole.backward.dv) <= tolerance);
}

}  // namespace quire::test
