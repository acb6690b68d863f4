// Checks of attention where some rows take no part, on any device.
#pragma once
#include "ops/attention_case.h"

namespace quire::test {

inline constexpr double untouched = -77;

/// Values of any number as a tensor of this shape.
template <class T>
Tensor shaped(Rank& rank, const Shape& shape, const std::vector<double>& values) { return tensor_of<T>(rank, values).reshape(shape); }
template <class T>
Tensor filled(Rank& rank, const Shape& shape, double value) { return shaped<T>(rank, shape, std::vector<double>(static_cast<size_t>(shape.elements()), value)); }
template <class T>
std::vector<double> values_of(const Tensor& tensor) { return doubles(tensor.to_vector<T>()); }

/// Some of the runs, some of them cut short on either side.
inline DocumentRuns some_of(std::mt19937_64& random, const Documents& documents) {
  auto some = std::make_shared<RunList>();
  for (DocumentRun run : documents.runs()) {
    if (random() % 3 == 0) continue;
    const auto cut = static_cast<int32_t>(random() % static_cast<uint64_t>(run.length));
    if (random() % 2) run = {run.local + cut, run.global + cut, run.length - cut, run.start};
    else run.length -= cut;
    some->push_back(run);
  }
  return some;
}

inline std::vector<bool> covered_rows(const DocumentRuns& runs, int64_t tokens) {
  std::vector<bool> covered(static_cast<size_t>(tokens), false);
  for (const DocumentRun& run : *runs) std::fill_n(covered.begin() + run.local, run.length, true);
  return covered;
}

/// Rows are bitwise those of `full` where covered, and `elsewhere` where not.
inline void check_rows(const std::vector<double>& some, const std::vector<double>& all, const std::vector<bool>& covered, double elsewhere = untouched) {
  const size_t width = some.size() / covered.size();
  int wrong = 0;
  for (size_t i = 0; i < some.size(); ++i) wrong += some[i] != (covered[i / width] ? all[i] : elsewhere);
  BOOST_TEST(wrong == 0);
}

/// Attention of some of the queries: NaN in the others' rows, which keep what their outputs hold. T is the inputs' type.
template <class T>
void check_restricted(Rank& rank, std::mt19937_64& random, int64_t tokens, const AttentionOptions& options) {
  using A = Accumulator<T>;
  const Documents documents = Documents::from_lengths(random_lengths(random, tokens, 16));
  const int64_t query_width = options.heads * options.head_dim, key_width = options.kv_heads * options.head_dim;
  const Shape wide{tokens, query_width}, narrow{tokens, key_width}, rows{tokens, options.heads};
  std::vector<double> queries = random_values(random, tokens * query_width), douts = random_values(random, tokens * query_width);
  const Tensor k = shaped<T>(rank, narrow, random_values(random, tokens * key_width)), v = shaped<T>(rank, narrow, random_values(random, tokens * key_width));
  const DocumentRuns all = shared_runs(documents), some = some_of(random, documents);
  const AttentionPartial full = attention_partial(rank, shaped<T>(rank, wide, queries), k, v, all, all, options);
  const Tensor delta = attention_delta(rank, full.out, shaped<A>(rank, wide, douts), options);
  const Tensor dq = filled<A>(rank, wide, 0);
  attention_backward(rank, shaped<T>(rank, wide, queries), k, v, all, all, shaped<T>(rank, wide, douts), full.lse, delta, options, dq, filled<A>(rank, narrow, 0),
                     filled<A>(rank, narrow, 0));

  const std::vector<bool> covered = covered_rows(some, tokens);
  for (size_t i = 0; i < queries.size(); ++i)
    if (!covered[i / static_cast<size_t>(query_width)]) queries[i] = douts[i] = std::numeric_limits<double>::quiet_NaN();
  const AttentionPartial part{filled<A>(rank, wide, untouched), filled<A>(rank, rows, untouched)};
  attention_partial(rank, shaped<T>(rank, wide, queries), k, v, some, all, options, part);
  check_rows(values_of<A>(part.out), values_of<A>(full.out), covered);
  check_rows(values_of<A>(part.lse), values_of<A>(full.lse), covered);

  const Tensor dq_part = filled<A>(rank, wide, 0), dk = filled<A>(rank, narrow, 0), dv = filled<A>(rank, narrow, 0);
  attention_backward(rank, shaped<T>(rank, wide, queries), k, v, some, all, shaped<T>(rank, wide, douts), full.lse, delta, options, dq_part, dk, dv);
  check_rows(values_of<A>(dq_part), values_of<A>(dq), covered, 0);
  for (const Tensor& gradient : {dk, dv})
    for (double x : values_of<A>(gradient)) BOOST_REQUIRE(std::isfinite(x));
}

/// Merging of some rows: NaN in the others of the second result.
template <class A>
void check_merge_of_rows(Rank& rank, std::mt19937_64& random, int64_t tokens) {
  const AttentionOptions options{.heads = 2, .kv_heads = 2, .head_dim = 3};
  const DocumentRuns some = some_of(random, Documents::from_lengths(random_lengths(random, tokens, 16)));
  const std::vector<bool> covered = covered_rows(some, tokens);
  const auto partial = [&] {
    return AttentionPartial{shaped<A>(rank, {tokens, 6}, random_values(random, tokens * 6)), shaped<A>(rank, {tokens, 2}, random_values(random, tokens * 2))};
  };
  const auto copied = [&](const AttentionPartial& from) {
    return AttentionPartial{shaped<A>(rank, {tokens, 6}, values_of<A>(from.out)), shaped<A>(rank, {tokens, 2}, values_of<A>(from.lse))};
  };
  const AttentionPartial first = partial(), second = partial(), all = copied(first), part = copied(first);
  attention_merge(rank, all, second, options);
  std::vector<double> holes = values_of<A>(second.out);
  for (size_t i = 0; i < holes.size(); ++i)
    if (!covered[i / 6]) holes[i] = std::numeric_limits<double>::quiet_NaN();
  attention_merge(rank, part, {shaped<A>(rank, {tokens, 6}, holes), second.lse}, some, options);
  const std::vector<double> value = values_of<A>(part.out), merged = values_of<A>(all.out), before = values_of<A>(first.out);
  for (size_t i = 0; i < value.size(); ++i) BOOST_REQUIRE(value[i] == (covered[i / 6] ? merged[i] : before[i]));
}

}  // namespace quire::test
