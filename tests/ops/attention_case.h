// Attention problems at kernel level, on a rank of any device: inputs of any type and stride with NaN wherever no token lies, the kernels' results as f64,
// and literal loops.
#pragma once
#include <bit>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "check.h"
#include "ops/attention.h"
#include "ops/cpu/instruction_set.h"
#include "ops/kernels.h"
#include "runtime/dispatch.h"
#include "values.h"

namespace quire::test {

/// A whole microbatch in f64: q and dout [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim].
struct AttentionCase {
  int64_t heads, kv_heads, head_dim, window;
  Documents documents;
  double scale;
  std::vector<double> q, k, v, dout;
  bool dense = false;
  int64_t gap = 3;  ///< elements between rows

  int64_t tokens() const { return documents.tokens(); }
  int64_t query_width() const { return heads * head_dim; }
  int64_t key_width() const { return kv_heads * head_dim; }
};

inline std::vector<double> random_values(std::mt19937_64& random, int64_t count, double spread = 1) {
  std::normal_distribution<double> normal(0, spread);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = normal(random);
  return values;
}

inline AttentionCase random_case(std::mt19937_64& random, std::span<const int64_t> lengths, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                 int64_t window = 0) {
  AttentionCase c{heads, kv_heads, head_dim, window, Documents::from_lengths(lengths), 1 / std::sqrt(static_cast<double>(head_dim)), {}, {}, {}, {}};
  c.q = random_values(random, c.tokens() * c.query_width(), 1.5);
  c.k = random_values(random, c.tokens() * c.key_width(), 1.5);
  c.v = random_values(random, c.tokens() * c.key_width());
  c.dout = random_values(random, c.tokens() * c.query_width());
  return c;
}

template <class T> double rounded(double x) { return to_double(from_double<T>(x)); }

/// The same case with inputs rounded to T.
template <class T>
AttentionCase rounded_case(AttentionCase c) {
  for (std::vector<double>* values : {&c.q, &c.k, &c.v, &c.dout})
    for (double& value : *values) value = rounded<T>(value);
  return c;
}

/// Rows of T with a gap between them and rows past the last token; everything that is no token's value is NaN.
template <class T>
struct Rows {
  int64_t tokens, width, stride;
  std::vector<T> data;

