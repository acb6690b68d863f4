// What attention's kernels promise about bits: documents do not see each other, nor their place, the threads, or memory beyond the tokens; and
// shards of queries and keys add up to the whole.
#include "ops/attention_case.h"

#include <numeric>

namespace quire::test {
namespace {

bool same_document(const AttentionCase& c, const AttentionResult& a, const AttentionResult& b, int64_t begin, int64_t end, int64_t other) {
  return same_rows(a.forward.out, b.forward.out, c.query_width(), begin, end, other) &&
         same_rows(a.forward.lse, b.forward.lse, c.heads, begin, end, other) &&
         same_rows(a.backward.dq, b.backward.dq, c.query_width(), begin, end, other) &&
         same_rows(a.backward.dk, b.backward.dk, c.key_width(), begin, end, other) &&
         same_rows(a.backward.dv, b.backward.dv, c.key_width(), begin, end, other);
}

bool same(const AttentionCase& c, const AttentionResult& a, const AttentionResult& b) { return same_document(c, a, b, 0, c.tokens(), 0); }

void copy_tokens(AttentionCase& to, int64_t at, const AttentionCase& from, int64_t begin, int64_t count) {
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
std::vector<Documents> random_shards(std::mt19937_64& random, const Documents& documents, int parts) {
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
  using A = accumulate_t<T>;
  std::vector<A> out1(into.out.begin(), into.out.end()), out2(from.out.begin(), from.out.end()), lse1(into.lse.begin(), into.lse.end()),
      lse2(from.lse.begin(), from.lse.end());
  const int64_t tokens = static_cast<int64_t>(into.lse.size()) / c.heads;
  const DocumentRun all[] = {{0, 0, static_cast<int32_t>(tokens), 0}};
  dispatch(rank, AttentionMergeArgs{dtype_of<T>::value, tokens, c.heads, c.head_dim, all, out1.data(), lse1.data(), out2.data(), lse2.data()});
  into = {doubles(out1), doubles(lse1)};
}

void scatter(std::vector<double>& to, const std::vector<double>& from, std::span<const int32_t> indices, int64_t width, bool add) {
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

}  // namespace

BOOST_AUTO_TEST_SUITE(attention_isolation)

BOOST_AUTO_TEST_CASE(no_bit_of_another_document_changes) {
  std::mt19937_64 random(11);
  for (const RankOptions& options : poisoned_ranks(2)) {
    Rank rank(options);
    for (int64_t window : {0, 40}) {
      AttentionCase c = random_case(random, std::vector<int64_t>{20, 65, 1, 130, 34}, 2, 1, 12, window);
      for (bool dense : {false, true}) {
        c.dense = dense;
        check_leak<double>(rank, c, random);
        check_leak<float>(rank, c, random);
        check_leak<bf16>(rank, c, random);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_document_has_the_same_bits_wherever_it_lies) {
  std::mt19937_64 random(12);
  for (const RankOptions& options : poisoned_ranks()) {
    Rank rank(options);
    for (bool dense : {false, true}) {
      const int64_t length = dense ? 90 : 1300;
      AttentionCase alone = random_case(random, std::vector<int64_t>{length}, 2, 2, 12, 150);
      AttentionCase moved = random_case(random, std::vector<int64_t>{1, 43, length, 7}, 2, 2, 12, 150);
      copy_tokens(moved, 44, alone, 0, length);
      alone.dense = moved.dense = dense;
      BOOST_TEST(same_document(moved, both<double>(rank, moved), both<double>(rank, alone), 44, 44 + length, 0));
      BOOST_TEST(same_document(moved, both<float>(rank, moved), both<float>(rank, alone), 44, 44 + length, 0));
      BOOST_TEST(same_document(moved, both<bf16>(rank, moved), both<bf16>(rank, alone), 44, 44 + length, 0));
      moved.k[static_cast<size_t>(44 * moved.key_width())] += 1;  // control: its own token does matter
      BOOST_TEST(!same_document(moved, both<float>(rank, moved), both<float>(rank, alone), 44, 44 + length, 0));
    }
  }
}

BOOST_AUTO_TEST_CASE(threads_change_no_bit) {
  std::mt19937_64 random(13);
  std::vector<int64_t> lengths = random_lengths(random, 900);
  lengths.push_back(2100);
  const AttentionCase c = random_case(random, lengths, 4, 2, 8);
  Rank one(poisoned_ranks(1).front()), two(poisoned_ranks(2).front()), three(poisoned_ranks(3).front());
  const AttentionResult f64 = both<double>(one, c), f32 = both<float>(one, c);
  BOOST_TEST(same(c, f64, both<double>(two, c)));
  BOOST_TEST(same(c, f64, both<double>(three, c)));
  BOOST_TEST(same(c, f32, both<float>(two, c)));
  BOOST_TEST(same(c, f32, both<float>(three, c)));
  BOOST_TEST(!same(c, f64, f32));
}

BOOST_AUTO_TEST_CASE(shards_add_up_to_the_whole) {
  std::mt19937_64 random(14);
  for (const RankOptions& options : poisoned_ranks(2)) {
    Rank rank(options);
    for (int round = 0; round < 6; ++round) {
      AttentionCase c = random_case(random, random_lengths(random, 300), 2, 1, 9, round % 2 ? 70 : 0);
      c.dense = round == 5;
      check_shards<double>(rank, c, random, 1e-12);
      check_shards<float>(rank, c, random, 1e-5);
      check_shards<bf16>(rank, rounded_case<bf16>(c), random, 1e-2);
    }
  }
}

BOOST_AUTO_TEST_CASE(one_query_of_a_shard_has_the_bits_of_the_whole) {
  std::mt19937_64 random(15);
  Rank rank(poisoned_ranks().front());
  const AttentionCase c = random_case(random, std::vector<int64_t>{10, 700}, 2, 1, 64);
  const AttentionForward whole = forward<float>(rank, c);
  for (int32_t index : {3, 10, 11, 300, 709}) {  // decoding: one query, all keys of its document
    const int32_t start = index < 10 ? 0 : 10;
    std::vector<int32_t> keys(static_cast<size_t>(index + 1 - start));
    std::iota(keys.begin(), keys.end(), start);
    const std::vector<int32_t> starts(keys.size(), start);
    const AttentionForward row = forward<float>(rank, c, Documents::shard({index}, {start}), Documents::shard(keys, starts));
    BOOST_TEST(same_rows(row.out, whole.out, c.query_width(), 0, 1, index));
    BOOST_TEST(same_rows(row.lse, whole.lse, c.heads, 0, 1, index));
  }
}

BOOST_AUTO_TEST_CASE(merging_keeps_empty_rows_empty) {
  std::mt19937_64 random(16);
  Rank rank(poisoned_ranks().front());
  const AttentionCase c = random_case(random, std::vector<int64_t>{2}, 1, 1, 3);
  const double none = -std::numeric_limits<double>::infinity();
  AttentionForward a{{0, 0, 0, 1, 2, 3}, {none, 1}};
  merge<double>(rank, c, a, {{0, 0, 0, 0, 0, 0}, {none, none}});
  BOOST_TEST((a.lse == std::vector<double>{none, 1}));
  BOOST_TEST((a.out == std::vector<double>{0, 0, 0, 1, 2, 3}));
  merge<double>(rank, c, a, {{4, 5, 6, 3, 2, 1}, {7, 1}});
  BOOST_TEST(a.lse[0] == 7);
  BOOST_TEST(std::abs(a.lse[1] - (1 + std::log(2.0))) < 1e-15);
  BOOST_TEST((a.out == std::vector<double>{4, 5, 6, 2, 2, 2}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
