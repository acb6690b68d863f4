#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "bench/blas_peers.h"
#include "bench/common.h"
#include "bench/core_probe.h"
#include "bench/kernels.h"
#include "ops/kernels.h"
#include "run/machine.h"
#include "runtime/dispatch.h"

namespace quire::bench {

namespace {

struct Layer {
  int64_t tokens, outputs, inputs;
};
/// Of the shapes that `bench step` trains: projections, feed-forward layers and heads of a and b; and one large square.
constexpr Layer layers[] = {{4096, 256, 256}, {4096, 128, 256}, {4096, 688, 256},  {4096, 256, 688},  {1024, 1024, 256},
                            {4096, 512, 512}, {4096, 1376, 512}, {4096, 512, 1376}, {512, 8192, 512}, {2048, 2048, 2048}};

Tensor narrowed(Rank& rank, const Tensor& wide) {
  Tensor narrow = Tensor::empty(rank, wide.shape(), DType::bf16);
  dispatch(rank, CastArgs{DType::f32, DType::bf16, wide.elements(), wide.raw(), narrow.raw()});
  return narrow;
}

/// Which of nt, nn, tn: what is multiplied with what.
struct Form {
  std::string name;
  bool transpose_a, transpose_b;
  int64_t m, n, k;
  Tensor a, b, a16, b16;       // f32 and bf16
  DType narrow_result;         // weight gradients accumulate in f32
};

MatmulArgs arguments(const Form& form, DType type, DType result, const Tensor& a, const Tensor& b, const Tensor& c) {
  MatmulArgs args{.type = type, .c_type = result, .m = form.m, .n = form.n, .k = form.k, .a = a.raw(), .b = b.raw(), .c = c.raw(), .c_row = form.n};
  args.a_row = form.transpose_a ? 1 : form.k;
  args.a_col = form.transpose_a ? form.m : 1;
  args.b_row = form.transpose_b ? 1 : form.n;
  args.b_col = form.transpose_b ? form.k : 1;
  return args;
}

/// Processor seconds of one call: so many that they are worth measuring.
double seconds_of(const std::function<void()>& call, int64_t calls) {
  const double start = thread_seconds();
  for (int64_t i = 0; i < calls; ++i) call();
  return (thread_seconds() - start) / static_cast<double>(calls);
}

}  // namespace

void bench_products(const KernelsOptions& options, KernelsResult& result) {
  Rank rank;
  std::vector<BlasPeer> peers;
  for (std::optional<BlasPeer> peer : {load_openblas(options.openblas), eigen_peer()})
    if (peer) peers.push_back(*peer);
  for (const BlasPeer& peer : peers) result.libraries.push_back(fmt::format("{}: {}", peer.name, peer.build));
  CoreGate gate(rank, options.tries);
  const auto has = [&](const char* dtype) { return std::ranges::find(options.dtypes, dtype) != options.dtypes.end(); };
  for (const Layer& layer : layers) {
    const auto [t, n, k] = layer;
    const Tensor x = random_numbers(rank, t * k, 0), w = random_numbers(rank, n * k, 1), dy = random_numbers(rank, t * n, 2);
    const Tensor x16 = narrowed(rank, x), w16 = narrowed(rank, w), dy16 = narrowed(rank, dy);
    const Tensor c = no_numbers(rank, std::max({t * n, t * k, n * k}));
    for (const Form& form : {Form{"nt", false, true, t, n, k, x, w, x16, w16, DType::bf16},
                             Form{"nn", false, false, t, k, n, dy, w, dy16, w16, DType::bf16},
                             Form{"tn", true, false, n, k, t, dy, x, dy16, x16, DType::f32}}) {
      ProductLine line{.form = form.name, .tokens = t, .outputs = n, .inputs = k, .flops = 2.0 * static_cast<double>(t * n * k), .probe = 0, .times = {}};
      std::vector<std::pair<KernelTime, std::function<void()>>> sides;
      if (has("f32")) sides.push_back({{.name = "quire f32"}, [&] { dispatch(rank, arguments(form, DType::f32, DType::f32, form.a, form.b, c)); }});
      if (has("bf16")) sides.push_back({{.name = "quire bf16"}, [&] { dispatch(rank, arguments(form, DType::bf16, form.narrow_result, form.a16, form.b16, c)); }});
      if (has("f32"))
        for (const BlasPeer& peer : peers)
          sides.push_back({{.name = peer.name}, [&] { peer.product(form.transpose_a, form.transpose_b, form.m, form.n, form.k, form.a.data<float>(), form.b.data<float>(), c.data<float>()); }});
      const int64_t calls = std::max<int64_t>(1, static_cast<int64_t>(1e9 / line.flops));
      for (auto& side : sides) side.second();
      for (int64_t pair = 0; pair < options.pairs; ++pair) {
        line.probe = std::max(line.probe, measure_peak_flops(rank));
        for (auto& [time, call] : sides) time.seconds.push_back(gate.measure([&] { return seconds_of(call, calls); }));
      }
      for (auto& [time, call] : sides) {
        for (size_t i = 0; i < time.seconds.size(); ++i) time.ratios.push_back(time.seconds[i] / sides.front().first.seconds[i]);
        time.share = line.flops / median_of(time.seconds) / line.probe;
        line.times.push_back(time);
      }
      if (options.progress) options.progress(fmt::format("{} {} x {} x {}: {:.0f} % of the probe", form.name, t, n, k, 100 * line.times[0].share));
      result.products.push_back(std::move(line));
    }
  }
  result.gates.push_back("products: " + gate.summary());
}

}  // namespace quire::bench
