// Attention of one packed microbatch, in one process and over context-parallel ranks: results and gradients of all tokens, and what was done for them.
#pragma once
#include <functional>
#include <numeric>

#include "check.h"
#include "ops/elementwise.h"
#include "parallel/context_attention.h"
#include "wire.h"

namespace quire::test {

/// Layouts and exchanges that go together.
inline const std::pair<ContextLayout, ContextExchange> context_ways[] = {
    {ContextLayout::contiguous, ContextExchange::ring},   {ContextLayout::zigzag, ContextExchange::ring},   {ContextLayout::balanced, ContextExchange::ring},
    {ContextLayout::contiguous, ContextExchange::gather}, {ContextLayout::zigzag, ContextExchange::gather}, {ContextLayout::balanced, ContextExchange::gather},
    {ContextLayout::contiguous, ContextExchange::heads}};

/// Numbers of key/value heads that the exchange by heads takes: one, as many as ranks, twice as many, and half as many.
inline std::vector<int64_t> heads_for(int64_t ranks) {
  if (ranks == 1) return {1, 2};
  std::vector<int64_t> all{1, ranks, 2 * ranks};
  if (ranks % 2 == 0 && ranks > 2) all.push_back(ranks / 2);
  return all;
}

inline int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

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

inline ContextCase context_case(std::mt19937_64& random, std::vector<int64_t> lengths, const AttentionOptions& attention, ContextLayout layout,
                                ContextExchange exchange) {
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
  std::vector<int64_t> forward_pairs, backward_pairs;  ///< attended, of all heads
  std::vector<int64_t> saved_bytes;                    ///< between forward and backward
  std::vector<TrafficCounters> traffic;
  std::vector<std::optional<BoundaryMismatch>> mismatches;
  std::shared_ptr<const ContextPlan> plan;

  explicit ContextResult(const ContextCase& c, int ranks = 1)
      : out(c.q.size()), dq(c.q.size()), dk(c.k.size()), dv(c.k.size()), forward_pairs(static_cast<size_t>(ranks)), backward_pairs(forward_pairs),
        saved_bytes(forward_pairs), traffic(static_cast<size_t>(ranks)), mismatches(static_cast<size_t>(ranks)) {}
};

using Attend = std::function<Value(Tape&, const Value&, const Value&, const Value&)>;

/// Forward and backward of the tokens `indices` through `attend`.
inline void run_rows(Rank& rank, const ContextCase& c, std::span<const int32_t> indices, size_t number, ContextResult& result,
                     const Attend& attend) {
  Tape tape(rank);
  const Value q = tape.leaf(rows_tensor(rank, c.q, indices, c.query_width(), c.dtype)), k = tape.leaf(rows_tensor(rank, c.k, indices, c.key_width(), c.dtype)),
              v = tape.leaf(rows_tensor(rank, c.v, indices, c.key_width(), c.dtype));
  const int64_t before = rank.work().attended_pairs;
  const Value out = attend(tape, q, k, v);
  const int64_t between = rank.work().attended_pairs;
  result.saved_bytes[number] = tape.saved_bytes();
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
  bool recomputes = false, poison = true;
  int64_t step = 5, stage = 1, microbatch = 2, layer = 3;
};

/// Forgets what `attend` keeps, and calls it again in backward.
class RecomputedNode final : public Node {
 public:
  RecomputedNode(const Tensor& q, const Tensor& k, const Tensor& v, Attend attend) : inputs_{q, k, v}, attend_(std::move(attend)) {}
  std::string_view name() const override { return "recomputed"; }
  void input_gradient(Tape& tape, const Tensor& grad) override {
    Tape inner(tape.rank());
    const Value q = inner.leaf(inputs_[0]), k = inner.leaf(inputs_[1]), v = inner.leaf(inputs_[2]);
    const Value out = attend_(inner, q, k, v);
    inner.backward(std::span(&out, 1), std::span(&grad, 1));
    for (int i = 0; const Value& value : {q, k, v}) tape.add_gradient(input(i++), inner.take_gradient(value));
  }

 private:
  Tensor inputs_[3];
  Attend attend_;
};

inline Value recomputed(Tape& tape, const Value& q, const Value& k, const Value& v, const Attend& attend) {
  Tape forgetful(tape.rank(), false);
  const Value out = attend(forgetful, q, k, v), inputs[] = {q, k, v};
  return tape.record(std::make_unique<RecomputedNode>(q.tensor, k.tensor, v.tensor, attend), inputs, out.tensor);
}

inline ContextResult run_ranks(const ContextCase& c, int ranks, const ContextRun& run = {}) {
  ContextResult result(c, ranks);
  ContextPlanner planner(ranks, c.context);
  const Documents whole = c.whole();
  result.plan = planner.plan(whole);
  run_local(ranks, {.watchdog_seconds = 60}, [&](Communicator& world) {
    Rank rank(RankOptions{.threads = run.threads, .poison = run.poison});
    Wire wire(world, run.wire);
    ContextAttention executor(rank, wire, planner);
    executor.set_tamper(run.tamper);
    const auto number = static_cast<size_t>(world.rank());
    const Documents own = executor.shard(whole);
    Microbatch microbatch;
    microbatch.work = executor.begin(whole, own, run.step, run.stage, run.microbatch);
    const auto attend = [&](Tape& tape, const Value& q, const Value& k, const Value& v) {
      return executor.attend(tape, run.layer, q, k, v, microbatch, c.attention);
    };
    run_rows(rank, c, own.indices(), number, result, [&](Tape& tape, const Value& q, const Value& k, const Value& v) {
      return run.recomputes ? recomputed(tape, q, k, v, attend) : attend(tape, q, k, v);
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
