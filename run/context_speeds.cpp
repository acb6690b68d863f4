#include "run/context_speeds.h"

#include <algorithm>

#include "ops/attention.h"
#include "ops/matmul.h"
#include "run/context_costs.h"
#include "run/speed_samples.h"
#include "run/trainer.h"
#include "runtime/accelerator.h"

namespace quire {

namespace {

/// What was asked of a device is over.
void finish(Rank& rank) {
  if (rank.accelerator() != nullptr) rank.accelerator()->synchronize();
}

double pairs_per_second(Rank& rank, const Config& config) {
  const ModelConfig& model = config.model;
  const int64_t tokens = std::clamp<int64_t>(config.train.seq_len, 32, 512), heads = std::min<int64_t>(model.n_heads, 8);
  AttentionOptions options;
  options.kv_heads = std::max<int64_t>(heads * model.n_kv_heads / model.n_heads, 1);
  options.heads = options.kv_heads * std::max<int64_t>(heads / options.kv_heads, 1);
  options.head_dim = model.head_dim;
  options.backend = attention_backend_from(model.attention_backend);
  const Tensor q = some_values(rank, {tokens, options.heads * model.head_dim}, config.dtype()),
               k = some_values(rank, {tokens, options.kv_heads * model.head_dim}, config.dtype());
  const int64_t lengths[] = {tokens};
  const DocumentRuns runs = shared_runs(Documents::from_lengths(lengths));
  const double seconds = best_of(5, [&] {
    attention_partial(rank, q, k, k, runs, runs, options);
    finish(rank);
  });
  return static_cast<double>(options.heads * (tokens * (tokens + 1) / 2)) / seconds;
}

double flops_per_second(Rank& rank, const Config& config) {
  const ModelConfig& model = config.model;
  const int64_t tokens = std::clamp<int64_t>(config.train.seq_len, 32, 256), in = std::min<int64_t>(model.dim, 2048),
                out = std::min<int64_t>(model.ffn_hidden_dim, 2048);
  const Tensor x = some_values(rank, {tokens, in}, config.dtype()), weight = some_values(rank, {out, in}, config.dtype()),
               y = Tensor::empty(rank, {tokens, out}, config.dtype());
  const double seconds = best_of(5, [&] {
    matmul(rank, x, Transpose::no, weight, Transpose::yes, y);
    finish(rank);
  });
  return 2.0 * static_cast<double>(tokens * in * out) / seconds;
}

/// Seconds in which every rank sends so many bytes to the next one and receives as many from the one before.
double message_seconds(Rank& rank, Communicator& group, int64_t bytes) {
  const MessageLabel label{MessageKind::control, -1, -1, -1, "measuring speeds"};
  const Tensor out = Tensor::zeros(rank, {bytes / 4}, DType::f32), in = Tensor::empty(rank, {bytes / 4}, DType::f32);
  const int next = (group.rank() + 1) % group.size(), before = (group.rank() + group.size() - 1) % group.size();
  std::vector<std::array<int, 2>> pairs;
  for (int from = 0; from < group.size(); ++from) pairs.push_back({from, (from + 1) % group.size()});
  group.connect(rank, pairs);
  return best_of(9, [&] {
    const Request receive = group.receive(in, before, label), send = group.send(out, next, label);
    send.wait();
    receive.wait();
    finish(rank);
  });
}

}  // namespace

ContextModel context_model(const Config& config) {
  const ModelConfig& model = config.model;
  ContextModel result;
  result.heads = model.n_heads;
  result.kv_heads = model.n_kv_heads;
  result.head_dim = model.head_dim;
  result.dtype = config.dtype();
  result.token_flops = step_flops(model, 1, 0);
  result.recomputes = config.train.activation_checkpointing != "none";
  result.costs = context_costs(config);
  return result;
}

ContextSpeeds measure_context_speeds(Rank& rank, Communicator& group, const Config& config) {
  WorkCounters& work = rank.work();
  const int64_t computed = work.computed_pairs, attended = work.attended_pairs, flops = work.flops;
  ContextSpeeds speeds;
  speeds.pairs_per_second = pairs_per_second(rank, config);
  speeds.flops_per_second = flops_per_second(rank, config);
  if (group.size() > 1) {
    constexpr int64_t small = 64, large = 1 << 20;
    speeds.seconds_per_message = message_seconds(rank, group, small);
    speeds.bytes_per_second = static_cast<double>(large - small) / std::max(message_seconds(rank, group, large) - speeds.seconds_per_message, 1e-9);
  } else {
    speeds.bytes_per_second = 1e18;
  }
  work.computed_pairs = computed;
  work.attended_pairs = attended;
  work.flops = flops;
  return speeds;
}

}  // namespace quire
