#include "ops/attention.h"

#include <algorithm>
#include <cmath>

#include "ops/cuda/attention_cudnn_calls.h"
#include "ops/elementwise.h"
#include "ops/kernels.h"
#include "runtime/accelerator.h"
#include "runtime/dispatch.h"

namespace quire {

AttentionBackend attention_backend_from(std::string_view name) {
  if (name == "block") return AttentionBackend::block;
  if (name == "dense") return AttentionBackend::dense;
  if (name == "cudnn") return AttentionBackend::cudnn;
  const std::string near = nearest(name, {"block", "dense", "cudnn"});
  fail<ConfigError>("attention", "unknown backend '{}'; allowed: block, dense, cudnn{}", name, near.empty() ? "" : "; nearest: " + near);
}

/// What kernels read lies in `memory`; runs go to the device as they are.
struct RunList::Tables {
  struct Table {
    const Rank* rank;
    int64_t tokens;
    Tensor runs, global, start, tiles;
  };
  std::vector<Table> list;

  struct Batches {
    const Rank* rank;
    std::vector<DocumentBatch> list;
    Tensor begins, lengths;
    DocumentBatches view;
  };
  std::vector<std::unique_ptr<Batches>> batches;  // views refer to the lists
};

BoundaryTable RunList::table(Rank& rank, int64_t tokens) const {
  if (rank.accelerator() == nullptr) return {};
  if (!tables_) tables_ = std::make_shared<Tables>();
  const auto found = std::find_if(tables_->list.begin(), tables_->list.end(), [&](const Tables::Table& t) { return t.rank == &rank && t.tokens == tokens; });
  const auto view = [](const Tables::Table& t) {
    return BoundaryTable{t.global.data<int32_t>(), t.start.data<int32_t>(), reinterpret_cast<const TileBoundaries*>(t.tiles.data<int32_t>())};
  };
  if (found != tables_->list.end()) return view(*found);
  static_assert(sizeof(DocumentRun) == 4 * sizeof(int32_t) && sizeof(TileBoundaries) == 4 * sizeof(int32_t));
  const auto count = static_cast<int64_t>(size()), tiles = (tokens + boundary_tile - 1) / boundary_tile;
  const auto integers = [&](int64_t n) { return Tensor::empty(rank, {n}, DType::i32, Category::data); };
  const Tables::Table made{&rank, tokens, Tensor::from<int32_t>(rank, {4 * count}, {reinterpret_cast<const int32_t*>(data()), static_cast<size_t>(4 * count)}, Category::data),
                           integers(tokens), integers(tokens), integers(4 * tiles)};
  dispatch(rank, BoundaryTableArgs{tokens, count, reinterpret_cast<const DocumentRun*>(made.runs.raw()), made.global.data<int32_t>(), made.start.data<int32_t>(),
                                   reinterpret_cast<TileBoundaries*>(made.tiles.raw())});
  tables_->list.push_back(made);
  return view(made);
}

void RunList::set_table(Rank& rank, const Tensor& global, const Tensor& start, const Tensor& tiles) {
  tables_ = std::make_shared<Tables>();
  tables_->list.push_back({&rank, global.elements(), {}, global, start, tiles});
}

const DocumentBatches& RunList::batches(Rank& rank) const {
  if (!tables_) tables_ = std::make_shared<Tables>();
  for (const auto& each : tables_->batches)
    if (each->rank == &rank) return each->view;
  DocumentTables made = document_tables(*this);
  const auto tensor = [&](const std::vector<int32_t>& values) { return Tensor::from<int32_t>(rank, {static_cast<int64_t>(values.size())}, values, Category::data); };
  auto kept = std::make_unique<Tables::Batches>(Tables::Batches{&rank, std::move(made.batches), tensor(made.begins), tensor(made.lengths), {}});
  kept->view = {kept->list, kept->begins.data<int32_t>(), kept->lengths.data<int32_t>(), kept->begins.elements()};
  return tables_->batches.emplace_back(std::move(kept))->view;
}

std::string_view name_of(AttentionBackend backend) {
  return backend == AttentionBackend::block ? "block" : backend == AttentionBackend::dense ? "dense" : "cudnn";
}

void check_attention_backend(Rank& rank, const AttentionOptions& options, DType dtype) {
  if (options.backend != AttentionBackend::cudnn || !rank.computes()) return;
  const char* const way_out = "allowed there: the backends \"block\" and \"dense\"";
  if (rank.accelerator() == nullptr)
    fail<UnsupportedError>("attention", "model.attention_backend \"cudnn\": found: the CPU; needed: a CUDA device (run.device = \"cuda\"); {}", way_out);
  if (dtype != DType::bf16)
    fail<UnsupportedError>("attention", "model.attention_backend \"cudnn\": found: {}; needed: bf16; allowed: train.mixed_precision = \"bf16\", or the backend \"block\"", name_of(dtype));
  check_cudnn_attention(rank, options);
}

int64_t attention_workspace(Rank& rank, const AttentionOptions& options, DType dtype, int64_t longest, int64_t tokens) {
  if (options.backend != AttentionBackend::cudnn || options.window != 0 || longest < 1) return 0;
  check_attention_backend(rank, options, dtype);
  return cudnn_attention_workspace(rank, options, longest, tokens);
}

namespace {

/// Not every row needs a document: a cache has rows that hold no token yet, and not every query reads a key at hand.
void check_runs(std::string_view what, const std::vector<DocumentRun>& runs, std::string_view name, const Tensor& tensor) {
  for (int64_t end = 0; const DocumentRun& run : runs) {
    if (run.local < end || run.length < 1 || int64_t{run.local} + run.length > tensor.size(0))
      fail<ShapeError>("attention", "boundaries of {} [{}, {}) do not follow [.., {}) inside of {} {}", what, run.local, int64_t{run.local} + run.length, end,
                       name, describe(tensor));
    end = int64_t{run.local} + run.length;
  }
}

void check(const Tensor& q, const Tensor& k, const Tensor& v, const std::vector<DocumentRun>& query_runs, const std::vector<DocumentRun>& key_runs,
           const AttentionOptions& options) {
  const bool right = q.shape().dims() == 2 && k.shape().dims() == 2 && q.size(1) == options.heads * options.head_dim &&
                     k.size(1) == options.kv_heads * options.head_dim && k.shape() == v.shape() && options.kv_heads > 0 && options.heads % options.kv_heads == 0;
  if (!right)
    fail<ShapeError>("attention", "q {} k {} v {} with {} query heads, {} key/value heads of {}", describe(q), describe(k), describe(v), options.heads,
                     options.kv_heads, options.head_dim);
  if (q.dtype() != k.dtype() || q.dtype() != v.dtype()) fail<DTypeError>("attention", "q {} k {} v {}: one dtype is needed", describe(q), describe(k), describe(v));
  check_runs("queries", query_runs, "q", q);
  check_runs("keys", key_runs, "k", k);
  constexpr int64_t largest = 256;  // of the kernels of every device
  if (options.backend == AttentionBackend::block && options.head_dim > largest)
    fail<UnsupportedError>("attention", "heads of {} values with the backend 'block'; allowed: up to {}, or on the CPU the backend 'dense'", options.head_dim, largest);
  if (options.window < 0) fail<ShapeError>("attention", "window {}; allowed: 0 (none) or more", options.window);
}

double scale_of(const AttentionOptions& options) { return options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(options.head_dim)); }

AttentionPartial make_partial(Rank& rank, const Tensor& q, const AttentionOptions& options, DType dtype) {
  return {Tensor::empty(rank, q.shape(), dtype), Tensor::empty(rank, {q.size(0), options.heads}, accumulator_of(q.dtype()))};
}

/// The batches for cuDNN where it is to compute this: documents that read themselves alone.
const DocumentBatches* batches_for(Rank& rank, const DocumentRuns& runs, const AttentionOptions& options) {
  if (options.backend != AttentionBackend::cudnn || !rank.computes()) return nullptr;
  if (options.window == 0) return &runs->batches(rank);
  constexpr const char *key = "attention.windows", *rule = "block";
  if (Accelerator* const device = rank.accelerator(); device != nullptr && !device->choices().contains(key)) {
    device->choose(key, rule);
    device->note(fmt::format("layers with a sliding window use the attention backend {}: cuDNN computes those without", rule));
  }
  return nullptr;
}

void forward(Rank& rank, const Tensor& q, const Tensor& k, const Tensor& v, const DocumentRuns& query_runs, const DocumentRuns& key_runs,
             const AttentionOptions& options, const AttentionPartial& into, const DocumentBatches* batches = nullptr) {
  check(q, k, v, *query_runs, *key_runs, options);
  const Tensor &out = into.out, &lse = into.lse;
  const DType accumulator = accumulator_of(q.dtype());
  if (!(out.shape() == q.shape()) || (out.dtype() != q.dtype() && out.dtype() != accumulator) || !(lse.shape() == Shape{q.size(0), options.heads}) ||
      lse.dtype() != accumulator)
    fail<ShapeError>("attention", "q {} into out {} and lse {}", describe(q), describe(out), describe(lse));
  require_contiguous("attention", lse);
  dispatch(rank, AttentionForwardArgs{q.dtype(), options.heads, options.kv_heads, options.head_dim, q.size(0), k.size(0), *query_runs, *key_runs, options.window,
                                      scale_of(options), q.raw(), q.stride(0), k.raw(), k.stride(0), v.raw(), v.stride(0), out.raw(), out.stride(0), lse.raw(),
                                      options.backend == AttentionBackend::dense, out.dtype() != q.dtype(), query_runs->table(rank, q.size(0)),
                                      key_runs->table(rank, k.size(0)), batches});
}

void backward(Rank& rank, const Tensor& q, const Tensor& k, const Tensor& v, const DocumentRuns& query_runs, const DocumentRuns& key_runs, const Tensor& dout,
              const Tensor& lse, const Tensor& delta, const AttentionOptions& options, const Tensor& dq, const Tensor& dk, const Tensor& dv, bool overwrite, const DocumentBatches* batches = nullptr,
              const Tensor* out = nullptr) {
  check(q, k, v, *query_runs, *key_runs, options);
  dispatch(rank, AttentionBackwardArgs{q.dtype(), options.heads, options.kv_heads, options.head_dim, q.size(0), k.size(0), *query_runs, *key_runs, options.window,
                                       scale_of(options), q.raw(), q.stride(0), k.raw(), k.stride(0), v.raw(), v.stride(0), dout.raw(), dout.stride(0), lse.raw(),
                                       delta.raw(), dq.raw(), dq.stride(0), dk.raw(), dk.stride(0), dv.raw(), dv.stride(0),
                                       options.backend == AttentionBackend::dense, overwrite, query_runs->table(rank, q.size(0)), key_runs->table(rank, k.size(0)),
                                       batches, out != nullptr ? out->raw() : nullptr, out != nullptr ? out->stride(0) : 0});
}

class AttentionNode final : public Node {
 public:
  AttentionNode(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionPartial& result, DocumentRuns runs, const AttentionOptions& options)
      : runs_(std::move(runs)), options_(options), q_(save(q, For::input_gradient)), k_(save(k, For::input_gradient)), v_(save(v, For::input_gradient)),
        out_(save(result.out, For::input_gradient)), lse_(save(result.lse, For::input_gradient)) {}
  std::string_view name() const override { return "attention"; }