  Rows(int64_t row_count, int64_t row_width, int64_t gap = 3)
      : tokens(row_count), width(row_width), stride(row_width + gap),
        data(static_cast<size_t>((row_count + 70) * stride), from_double<T>(std::numeric_limits<double>::quiet_NaN())) {}
  /// The rows of `values` at `indices`.
  Rows(const std::vector<double>& values, std::span<const int32_t> indices, int64_t row_width, int64_t gap = 3)
      : Rows(static_cast<int64_t>(indices.size()), row_width, gap) {
    for (size_t i = 0; i < indices.size(); ++i)
      for (int64_t c = 0; c < width; ++c)
        data[i * static_cast<size_t>(stride) + static_cast<size_t>(c)] = from_double<T>(values[static_cast<size_t>(indices[i] * width + c)]);
  }
  /// Rows that all hold `value`.
  Rows(int64_t row_count, int64_t row_width, int64_t gap, double value) : Rows(row_count, row_width, gap) {
    for (int64_t i = 0; i < tokens; ++i) std::fill_n(data.begin() + i * stride, width, from_double<T>(value));
  }
  Tensor on(Rank& rank) const { return Tensor::from<T>(rank, {static_cast<int64_t>(data.size())}, data); }
  /// What a kernel left in `tensor`, which was these rows. All that is no token's must be as it was.
  std::vector<double> values(const Tensor& tensor) const {
    const std::vector<T> now = tensor.to_vector<T>();
    std::vector<double> result;
    bool untouched = true;
    for (int64_t i = 0; i < static_cast<int64_t>(now.size()); ++i) {
      if (i / stride < tokens && i % stride < width) result.push_back(to_double(now[static_cast<size_t>(i)]));
      else untouched = untouched && std::isnan(to_double(now[static_cast<size_t>(i)]));
    }
    BOOST_TEST(untouched, "wrote where no token lies");
    return result;
  }
};

template <class T> std::vector<double> doubles(const std::vector<T>& values) {
  std::vector<double> result;
  for (const T& value : values) result.push_back(to_double(value));
  return result;
}

struct AttentionForward { std::vector<double> out, lse; };
struct AttentionBackward { std::vector<double> dq, dk, dv; };

/// Forward over queries and keys that are shards of the case's microbatch (the whole of it by default), in the shards' order.
/// Outputs start as NaN, so that what is not written shows.
template <class T>
AttentionForward forward(Rank& rank, const AttentionCase& c, const Documents& queries, const Documents& keys, bool accumulate_out = false) {
  using A = Accumulator<T>;
  const auto on = [&](const std::vector<double>& values, const Documents& at, int64_t width) { return Rows<T>(values, at.indices(), width, c.gap).on(rank); };
  const Tensor q = on(c.q, queries, c.query_width()), k = on(c.k, keys, c.key_width()), v = on(c.v, keys, c.key_width());
  const Rows<T> out_rows(queries.tokens(), c.query_width(), c.gap);
  const Rows<A> partial_rows(queries.tokens(), c.query_width(), c.gap), lse_rows(queries.tokens(), c.heads, 0);
  const Tensor out = accumulate_out ? partial_rows.on(rank) : out_rows.on(rank), lse = lse_rows.on(rank);
  const DocumentRuns query_runs = shared_runs(queries), key_runs = shared_runs(keys);
  const int64_t q_row = c.query_width() + c.gap, k_row = c.key_width() + c.gap;
  dispatch(rank, AttentionForwardArgs{dtype_of<T>::value, c.heads, c.kv_heads, c.head_dim, queries.tokens(), keys.tokens(), *query_runs, *key_runs, c.window, c.scale,
                                      q.raw(), q_row, k.raw(), k_row, v.raw(), k_row, out.raw(), q_row, lse.raw(), c.dense, accumulate_out,
                                      query_runs->table(rank, queries.tokens()), key_runs->table(rank, keys.tokens())});
  return {accumulate_out ? partial_rows.values(out) : out_rows.values(out), lse_rows.values(lse)};
}
template <class T>
AttentionForward forward(Rank& rank, const AttentionCase& c) { return forward<T>(rank, c, c.documents, c.documents); }

/// Values as a tensor of T.
template <class T>
Tensor tensor_of(Rank& rank, const std::vector<double>& values) {
  std::vector<T> converted;
  for (double value : values) converted.push_back(from_double<T>(value));
  return Tensor::from<T>(rank, {static_cast<int64_t>(values.size())}, converted);
}

/// delta [tokens, heads] from the output and its gradient, by the kernel.
template <class T>
std::vector<double> delta(Rank& rank, const AttentionCase& c, const std::vector<double>& out) {
  const Rows<Accumulator<T>> rows(c.tokens(), c.heads, 0);
  const Tensor o = tensor_of<T>(rank, out), g = tensor_of<T>(rank, c.dout), result = rows.on(rank);
  dispatch(rank, AttentionDeltaArgs{dtype_of<T>::value, c.tokens(), c.heads, c.head_dim, o.raw(), g.raw(), result.raw()});
  return rows.values(result);
}

/// Gradients over shards, given lse and delta of the whole microbatch. `before` is what the gradients hold already.
template <class T>
AttentionBackward backward(Rank& rank, const AttentionCase& c, const Documents& queries, const Documents& keys, const std::vector<double>& lse,
                           const std::vector<double>& deltas, double before = 0, bool overwrite = false) {
  using A = Accumulator<T>;
  const auto on = [&](const std::vector<double>& values, const Documents& at, int64_t width) { return Rows<T>(values, at.indices(), width, c.gap).on(rank); };
  const Tensor q = on(c.q, queries, c.query_width()), k = on(c.k, keys, c.key_width()), v = on(c.v, keys, c.key_width()), dout = on(c.dout, queries, c.query_width());
  const Tensor row_lse = Rows<A>(lse, queries.indices(), c.heads, 0).on(rank), row_delta = Rows<A>(deltas, queries.indices(), c.heads, 0).on(rank);
  const Rows<A> query_rows(queries.tokens(), c.query_width(), c.gap, before), key_rows(keys.tokens(), c.key_width(), c.gap, before);
  const Tensor dq = query_rows.on(rank), dk = key_rows.on(rank), dv = key_rows.on(rank);
  const DocumentRuns query_runs = shared_runs(queries), key_runs = shared_runs(keys);
  const int64_t q_row = c.query_width() + c.gap, k_row = c.key_width() + c.gap;
  dispatch(rank, AttentionBackwardArgs{dtype_of<T>::value, c.heads, c.kv_heads, c.head_dim, queries.tokens(), keys.tokens(), *query_runs, *key_runs, c.window, c.scale,
                                       q.raw(), q_row, k.raw(), k_row, v.raw(), k_row, dout.raw(), q_row, row_lse.raw(), row_delta.raw(), dq.raw(), q_row, dk.raw(),
                                       k_row, dv.raw(), k_row, c.dense, overwrite, query_runs->table(rank, queries.tokens()), key_runs->table(rank, keys.tokens())});
  return {query_rows.values(dq), key_rows.values(dk), key_rows.values(dv)};
}
template <class T>
AttentionBackward backward(Rank& rank, const AttentionCase& c, const AttentionForward& result, double before = 0) {
  return backward<T>(rank, c, c.documents, c.documents, result.lse, delta<T>(rank, c, result.out), before);
}

struct AttentionResult { AttentionForward forward; AttentionBackward backward; };
template <class T>
AttentionResult both(Rank& rank, const AttentionCase& c) {
  AttentionForward result = forward<T>(rank, c);
  AttentionBackward gradients = backward<T>(rank, c, result);
  return {std::move(result), std::move(gradients)};
}

/// Literal loops over the definition: a softmax per row, in Real, with every intermediate and result passed through `round`. The backward pass
/// starts from the log-sum-exp, as the kernels' contract says.
template <class Real>
AttentionResult literal(const AttentionCase& c, const std::function<double(double)>& round = [](double x) { return x; }) {
  const int64_t tokens = c.tokens(), width = c.head_dim, group = c.heads / c.kv_heads;
  AttentionResult r;
  r.forward.out.assign(c.q.size(), 0);
  r.forward.lse.assign(static_cast<size_t>(tokens * c.heads), -std::numeric_limits<double>::infinity());
  std::vector<Real> dq(c.q.size(), 0), dk(c.k.size(), 0), dv(c.k.size(), 0), p(static_cast<size_t>(tokens)), scores(p);
  for (int64_t h = 0; h < c.heads; ++h)
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t start = c.documents.starts()[static_cast<size_t>(i)], first = c.window > 0 ? std::max(start, i - c.window + 1) : start;
      const auto at = [&](const std::vector<double>& x, int64_t row, int64_t n, int64_t head, int64_t d) {
        return static_cast<Real>(x[static_cast<size_t>((row * n + head) * width + d)]);
      };
      const int64_t kv = h / group;
      Real most = -std::numeric_limits<Real>::infinity(), sum = 0;
      for (int64_t j = first; j <= i; ++j) {
        Real score = 0;
        for (int64_t d = 0; d < width; ++d) score += at(c.q, i, c.heads, h, d) * at(c.k, j, c.kv_heads, kv, d);
        scores[static_cast<size_t>(j)] = static_cast<Real>(round(score * static_cast<Real>(c.scale)));
        most = std::max(most, scores[static_cast<size_t>(j)]);
      }
      for (int64_t j = first; j <= i; ++j) sum += p[static_cast<size_t>(j)] = std::exp(scores[static_cast<size_t>(j)] - most);
      Real deltas = 0;
      for (int64_t j = first; j <= i; ++j) p[static_cast<size_t>(j)] = static_cast<Real>(round(p[static_cast<size_t>(j)] / sum));
      for (int64_t d = 0; d < width; ++d) {
        Real out = 0;
        for (int64_t j = first; j <= i; ++j) out += p[static_cast<size_t>(j)] * at(c.v, j, c.kv_heads, kv, d);
        r.forward.out[static_cast<size_t>((i * c.heads + h) * width + d)] = round(out);
        deltas += static_cast<Real>(round(out)) * at(c.dout, i, c.heads, h, d);
      }
      const Real lse = most + std::log(sum);
      r.forward.lse[static_cast<size_t>(i * c.heads + h)] = static_cast<double>(lse);
      for (int64_t j = first; j <= i; ++j) {
        Real dp = 0;
        for (int64_t d = 0; d < width; ++d) dp += at(c.dout, i, c.heads, h, d) * at(c.v, j, c.kv_heads, kv, d);
        const Real pj = static_cast<Real>(round(std::exp(scores[static_cast<size_t>(j)] - lse)));
        const Real ds = static_cast<Real>(round(pj * (static_cast<Real>(round(dp)) - deltas) * static_cast<Real>(c.scale)));
        for (int64_t d = 0; d < width; ++d) {
          const size_t query = static_cast<size_t>((i * c.heads + h) * width + d), key = static_cast<size_t>((j * c.kv_heads + kv) * width + d);
          dq[query] += ds * static_cast<Real>(c.k[key]);
          dk[key] += ds * static_cast<Real>(c.q[query]);
          dv[key] += pj * static_cast<Real>(c.dout[query]);
        }
      }
    }
  r.backward = {doubles(dq), doubles(dk), doubles(dv)};
  return r;
}

/// Equal bits in rows [begin, end) of a and rows from `other` on of b.
inline bool same_rows(const std::vector<double>& a, const std::vector<double>& b, int64_t width, int64_t begin, int64_t end, int64_t other) {
  for (int64_t i = 0; i < (end - begin) * width; ++i)
    if (std::bit_cast<uint64_t>(a[static_cast<size_t>(begin * width + i)]) != std::bit_cast<uint64_t>(b[static_cast<size_t>(other * width + i)]))
      return false;
  return true;
}

inline bool finite(const AttentionResult& r) {
  for (const std::vector<double>* values : {&r.forward.out, &r.forward.lse, &r.backward.dq, &r.backward.dk, &r.backward.dv})
    for (double value : *values)
      if (!std::isfinite(value)) return false;
  return true;
}

/// Ranks of every instruction set of this machine, with poisoned memory.
inline std::vector<RankOptions> poisoned_ranks(int threads = 1) {
  std::vector<RankOptions> all;
  for (const std::string& name : instruction_sets()) {
    RankOptions options;
    options.threads = threads;
    options.poison = true;
    options.instruction_set = name;
    all.push_back(options);
  }
  return all;
}

}  // namespace quire::test
