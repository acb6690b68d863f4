// Whole passes of a model: tokens per second of a small one, and a large one's full step with its memory.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>

#include "bench/gpu/made_values.h"
#include "bench/gpu/phases.h"
#include "bench/gpu/timing.h"
#include "model/model.h"
#include "model/optimizer.h"
#include "runtime/accelerator.h"

namespace quire::gpu_report {

namespace {

constexpr double gibibyte = 1 << 30;

/// A microbatch of rows, each cut into documents of equal lengths.
struct MadeBatch {
  std::vector<int32_t> tokens, targets;
  Documents documents;

  MadeBatch(int64_t rows, int64_t row_tokens, int64_t documents_per_row, int64_t vocabulary) {
    std::vector<int64_t> lengths;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < documents_per_row; ++i) lengths.push_back(row_tokens * (i + 1) / documents_per_row - row_tokens * i / documents_per_row);
    documents = Documents::from_lengths(lengths);
    for (int64_t i = 0; i < rows * row_tokens; ++i) {
      tokens.push_back(static_cast<int32_t>(random_bits(4, 1, 0, static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocabulary)));
      targets.push_back(static_cast<int32_t>(random_bits(4, 2, 0, static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocabulary)));
    }
    const std::vector<int32_t> positions = documents.positions();
    for (size_t i = 0; i < targets.size(); ++i)  // a document's last token predicts nothing
      if (i + 1 == targets.size() || positions[i + 1] == 0) targets[i] = ignored_target;
  }
};

/// Floating-point operations of forward and backward: 6 per weight of a product and token, 12 times the head size per pair and head.
double pass_flops(const ModelConfig& model, int64_t tokens, int64_t pairs) {
  const double queries = static_cast<double>(model.n_heads * model.head_dim), keys = static_cast<double>(model.n_kv_heads * model.head_dim), dim = static_cast<double>(model.dim);
  const double layers = static_cast<double>(model.n_layers), weights = layers * dim * (2 * queries + 2 * keys + 3 * static_cast<double>(model.ffn_hidden_dim)) + dim * static_cast<double>(model.vocab_size);
  return 6 * weights * static_cast<double>(tokens) + 12 * queries * layers * static_cast<double>(pairs);
}

/// A model on a rank, and its passes.
class Passes {
 public:
  Passes(Rank& rank, const ModelConfig& config, Recomputation recomputation) : rank_(rank), model_(rank, config, DType::bf16), recomputation_(recomputation) {
    model_.initialize(rank, 1);
  }
  Model& model() { return model_; }

  void set_batch(const MadeBatch& made) {
    microbatch_ = Microbatch::make(rank_, made.tokens, made.targets, made.documents);
    const double gradient = 1.0 / static_cast<double>(microbatch_.valid);
    loss_gradient_ = Tensor::from<double>(rank_, {1}, std::span(&gradient, 1));
  }
  void zero_gradients() { model_.parameters().zero_gradients(rank_); }
  void forward_backward() {
    ForwardOptions options;
    options.recomputation = recomputation_;
    options.loss_gradient = loss_gradient_;
    Tape tape(rank_);
    const Value loss = model_.loss(tape, microbatch_, options);
    loss_ = loss.tensor;
    tape.backward(std::span(&loss, 1), std::span(&loss_gradient_, 1));
  }
  void step(AdamW& optimizer) {
    zero_gradients();
    forward_backward();
    model_.parameters().combine_uses(rank_);
    optimizer.step(rank_, loss_, 1e-4);
  }
  /// Nats per scored token, of the last pass. Waits.
  double loss() const { return loss_.to_vector<double>()[0] / static_cast<double>(microbatch_.valid); }