  void input_gradient(Tape& tape, const Tensor& grad) override {
    Rank& rank = tape.rank();
    const Tensor &q = saved(q_), &k = saved(k_), &v = saved(v_);
    const DocumentBatches* const batches = batches_for(rank, runs_, options_);
    const Tensor& out = saved(out_);
    const Tensor delta = batches == nullptr ? attention_delta(rank, out, grad, options_) : saved(lse_);  // cuDNN makes its own
    const DType accumulator = accumulator_of(q.dtype());
    const Tensor dq = Tensor::empty(rank, q.shape(), accumulator), dk = Tensor::empty(rank, k.shape(), accumulator), dv = Tensor::empty(rank, v.shape(), accumulator);
    backward(rank, q, k, v, runs_, runs_, grad, saved(lse_), delta, options_, dq, dk, dv, true, batches, &out);
    tape.add_gradient(input(0), cast(rank, dq, q.dtype()));
    tape.add_gradient(input(1), cast(rank, dk, k.dtype()));
    tape.add_gradient(input(2), cast(rank, dv, v.dtype()));
  }

 private:
  DocumentRuns runs_;
  AttentionOptions options_;
  int q_, k_, v_, out_, lse_;
};

}  // namespace

AttentionPartial attention_partial(Rank& rank, const Tensor& q, const Tensor& k, const Tensor& v, const DocumentRuns& query_runs, const DocumentRuns& key_runs,
                                   const AttentionOptions& options) {
  AttentionPartial result = make_partial(rank, q, options, accumulator_of(q.dtype()));
  forward(rank, q, k, v, query_runs, key_runs, options, result);
  return result;
}

