#include <cstring>
#include <functional>

#include "bench/kernels.h"
#include "ops/kernels.h"
#include "runtime/random.h"

namespace quire::bench {

namespace {

constexpr int64_t tokens = 4096, width = 256, heads = 4, head_dim = 64, hidden = 688, vocabulary = 1024, weights = 3'200'000;

/// f32 numbers between -1 and 1.
std::vector<float> numbers(int64_t count, uint64_t stream) {
  std::vector<float> all(static_cast<size_t>(count));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(random_bits(5, stream, 0, i) >> 40) * 0x1p-23f - 1;
  return all;
}

class Bench {
 public:
  Bench(const KernelsOptions& options, KernelsResult& result) : options_(options), result_(result) {}
  Rank rank;

  /// `numbers`: f32 values that the operation has to read and write.
  void measure(const std::string& operation, double count, const std::function<void()>& call) {
    MemoryLine line{.operation = operation, .bytes = 4 * count};
    from_.resize(static_cast<size_t>(line.bytes / 2));
    to_.resize(from_.size());
    const int64_t calls = std::max<int64_t>(1, static_cast<int64_t>(3e7 / line.bytes));
    const auto seconds_of = [&](const std::function<void()>& what) {
      const double start = thread_seconds();
      for (int64_t i = 0; i < calls; ++i) what();
      return (thread_seconds() - start) / static_cast<double>(calls);
    };
    const std::function<void()> copy = [&] {
      std::memcpy(to_.data(), from_.data(), from_.size());
      asm volatile("" : : "r"(to_.data()) : "memory");  // or it would not have to happen
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
  std::vector<char> from_, to_;
};

void measure_rows(Bench& bench) {
  const std::vector<float> x = numbers(tokens * width, 0), dy = numbers(tokens * width, 1), gain = numbers(width, 2), table = numbers(vocabulary * width, 3);
  std::vector<float> y(x.size()), rstd(tokens), dgain(width), cosine(tokens * head_dim / 2), sine(cosine.size());
  std::vector<int32_t> positions(tokens), ids(tokens);
  for (int64_t i = 0; i < tokens; ++i) {
    positions[static_cast<size_t>(i)] = static_cast<int32_t>(i % 512);
    ids[static_cast<size_t>(i)] = static_cast<int32_t>(random_bits(5, 9, 0, static_cast<uint64_t>(i)) % vocabulary);
  }
  const double rows = static_cast<double>(tokens * width);
  bench.measure("rmsnorm_forward", 2 * rows, [&] {
    dispatch(bench.rank, RmsNormForwardArgs{.type = DType::f32, .rows = tokens, .width = width, .eps = 1e-5, .x = x.data(), .gain = gain.data(), .y = y.data(), .rstd = rstd.data()});
  });
  bench.measure("rmsnorm_backward", 3 * rows, [&] {
    dispatch(bench.rank, RmsNormBackwardArgs{.type = DType::f32, .rows = tokens, .width = width, .x = x.data(), .gain = gain.data(), .rstd = rstd.data(), .dy = dy.data(), .dx = y.data(), .dgain = dgain.data()});
  });
  bench.measure("rotary", 2 * rows, [&] {
    dispatch(bench.rank, RotaryArgs{.type = DType::f32, .tokens = tokens, .heads = heads, .head_dim = head_dim, .positions = positions.data(), .cosine = cosine.data(), .sine = sine.data(), .x = x.data(), .y = y.data()});
  });
  bench.measure("embedding_forward", 2 * rows, [&] {
    dispatch(bench.rank, EmbeddingForwardArgs{.type = DType::f32, .tokens_count = tokens, .width = width, .vocabulary = vocabulary, .tokens = ids.data(), .table = table.data(), .y = y.data()});
  });
  bench.measure("add", 3 * rows, [&] { dispatch(bench.rank, AddArgs{.type = DType::f32, .count = tokens * width, .from = x.data(), .into = y.data()}); });
  bench.measure("sum", 3 * rows, [&] { dispatch(bench.rank, SumArgs{.type = DType::f32, .count = tokens * width, .a = x.data(), .b = dy.data(), .into = y.data()}); });
  bench.measure("cast to bf16", 1.5 * rows, [&] { dispatch(bench.rank, CastArgs{.from_type = DType::f32, .to_type = DType::bf16, .count = tokens * width, .from = x.data(), .to = y.data()}); });
}

void measure_swiglu(Bench& bench) {
  const std::vector<float> gate = numbers(tokens * hidden, 0), up = numbers(tokens * hidden, 1);
  std::vector<float> y(gate.size()), dgate(gate.size()), dup(gate.size());
  const double count = static_cast<double>(tokens * hidden);
  bench.measure("swiglu_forward", 3 * count, [&] { dispatch(bench.rank, SwigluForwardArgs{.type = DType::f32, .count = tokens * hidden, .gate = gate.data(), .up = up.data(), .y = y.data()}); });
  bench.measure("swiglu_backward", 5 * count, [&] {
    dispatch(bench.rank, SwigluBackwardArgs{.type = DType::f32, .count = tokens * hidden, .gate = gate.data(), .up = up.data(), .dy = y.data(), .dgate = dgate.data(), .dup = dup.data()});
  });
}

void measure_loss(Bench& bench) {
  constexpr int64_t rows = 1024;  // of one chunk
  const std::vector<float> logits = numbers(rows * vocabulary, 0);
  std::vector<float> lse(rows), nll(rows), dlogits(logits.size());
  std::vector<int32_t> targets(rows);
  for (int64_t i = 0; i < rows; ++i) targets[static_cast<size_t>(i)] = static_cast<int32_t>(i % vocabulary);
  const double scale = 1, count = static_cast<double>(rows * vocabulary);
  bench.measure("cross_entropy_forward", count, [&] {
    dispatch(bench.rank, CrossEntropyForwardArgs{.type = DType::f32, .rows = rows, .vocabulary = vocabulary, .logits = logits.data(), .targets = targets.data(), .z_weight = 0, .lse = lse.data(), .nll = nll.data()});
  });
  bench.measure("cross_entropy_backward", 2 * count, [&] {
    dispatch(bench.rank, CrossEntropyBackwardArgs{.type = DType::f32, .rows = rows, .vocabulary = vocabulary, .logits = logits.data(), .targets = targets.data(), .z_weight = 0, .lse = lse.data(), .scale = &scale, .dlogits = dlogits.data()});
  });
}

void measure_optimizer(Bench& bench) {
  const std::vector<float> gradient = numbers(weights, 0);
  std::vector<float> master(gradient.size()), moment1(gradient.size()), moment2(gradient.size());
  const OptimizerScalars scalars{.learning_rate = 1e-3, .clip = 1, .bias1 = 0.1, .bias2 = 0.05, .skip = 0};
  const double count = static_cast<double>(weights);
  double sum = 0;
  bench.measure("reduce", count, [&] { dispatch(bench.rank, ReduceArgs{.type = DType::f32, .count = weights, .power = 2, .x = gradient.data(), .result = &sum}); });
  bench.measure("adamw", 7 * count, [&] {
    dispatch(bench.rank, AdamWArgs{.type = DType::f32, .count = weights, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .scalars = &scalars, .gradient = gradient.data(),
                                   .master = master.data(), .moment1 = moment1.data(), .moment2 = moment2.data(), .value = nullptr});
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
