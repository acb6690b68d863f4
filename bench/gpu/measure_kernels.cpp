// Attention at the shapes of public tables, and matrix products beside what the card can do.
#include <algorithm>
#include <cmath>

#include "bench/gpu/made_values.h"
#include "bench/gpu/phases.h"
#include "bench/gpu/timing.h"
#include "ops/attention.h"
#include "ops/kernels.h"
#include "runtime/accelerator.h"

namespace quire::gpu_report {

namespace {

constexpr double tera = 1e12;

TimingOptions timing(const PhaseOptions& options) { return options.tiny ? TimingOptions{0, 1, 0} : TimingOptions{2, 10, 0.6}; }

/// One line of attention's table: documents of a row, heads of a size.
struct AttentionShape {
  std::string mask;
  int64_t tokens, heads, head_dim;
};

std::vector<int64_t> lengths_of(const std::string& mask, int64_t tokens) {
  return mask == "documents" ? made_lengths(tokens, static_cast<double>(tokens) / 16, 5) : std::vector{tokens};
}

/// Attention of one shape by one backend. `full`: every query reads every key, as queries that come after all keys of one document.
class AttentionRun {
 public:
  AttentionRun(Rank& rank, const AttentionShape& shape, const std::string& backend)
      : rank_(rank), full_(shape.mask == "full"),
        options_{.heads = shape.heads, .kv_heads = shape.heads, .head_dim = shape.head_dim, .backend = attention_backend_from(backend)} {
    const int64_t width = shape.heads * shape.head_dim;
    q_ = normal_values(rank, {shape.tokens, width}, 1, 1);
    k_ = normal_values(rank, {shape.tokens, width}, 1, 2);
    v_ = normal_values(rank, {shape.tokens, width}, 1, 3);
    dout_ = normal_values(rank, {shape.tokens, width}, 1, 4);
    const auto tokens = static_cast<int32_t>(shape.tokens);
    if (full_) {
      key_runs_ = std::make_shared<const RunList>(std::vector<DocumentRun>{{0, 0, tokens, 0}});
      query_runs_ = std::make_shared<const RunList>(std::vector<DocumentRun>{{0, tokens, tokens, 0}});
      pairs_ = static_cast<double>(shape.tokens) * static_cast<double>(shape.tokens);
      into_ = {Tensor::empty(rank, q_.shape(), DType::bf16), Tensor::empty(rank, {shape.tokens, shape.heads}, DType::f32)};
      dq_ = Tensor::zeros(rank, q_.shape(), DType::f32);
      dk_ = Tensor::zeros(rank, q_.shape(), DType::f32);
      dv_ = Tensor::zeros(rank, q_.shape(), DType::f32);
      return;
    }
    const std::vector<int64_t> lengths = lengths_of(shape.mask, shape.tokens);
    const Documents documents = Documents::from_lengths(lengths);
    key_runs_ = shared_runs(documents);
    pairs_ = static_cast<double>(documents.useful_pairs());
    documents_ = static_cast<int64_t>(lengths.size());
  }

  double forward_flops() const { return 4 * pairs_ * static_cast<double>(options_.heads * options_.head_dim); }
  double backward_flops() const { return 2.5 * forward_flops(); }
  int64_t documents() const { return documents_; }

  std::vector<double> forward(const TimingOptions& options) {
    return device_seconds(rank_, options, [this] {
      if (full_) attention_partial(rank_, q_, k_, v_, query_runs_, key_runs_, options_, into_);
      else pass();
    });
  }
  /// With everything that a training step does for it: delta, and gradients in bf16 where the tape makes them.
  std::vector<double> backward(const TimingOptions& options) {
    if (full_) {
      return device_seconds(rank_, options, [this] {
        const Tensor delta = attention_delta(rank_, into_.out, dout_, options_);
        attention_backward(rank_, q_, k_, v_, query_runs_, key_runs_, dout_, into_.lse, delta, options_, dq_, dk_, dv_);
      });
    }
    return device_seconds(rank_, options, [this] { tape_->backward(std::span(&out_, 1), std::span(&dout_, 1)); }, [this] { pass(); });
  }