void attention_partial(Rank& rank, const Tensor& q, const Tensor& k, const Tensor& v, const DocumentRuns& query_runs, const DocumentRuns& key_runs,
                       const AttentionOptions& options, const AttentionPartial& into) {
  forward(rank, q, k, v, query_runs, key_runs, options, into);
}

void attention_merge(Rank& rank, const AttentionPartial& into, const AttentionPartial& other, const AttentionOptions& options) {
  const auto all = std::make_shared<RunList>();
  if (into.out.size(0) > 0) all->push_back({0, 0, static_cast<int32_t>(into.out.size(0)), 0});
  attention_merge(rank, into, other, all, options);
}

void attention_merge(Rank& rank, const AttentionPartial& into, const AttentionPartial& other, const DocumentRuns& runs, const AttentionOptions& options) {
  check_runs("rows", *runs, "out", into.out);
  if (!(into.out.shape() == other.out.shape()) || into.out.dtype() != other.out.dtype())
    fail<ShapeError>("attention_merge", "{} and {}", describe(into.out), describe(other.out));
  dispatch(rank, AttentionMergeArgs{into.out.dtype(), into.out.size(0), options.heads, options.head_dim, *runs, into.out.raw(), into.lse.raw(), other.out.raw(),
                                    other.lse.raw(), runs->table(rank, into.out.size(0))});
}

