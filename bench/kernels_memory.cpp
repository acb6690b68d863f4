#include <cstring>
#include <functional>

#include "bench/common.h"
#include "bench/kernels.h"
#include "ops/kernels.h"
#include "runtime/dispatch.h"
#include "runtime/random.h"

namespace quire::bench {

namespace {

constexpr int64_t tokens = 4096, width = 256, heads = 4, head_dim = 64, hidden = 688, vocabulary = 1024, weights = 3'200'000;

class Bench {
 public:
  Bench(const KernelsOptions& options, KernelsResult& result) : options_(options), result_(result) {}
  Rank rank;

  /// `numbers`: f32 values that the operation has to read and write.
  void measure(const std::string& operation, double count, const std::function<void()>& call) {
    MemoryLine line{.operation = operation, .bytes = 4 * count};
    const int64_t half = static_cast<int64_t>(line.bytes / 2);  // bytes that a copy reads
    const Tensor from = no_numbers(rank, half / 4), to = no_numbers(rank, half / 4);
    const int64_t calls = std::max<int64_t>(1, static_cast<int64_t>(3e7 / line.bytes));
    const auto seconds_of = [&](const std::function<void()>& what) {
      const double start = thread_seconds();
      for (int64_t i = 0; i < calls; ++i) what();
      return (thread_seconds() - start) / static_cast<double>(calls);
    };
    const std::function<void()> copy = [&] {
      std::memcpy(to.raw(), from.raw(), static_cast<size_t>(half));
      asm volatile("" : : "r"(to.raw()) : "memory");  // or it would not have to happen
    };
    call();
    copy();
    std::vector<double> own, copied;
    for (int64_t pair = 0; pair < options_.pairs; ++pair) {
      own.push_back(seconds_of(call));
      copied.push_back(seconds_of(copy));
    }
    line.seconds = median_of(own);
    line.copy = median_of(copied);
    result_.memory.push_back(line);
  }