 private:
  void pass() {
    out_ = {};
    tape_ = std::make_unique<Tape>(rank_);
    const Value q = tape_->leaf(q_), k = tape_->leaf(k_), v = tape_->leaf(v_);
    out_ = attention(*tape_, q, k, v, key_runs_, options_);
  }

  Rank& rank_;
  bool full_;
  AttentionOptions options_;
  Tensor q_, k_, v_, dout_, dq_, dk_, dv_;
  DocumentRuns query_runs_, key_runs_;
  AttentionPartial into_;
  std::unique_ptr<Tape> tape_;
  Value out_;
  double pairs_ = 0;
  int64_t documents_ = 1;
};

void measure_attention(Rank& rank, const PhaseOptions& options, PhaseReport& report, const Peak& peak) {
  const int64_t tokens = options.tiny ? 128 : 16384, width = options.tiny ? 128 : 2048;
  report.table("document_lengths", fmt::format("Documents of a row of {} tokens where the mask below is `documents`.", tokens), {{"document", "document"}, {"tokens", "tokens"}});
  for (const int64_t length : lengths_of("documents", tokens)) report.row({Cell(static_cast<double>(report.rows()), 0), Cell(static_cast<double>(length), 0)});
  std::vector<Column> columns = {{"backend", "backend"}, {"mask", "mask"}, {"documents", "documents"}, {"tokens", "tokens"}, {"heads", "heads"}, {"head_dim", "head size"}, {"pass", "pass"}};
  add_time_columns(columns);
  columns.insert(columns.end(), {Column{"teraflops", "TFLOP/s by useful pairs"}, Column{"share_of_peak", "share of peak"}, Column{"remark", "remark"}});
  report.table("attention", fmt::format("Attention, bf16, {} tokens, hidden {}: 4 x head size FLOPs a pair and head forward, 10 backward.", tokens, width), std::move(columns));
  for (const std::string mask : {"causal", "documents", "full"})
    for (const int64_t head_dim : {64, 128})
      for (const std::string backend : {"block", "cudnn"}) {
        const AttentionShape shape{mask, tokens, width / head_dim, head_dim};
        const auto line = [&](const char* pass, int64_t documents, const std::vector<double>& seconds, double flops, const std::string& remark) {
          std::vector<Cell> cells = {backend, mask, Cell(static_cast<double>(documents), 0), Cell(static_cast<double>(tokens), 0), Cell(static_cast<double>(shape.heads), 0),
                                     Cell(static_cast<double>(head_dim), 0), pass};
          add_times(cells, seconds);
          const double rate = seconds.empty() ? NAN : flops / bench::median_of(seconds);
          if (seconds.empty()) std::fill(cells.end() - 3, cells.end(), Cell(NAN, 0));
          cells.insert(cells.end(), {Cell(rate / tera, 1), Cell(peak.flops > 0 ? rate / peak.flops : NAN, 3), remark});
          report.row(std::move(cells));
        };
        try {
          AttentionRun run(rank, shape, backend);
          const std::vector<double> forward = run.forward(timing(options));
          line("forward", run.documents(), forward, run.forward_flops(), "");
          line("backward", run.documents(), run.backward(timing(options)), run.backward_flops(), "");
        } catch (const ConfigError& error) {  // a backend that this tree does not have
          line("both", 0, {}, 0, error.what());
        } catch (const UnsupportedError& error) {
          line("both", 0, {}, 0, error.what());
        }
      }
}

/// A product of a layer: its form (x W^T, dy W, x^T dy) and sizes.
struct ProductShape {
  const char* form;
  int64_t m, n, k;
};

void measure_product(Rank& rank, const PhaseOptions& options, PhaseReport& report, const Peak& peak, const ProductShape& shape, double& best) {
  const bool a_transposed = shape.form[0] == 't', b_transposed = shape.form[1] == 't';
  const Tensor a = normal_values(rank, a_transposed ? Shape{shape.k, shape.m} : Shape{shape.m, shape.k}, 1, 6);
  const Tensor b = normal_values(rank, b_transposed ? Shape{shape.n, shape.k} : Shape{shape.k, shape.n}, 1, 7);
  // Gradients of weights are added up in f32.
  const DType c_type = a_transposed ? DType::f32 : DType::bf16;
  const Tensor c = Tensor::zeros(rank, {shape.m, shape.n}, c_type);
  const MatmulArgs args{DType::bf16, c_type, shape.m, shape.n, shape.k, a.raw(), a_transposed ? 1 : shape.k, a_transposed ? shape.m : 1,
                        b.raw(), b_transposed ? 1 : shape.n, b_transposed ? shape.k : 1, c.raw(), shape.n, a_transposed};
  for (const Kernel<MatmulArgs>& kernel : cuda_kernels<MatmulArgs>()) {
    const std::string name = kernel.name;
    if (name == "tiles") continue;  // no tensor cores
    std::vector<Cell> cells = {shape.form, Cell(static_cast<double>(shape.m), 0), Cell(static_cast<double>(shape.n), 0), Cell(static_cast<double>(shape.k), 0), name};
    std::string remark;
    std::vector<double> seconds;
    try {
      if (kernel.can_run(args)) seconds = device_seconds(rank, timing(options), [&] { kernel.run(rank, args); });
      else remark = "can not run this";
    } catch (const UnsupportedError& error) {
      remark = error.what();
    }
    const double rate = seconds.empty() ? NAN : 2 * static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k) / bench::median_of(seconds);
    add_times(cells, seconds);
    if (seconds.empty()) std::fill(cells.end() - 3, cells.end(), Cell(NAN, 0));
    cells.insert(cells.end(), {Cell(rate / tera, 1), Cell(peak.flops > 0 ? rate / peak.flops : NAN, 3), remark});
    report.row(std::move(cells));
    if (rate > best) best = rate;
  }
}

}  // namespace