Tensor attention_delta(Rank& rank, const Tensor& out, const Tensor& dout, const AttentionOptions& options) {
  if (!(out.shape() == dout.shape()) || out.dtype() != dout.dtype()) fail<ShapeError>("attention_delta", "out {} with gradient {}", describe(out), describe(dout));
  const Tensor delta = Tensor::empty(rank, {out.size(0), options.heads}, accumulator_of(out.dtype()));
  dispatch(rank, AttentionDeltaArgs{out.dtype(), out.size(0), options.heads, options.head_dim, out.raw(), dout.raw(), delta.raw()});
  return delta;
}

void attention_backward(Rank& rank, const Tensor& q, const Tensor& k, const Tensor& v, const DocumentRuns& query_runs, const DocumentRuns& key_runs,
                        const Tensor& dout, const Tensor& lse, const Tensor& delta, const AttentionOptions& options, const Tensor& dq, const Tensor& dk,
                        const Tensor& dv) {
  backward(rank, q, k, v, query_runs, key_runs, dout, lse, delta, options, dq, dk, dv, false);
}

Value attention(Tape& tape, const Value& q, const Value& k, const Value& v, const DocumentRuns& runs, const AttentionOptions& options) {
  Rank& rank = tape.rank();
  int64_t covered = 0;
  for (const DocumentRun& run : *runs) covered += run.length;
  if (covered != q.tensor.size(0)) fail<ShapeError>("attention", "boundaries cover {} queries, but q {}", covered, describe(q.tensor));
  const AttentionPartial result = make_partial(rank, q.tensor, options, q.tensor.dtype());
  forward(rank, q.tensor, k.tensor, v.tensor, runs, runs, options, result, batches_for(rank, runs, options));
  const Value inputs[] = {q, k, v};
  if (!tape.must_record(inputs, false)) return tape.constant(result.out);
  return tape.record(std::make_unique<AttentionNode>(q.tensor, k.tensor, v.tensor, result, runs, options), inputs, result.out);
}

}  // namespace quire