 private:
  const KernelsOptions& options_;
  KernelsResult& result_;
};

void measure_rows(Bench& bench) {
  const Tensor x = random_numbers(bench.rank, tokens * width, 0), dy = random_numbers(bench.rank, tokens * width, 1), gain = random_numbers(bench.rank, width, 2), table = random_numbers(bench.rank, vocabulary * width, 3);
  const Tensor y = no_numbers(bench.rank, tokens * width), rstd = no_numbers(bench.rank, tokens), dgain = no_numbers(bench.rank, width), cosine = no_numbers(bench.rank, tokens * head_dim / 2), sine = no_numbers(bench.rank, tokens * head_dim / 2);
  std::vector<int32_t> positions(tokens), ids(tokens);
  for (int64_t i = 0; i < tokens; ++i) {
    positions[static_cast<size_t>(i)] = static_cast<int32_t>(i % 512);
    ids[static_cast<size_t>(i)] = static_cast<int32_t>(random_bits(3, 9, 0, static_cast<uint64_t>(i)) % vocabulary);
  }
  const double rows = static_cast<double>(tokens * width);
  bench.measure("rmsnorm_forward", 2 * rows, [&] {
    dispatch(bench.rank, RmsNormForwardArgs{.type = DType::f32, .rows = tokens, .width = width, .eps = 1e-5, .x = x.raw(), .gain = gain.raw(), .y = y.raw(), .rstd = rstd.raw()});
  });
  bench.measure("rmsnorm_backward", 3 * rows, [&] {
    dispatch(bench.rank, RmsNormBackwardArgs{.type = DType::f32, .rows = tokens, .width = width, .x = x.raw(), .gain = gain.raw(), .rstd = rstd.raw(), .dy = dy.raw(), .dx = y.raw(), .dgain = dgain.raw()});
  });
  bench.measure("rotary", 2 * rows, [&] {
    dispatch(bench.rank, RotaryArgs{.type = DType::f32, .tokens = tokens, .heads = heads, .head_dim = head_dim, .positions = positions.data(), .cosine = cosine.raw(), .sine = sine.raw(), .x = x.raw(), .y = y.raw()});
  });
  bench.measure("embedding_forward", 2 * rows, [&] {
    dispatch(bench.rank, EmbeddingForwardArgs{.type = DType::f32, .tokens_count = tokens, .width = width, .vocabulary = vocabulary, .tokens = ids.data(), .table = table.raw(), .y = y.raw()});
  });
  bench.measure("add", 3 * rows, [&] { dispatch(bench.rank, AddArgs{.type = DType::f32, .count = tokens * width, .from = x.raw(), .into = y.raw()}); });
  bench.measure("sum", 3 * rows, [&] { dispatch(bench.rank, SumArgs{.type = DType::f32, .count = tokens * width, .a = x.raw(), .b = dy.raw(), .into = y.raw()}); });
  bench.measure("cast to bf16", 1.5 * rows, [&] { dispatch(bench.rank, CastArgs{.from_type = DType::f32, .to_type = DType::bf16, .count = tokens * width, .from = x.raw(), .to = y.raw()}); });
}

void measure_swiglu(Bench& bench) {
  const Tensor gate = random_numbers(bench.rank, tokens * hidden, 0), up = random_numbers(bench.rank, tokens * hidden, 1);
  const Tensor y = no_numbers(bench.rank, tokens * hidden), dgate = no_numbers(bench.rank, tokens * hidden), dup = no_numbers(bench.rank, tokens * hidden);
  const double count = static_cast<double>(tokens * hidden);
  bench.measure("swiglu_forward", 3 * count, [&] { dispatch(bench.rank, SwigluForwardArgs{.type = DType::f32, .count = tokens * hidden, .gate = gate.raw(), .up = up.raw(), .y = y.raw()}); });
  bench.measure("swiglu_backward", 5 * count, [&] {
    dispatch(bench.rank, SwigluBackwardArgs{.type = DType::f32, .count = tokens * hidden, .gate = gate.raw(), .up = up.raw(), .dy = y.raw(), .dgate = dgate.raw(), .dup = dup.raw()});
  });
}

void measure_loss(Bench& bench) {
  constexpr int64_t rows = 1024;  // of one chunk
  const Tensor logits = random_numbers(bench.rank, rows * vocabulary, 0);
  const Tensor lse = no_numbers(bench.rank, rows), nll = no_numbers(bench.rank, rows), dlogits = no_numbers(bench.rank, rows * vocabulary);
  std::vector<int32_t> targets(rows);
  for (int64_t i = 0; i < rows; ++i) targets[static_cast<size_t>(i)] = static_cast<int32_t>(i % vocabulary);
  const double scale = 1, count = static_cast<double>(rows * vocabulary);
  bench.measure("cross_entropy_forward", count, [&] {
    dispatch(bench.rank, CrossEntropyForwardArgs{.type = DType::f32, .rows = rows, .vocabulary = vocabulary, .logits = logits.raw(), .targets = targets.data(), .z_weight = 0, .lse = lse.raw(), .nll = nll.raw()});
  });
  bench.measure("cross_entropy_backward", 2 * count, [&] {
    dispatch(bench.rank, CrossEntropyBackwardArgs{.type = DType::f32, .rows = rows, .vocabulary = vocabulary, .logits = logits.raw(), .targets = targets.data(), .z_weight = 0, .lse = lse.raw(), .scale = &scale, .dlogits = dlogits.raw()});
  });
}

void measure_optimizer(Bench& bench) {
  const Tensor gradient = random_numbers(bench.rank, weights, 0);
  const Tensor master = no_numbers(bench.rank, weights), moment1 = no_numbers(bench.rank, weights), moment2 = no_numbers(bench.rank, weights);
  const OptimizerScalars scalars{.learning_rate = 1e-3, .clip = 1, .bias1 = 0.1, .bias2 = 0.05, .skip = 0};
  const double count = static_cast<double>(weights);
  double sum = 0;
  bench.measure("reduce", count, [&] { dispatch(bench.rank, ReduceArgs{.type = DType::f32, .count = weights, .power = 2, .x = gradient.raw(), .result = &sum}); });
  const AdamWTensor tensor{.count = weights, .weight_decay = 0.1, .gradient = gradient.raw(), .master = master.raw(), .moment1 = moment1.raw(), .moment2 = moment2.raw(), .value = nullptr};
  bench.measure("adamw", 7 * count, [&] {
    dispatch(bench.rank, AdamWArgs{.type = DType::f32, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .scalars = &scalars, .tensors = std::span(&tensor, 1)});
  });
}

}  // namespace

void bench_memory(const KernelsOptions& options, KernelsResult& result) {
  Bench bench(options, result);
  measure_rows(bench);
  measure_swiglu(bench);
  measure_loss(bench);
  measure_optimizer(bench);
}

}  // namespace quire::bench