 private:
  Rank& rank_;
  Model model_;
  Recomputation recomputation_;
  Microbatch microbatch_;
  Tensor loss_gradient_, loss_;
};

void measure_small(Rank& rank, const PhaseOptions& options, PhaseReport& report, const Peak& peak) {
  ModelConfig config{.dim = 768, .n_layers = 12, .n_heads = 12, .vocab_size = 32000, .ffn_hidden_dim = 2048, .max_seq_len = 8192, .tie_embeddings = false};
  if (options.tiny) config = {.dim = 64, .n_layers = 1, .n_heads = 1, .vocab_size = 40, .ffn_hidden_dim = 64, .max_seq_len = 128, .tie_embeddings = false};
  config = config.resolved();
  const int64_t documents = options.tiny ? 2 : 8, microbatch_tokens = options.tiny ? 128 : 32768;
  const auto before = std::chrono::steady_clock::now();
  Passes passes(rank, config, Recomputation::none);
  report.note(fmt::format("Small model: {:.1f}M parameters (dim {}, {} layers, {} heads of {}, feed-forward {}, vocabulary {}), bf16, attention `block`; made in {:.1f} s.",
                          static_cast<double>(config.parameter_count()) * 1e-6, config.dim, config.n_layers, config.n_heads, config.head_dim, config.ffn_hidden_dim, config.vocab_size,
                          std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count()));
  std::vector<Column> columns = {{"row_tokens", "tokens of a row"}, {"rows", "rows"}, {"documents_per_row", "documents of a row"}};
  add_time_columns(columns);
  columns.insert(columns.end(), {Column{"tokens_per_second", "tokens/s"}, Column{"share_of_peak", "share of peak"}, Column{"loss", "loss"}});
  report.table("small_model", "Forward and backward of one microbatch, gradients added in f32; no optimizer.", std::move(columns));
  for (const int64_t row_tokens : options.tiny ? std::vector<int64_t>{32, 128} : std::vector<int64_t>{512, 2048, 8192}) {
    const int64_t rows = microbatch_tokens / row_tokens;
    const MadeBatch made(rows, row_tokens, documents, config.vocab_size);
    passes.set_batch(made);
    passes.zero_gradients();
    const std::vector<double> seconds = device_seconds(rank, options.tiny ? TimingOptions{0, 1, 0} : TimingOptions{2, 10, 3}, [&] { passes.forward_backward(); });
    std::vector<Cell> cells = {{static_cast<double>(row_tokens), 0}, {static_cast<double>(rows), 0}, {static_cast<double>(documents), 0}};
    add_times(cells, seconds);
    const double median = bench::median_of(seconds), flops = pass_flops(config, microbatch_tokens, made.documents.useful_pairs());
    cells.insert(cells.end(), {Cell(static_cast<double>(microbatch_tokens) / median, 0), Cell(peak.flops > 0 ? flops / median / peak.flops : NAN, 3), Cell(passes.loss(), 3)});
    report.row(std::move(cells));
    if (!std::isfinite(passes.loss())) report.failure(fmt::format("the loss of rows of {} tokens is {}", row_tokens, passes.loss()));
  }
}

/// Bytes that a step reserves, rehearsed on the null device, which takes memory as any device does.
int64_t predicted_bytes(const ModelConfig& config, const MadeBatch& made, Recomputation recomputation) {
  Rank rank(RankOptions{.device = {DeviceKind::null, 0}});
  Passes passes(rank, config, recomputation);
  AdamW optimizer(rank, passes.model().parameters(), {});
  passes.set_batch(made);
  passes.step(optimizer);
  return rank.allocator().reserved();
}

void measure_large(Rank& rank, const PhaseOptions& options, PhaseReport& report, const Peak& peak) {
  ModelConfig config{.dim = 2048, .n_layers = 16, .n_heads = 32, .n_kv_heads = 8, .vocab_size = 32000, .ffn_hidden_dim = 8192, .max_seq_len = 4096};
  if (options.tiny) config = {.dim = 64, .n_layers = 2, .n_heads = 2, .n_kv_heads = 1, .vocab_size = 40, .ffn_hidden_dim = 64, .max_seq_len = 128};
  config = config.resolved();
  const int64_t row_tokens = options.tiny ? 64 : 4096, documents = options.tiny ? 2 : 8;
  // The most rows that fit, without recomputation where there is room for it.
  struct Choice { int64_t rows; Recomputation recomputation; const char* name; };
  const int64_t room = rank.accelerator()->free_bytes() - (int64_t{3} << 30);
  std::optional<Choice> chosen;
  int64_t predicted = 0;
  for (const Choice& choice : {Choice{8, Recomputation::none, "none"}, {4, Recomputation::none, "none"}, {2, Recomputation::none, "none"}, {2, Recomputation::full, "full"},
                               {1, Recomputation::full, "full"}}) {
    const Choice tried{options.tiny ? 1 : choice.rows, choice.recomputation, choice.name};
    predicted = predicted_bytes(config, MadeBatch(tried.rows, row_tokens, documents, config.vocab_size), tried.recomputation);
    if (static_cast<double>(predicted) <= 0.95 * static_cast<double>(room)) {
      chosen = tried;
      break;
    }
  }
  report.note(fmt::format("Large model: {:.2f}B parameters (dim {}, {} layers, {} heads of {}, {} of keys, feed-forward {}, vocabulary {}, tied), bf16 with f32 masters and moments.",
                          static_cast<double>(config.parameter_count()) * 1e-9, config.dim, config.n_layers, config.n_heads, config.head_dim, config.n_kv_heads, config.ffn_hidden_dim, config.vocab_size));
  if (!chosen) {
    report.note(fmt::format("It does not fit: {:.1f} GiB are needed for one row of {} tokens with full recomputation; free: {:.1f} GiB.", static_cast<double>(predicted) / gibibyte, row_tokens,
                            static_cast<double>(room) / gibibyte));
    return;
  }
  std::vector<Column> columns = {{"rows", "rows"}, {"row_tokens", "tokens of a row"}, {"documents_per_row", "documents of a row"}, {"recomputation", "recomputation"}};
  add_time_columns(columns);
  columns.insert(columns.end(), {Column{"tokens_per_second", "tokens/s"}, Column{"share_of_peak", "share of peak"}, Column{"predicted_gib", "GiB predicted"}, Column{"used_gib", "GiB used"},
                                 Column{"device_gib", "GiB less free on the device"}, Column{"first_loss", "first loss"}, Column{"last_loss", "last loss"}, Column{"host_reads", "host reads in steps"}});
  report.table("large_model", "Full steps: forward, backward, clipping and AdamW. Predicted: what the null device reserves; used: what this rank reserved.", std::move(columns));
  const int64_t free_before = rank.accelerator()->free_bytes();
  const MadeBatch made(chosen->rows, row_tokens, documents, config.vocab_size);
  Passes passes(rank, config, chosen->recomputation);
  AdamW optimizer(rank, passes.model().parameters(), {});
  passes.set_batch(made);
  passes.step(optimizer);
  const double first_loss = passes.loss();
  const int64_t reads_before = rank.accelerator()->host_reads();
  const std::vector<double> seconds = device_seconds(rank, options.tiny ? TimingOptions{0, 1, 0} : TimingOptions{1, 10, 8}, [&] { passes.step(optimizer); });
  const int64_t reads = rank.accelerator()->host_reads() - reads_before - 2;  // the timing itself waits twice
  const int64_t tokens = made.documents.tokens();
  const double median = bench::median_of(seconds), flops = pass_flops(config, tokens, made.documents.useful_pairs());
  std::vector<Cell> cells = {{static_cast<double>(chosen->rows), 0}, {static_cast<double>(row_tokens), 0}, {static_cast<double>(documents), 0}, chosen->name};
  add_times(cells, seconds);
  cells.insert(cells.end(), {Cell(static_cast<double>(tokens) / median, 0), Cell(peak.flops > 0 ? flops / median / peak.flops : NAN, 3), Cell(static_cast<double>(predicted) / gibibyte, 2),
                             Cell(static_cast<double>(rank.allocator().reserved()) / gibibyte, 2), Cell(static_cast<double>(free_before - rank.accelerator()->free_bytes()) / gibibyte, 2),
                             Cell(first_loss, 4), Cell(passes.loss(), 4), Cell(static_cast<double>(reads), 0)});
  report.row(std::move(cells));
  if (!(passes.loss() < first_loss)) report.failure(fmt::format("the loss did not fall: {} after the first step, {} after the last", first_loss, passes.loss()));
  if (reads != 0) report.failure(fmt::format("{} host reads inside steps; allowed: none", reads));
  report.note(fmt::format("Memory by what it is for:\n\n```\n{}\n```", rank.allocator().table()));
}

}  // namespace

void measure_steps(Rank&, const PhaseOptions& options, PhaseReport& report) {
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));  // initial weights are drawn on the host
  const RankOptions on_device{.threads = options.tiny ? 1 : threads, .device = {DeviceKind::cuda, 0}};
  {
    Rank rank(on_device);
    measure_small(rank, options, report, peak_of(rank.accelerator()->description()));
  }
  Rank rank(on_device);  // its memory is the large model's alone
  measure_large(rank, options, report, peak_of(rank.accelerator()->description()));
}

}  // namespace quire::gpu_report
