#include <algorithm>
#include <tuple>

#include "ops/attention.h"
#include "ops/matmul.h"
#include "run/context_speeds.h"
#include "run/machine.h"
#include "run/pipeline_costs.h"
#include "run/rank_options.h"
#include "run/speed_samples.h"

namespace quire {

Tensor some_values(Rank& rank, const Shape& shape, DType dtype) {
  const auto values = [&]<class T>(T) {
    std::vector<T> made(static_cast<size_t>(shape.elements()));
    for (size_t i = 0; i < made.size(); ++i) made[i] = T(static_cast<float>(0.25 + static_cast<double>(i % 7) / 8));
    return Tensor::from<T>(rank, shape, made);
  };
  return dtype == DType::f64 ? values(double{}) : dtype == DType::f32 ? values(float{}) : values(bf16{});
}

namespace {

/// Short enough to fall between two interruptions on a busy machine, and often enough that some do.
constexpr int tries = 20;

double product_flops(Rank& rank, const Config& config) {
  const int64_t tokens = std::clamp<int64_t>(config.train.seq_len, 32, 256), in = std::min<int64_t>(config.model.dim, 512), out = std::min<int64_t>(config.model.ffn_hidden_dim, 1024);
  const Tensor x = some_values(rank, {tokens, in}, config.dtype()), weight = some_values(rank, {out, in}, config.dtype()), y = Tensor::empty(rank, {tokens, out}, config.dtype());
  return 2.0 * static_cast<double>(tokens * in * out) / best_of(tries, [&] { matmul(rank, x, Transpose::no, weight, Transpose::yes, y); });
}

/// Forward and backward.
std::pair<double, double> attention_flops(Rank& rank, const Config& config) {
  const ModelConfig& model = config.model;
  const int64_t tokens = std::clamp<int64_t>(config.train.seq_len, 32, 256);
  AttentionOptions options;
  options.heads = std::min<int64_t>(model.n_heads, 4);
  options.kv_heads = std::max<int64_t>(options.heads * model.n_kv_heads / model.n_heads, 1);
  options.heads = options.kv_heads * std::max<int64_t>(options.heads / options.kv_heads, 1);
  options.head_dim = model.head_dim;
  options.backend = attention_backend_from(model.attention_backend);
  const Tensor q = some_values(rank, {tokens, options.heads * model.head_dim}, config.dtype()), k = some_values(rank, {tokens, options.kv_heads * model.head_dim}, config.dtype());
  const int64_t lengths[] = {tokens};
  const DocumentRuns runs = shared_runs(Documents::from_lengths(lengths));
  const AttentionPartial forward = attention_partial(rank, q, k, k, runs, runs, options);
  const DType type = accumulator_of(config.dtype());
  const Tensor dq = Tensor::zeros(rank, q.shape(), type), dk = Tensor::zeros(rank, k.shape(), type), dv = Tensor::zeros(rank, k.shape(), type),
               delta = attention_delta(rank, q, q, options);
  const double elements = static_cast<double>(options.heads * model.head_dim * (tokens * (tokens + 1) / 2));
  const double seconds = best_of(tries, [&] { attention_partial(rank, q, k, k, runs, runs, options, forward); }),
               backward_seconds = best_of(tries, [&] { attention_backward(rank, q, k, k, runs, runs, q, forward.lse, delta, options, dq, dk, dv); });
  return {4 * elements / seconds, 10 * elements / backward_seconds};
}

double memory_rate(Rank& rank, const Config& config) {
  const Tensor from = some_values(rank, {std::clamp<int64_t>(config.train.seq_len, 32, 512), std::min<int64_t>(config.model.dim, 4096)}, config.dtype()),
               into = some_values(rank, from.shape(), config.dtype());
  const double seconds = best_of(tries, [&] { accumulate(rank, from, into); });
  return 3.0 * static_cast<double>(from.bytes()) / seconds;
}

}  // namespace

PipelineRates measure_pipeline_rates(const Config& config) {
  PipelineRates rates;
  run_local(2, {}, [&](Communicator& world) {
    RankOptions options = rank_options(config);
    options.first_processor = -1;
    options.device = {};
    if (config.run.threads == 0) options.threads = std::max(1, usable_processors() / 2);
    Rank rank(options);
    const ContextSpeeds speeds = measure_context_speeds(rank, world, config);
    PipelineRates own;
    own.product_flops = product_flops(rank, config);
    std::tie(own.attention_flops, own.attention_backward_flops) = attention_flops(rank, config);
    own.memory_bytes = memory_rate(rank, config);
    own.latency = speeds.seconds_per_message;
    own.link_bytes = speeds.bytes_per_second;
    own.measured = true;
    if (world.rank() == 0) rates = own;
  });
  return rates;
}

}  // namespace quire
