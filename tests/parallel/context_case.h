// Attention of one packed microbatch, in one process and over context-parallel ranks: results and gradients of all tokens, and what was done for them.
#pragma once
#include <functional>

#include "check.h"
#include "ops/elementwise.h"
#include "parallel/context_attention.h"
#include "wire.h"

namespace quire::test {

struct ContextCase {
  std::vector<int64_t> lengths;
  AttentionOptions attention;
  DType dtype = DType::f64;
  ContextOptions context;
  std::vector<double> q, k, v, dout;  ///< [tokens, heads or kv_heads, head_dim]

  Documents whole() const { return Documents::from_lengths(lengths); }
  int64_t query_width() const { return attention.heads * attention.head_dim; }
  int64_t key_width() const { return attention.kv_heads * attention.head_dim; }
};

inline ContextCase context_case(std::mt19937_64& random, std::vector<int64_t> lengths, const AttentionOptions& attention, ContextLayout layout, ContextExchange exchange) {
  ContextCase c{.lengths = std::move(lengths), .attention = attention};
  c.context = {layout, exchange, {.windows = {{attention.window, 1}}, .tile = 8}};
  const int64_t tokens = c.whole().tokens();
  std::normal_distribution<double> normal;
  // Values that every dtype holds exactly, so that all dtypes answer the same question.
  const auto values = [&](int64_t count) {
    std::vector<double> result(static_cast<size_t>(count));
    for (double& value : result) value = std::round(normal(random) * 32) / 32;
    return result;
  };
  c.q = values(tokens * c.query_width());
  c.k = values(tokens * c.key_width());
  c.v = values(tokens * c.key_width());
  c.dout = values(tokens * c.query_width());
  return c;
}

/// Rows of `values` at `indices` as a tensor.
inline Tensor rows_tensor(Rank& rank, const std::vector<double>& values, std::span<const int32_t> indices, int64_t width, DType dtype) {
  std::vector<double> rows;
  for (int32_t index : indices) rows.insert(rows.end(), values.begin() + index * width, values.begin() + (index + 1) * width);
  const Tensor wide = Tensor::from<double>(rank, {static_cast<int64_t>(indices.size()), width}, rows);
  return cast(rank, wide, dtype);
}

inline void put_rows(Rank& rank, const Tensor& rows, std::span<const int32_t> indices, std::vector<double>& into) {
  const int64_t width = rows.size(1);
  const std::vector<double> values = cast(rank, contiguous(rank, rows), DType::f64).to_vector<double>();
  for (size_t i = 0; i < indices.size(); ++i)
    std::copy_n(values.begin() + static_cast<int64_t>(i) * width, width, into.begin() + indices[i] * width);
}

struct ContextResult {
  std::vector<double> out, dq, dk, dv;
  // By rank:
  std::vector<int64_t> forward_pairs, backward_pairs;  ///< attended, per head
  std::vector<TrafficCounters> traffic;
  std::vector<std::optional<ContextMismatch>> mismatches;
  std::shared_ptr<const ContextPlan> plan;

  explicit ContextResult(const ContextCase& c, int ranks = 1)
      : out(c.q.size()), dq(c.q.size()), dk(c.k.size()), dv(c.k.size()), forward_pairs(static_cast<size_t>(ranks)), backward_pairs(forward_pairs),
        traffic(static_cast<size_t>(ranks)), mismatches(static_cast<size_t>(ranks)) {}
};

/// Forward and backward of the tokens `indices` through `attend`.
inline void run_rows(Rank& rank, const ContextCase& c, std::span<const int32_t> indices, size_t number, ContextResult& result,
                     const std::function<Value(Tape&, const Value&, const Value&, const Value&)>& attend) {
  Tape tape(rank);
  const Value q = tape.leaf(rows_tensor(rank, c.q, indices, c.query_width(), c.dtype)), k = tape.leaf(rows_tensor(rank, c.k, indices, c.key_width(), c.dtype)),
              v = tape.leaf(rows_tensor(rank, c.v, indices, c.key_width(), c.dtype));
  const int64_t before = rank.work().attended_pairs;
  const Value out = attend(tape, q, k, v);
  const int64_t between = rank.work().attended_pairs;
  const Tensor dout = rows_tensor(rank, c.dout, indices, c.query_width(), c.dtype);
  tape.backward(std::span(&out, 1), std::span(&dout, 1));
  result.forward_pairs[number] = between - before;
  result.backward_pairs[number] = rank.work().attended_pairs - between;
  put_rows(rank, out.tensor, indices, result.out);
  put_rows(rank, tape.take_gradient(q), indices, result.dq);
  put_rows(rank, tape.take_gradient(k), indices, result.dk);
  put_rows(rank, tape.take_gradient(v), indices, result.dv);
}

inline ContextResult run_single(const ContextCase& c) {
  Rank rank(RankOptions{.poison = true});
  ContextResult result(c);
  const Documents whole = c.whole();
  run_rows(rank, c, whole.indices(), 0, result,
           [&](Tape& tape, const Value& q, const Value& k, const Value& v) { return attention(tape, q, k, v, shared_runs(whole), c.attention); });
  return result;
}

struct ContextRun {
  WireHooks wire;
  ContextTamper* tamper = nullptr;
  int threads = 1;
  int64_t step = 5, stage = 1, microbatch = 2, layer = 3;
};

inline ContextResult run_ranks(const ContextCase& c, int ranks, const ContextRun& run = {}) {
  ContextResult result(c, ranks);
  ContextPlanner planner(ranks, c.context);
  const Documents whole = c.whole();
  result.plan = planner.plan(whole);
  run_local(ranks, {.watchdog_seconds = 60}, [&](Communicator& world) {
    Rank rank(RankOptions{.threads = run.threads, .poison = true});
    Wire wire(world, run.wire);
    ContextAttention executor(rank, wire, planner);
    executor.set_tamper(run.tamper);
    const auto number = static_cast<size_t>(world.rank());
    const Documents own = executor.shard(whole);
    Microbatch microbatch;
    microbatch.work = executor.begin(whole, own, run.step, run.stage, run.microbatch);
    run_rows(rank, c, own.indices(), number, result, [&](Tape& tape, const Value& q, const Value& k, const Value& v) {
      return executor.attend(tape, run.layer, q, k, v, microbatch, c.attention);
    });
    executor.finish();
    result.traffic[number] = wire.traffic();
    result.mismatches[number] = executor.take_mismatch();
  });
  return result;
}

/// Largest difference of any of the four results, relative to its largest magnitude.
inline double largest_difference(const ContextResult& a, const ContextResult& b) {
  return std::max({relative_difference(a.out, b.out), relative_difference(a.dq, b.dq), relative_difference(a.dk, b.dk), relative_difference(a.dv, b.dv)});
}

}  // namespace quire::test