void measure_kernels(Rank& rank, const PhaseOptions& options, PhaseReport& report) {
  const Peak peak = peak_of(rank.accelerator()->description());
  report.note(peak.flops > 0 ? fmt::format("Peak: {:.1f} TFLOP/s of dense bf16 products ({}).", peak.flops / tera, peak.source)
                             : "Peak: this card is not in the table of bench/gpu/peaks.cpp; the fastest product below says what it reached.");
  std::vector<Column> columns = {{"form", "form"}, {"m", "m"}, {"n", "n"}, {"k", "k"}, {"kernel", "kernel"}};
  add_time_columns(columns);
  columns.insert(columns.end(), {Column{"teraflops", "TFLOP/s"}, Column{"share_of_peak", "share of peak"}, Column{"remark", "remark"}});
  report.table("products", "Matrix products, bf16: nt is x W^T, nn dy W, tn x^T dy (added in f32).", std::move(columns));
  double best = 0;
  const ProductShape full[] = {{"nt", 8192, 8192, 8192}, {"nt", 16384, 8192, 2048}, {"nn", 16384, 2048, 8192}, {"tn", 8192, 2048, 16384}};
  const ProductShape tiny[] = {{"nt", 128, 64, 64}, {"nn", 64, 64, 128}, {"tn", 64, 64, 64}};
  for (const ProductShape& shape : options.tiny ? std::span<const ProductShape>(tiny) : std::span<const ProductShape>(full)) measure_product(rank, options, report, peak, shape, best);
  report.note(fmt::format("The fastest product reached {:.1f} TFLOP/s.", best / tera));
  measure_attention(rank, options, report, peak);
  for (const auto& [key, choice] : rank.accelerator()->choices()) report.note(fmt::format("Algorithm of `{}`: `{}`.", key, choice));
  for (const std::string& text : rank.accelerator()->take_notes()) report.note(text);
}

}  // namespace quire::gpu_report
