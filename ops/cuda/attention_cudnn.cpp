// Attention over documents by cuDNN. A microbatch goes in batches of documents of about one length (ops/document_batches.h), each one execution of a plan that is
// made once for heads, head size, longest length and strides: never for tokens or a number of documents. Documents are places of a batch, with offsets and
// lengths in device memory. Engines are recorded and chosen again (Accelerator::choices).
#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "ops/attention.h"
#include "ops/cuda/attention_cudnn_calls.h"
#include "ops/cuda/attention_cudnn_graphs.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/versions.h"
#include "runtime/error.h"

namespace quire {

namespace cudnn_attention {

namespace {

constexpr int64_t row_alignment = 16;          ///< bytes
constexpr uintptr_t workspace_alignment = 256;  ///< bytes

const char* name_of(const CudnnFamily& family) { return !family.backward ? "forward" : family.unordered ? "backward_unordered" : "backward"; }

/// A device's handle, and its plans.
class CudnnState final : public CudaExtension {
 public:
  explicit CudnnState(CudaDevice& device) : device_(device) {
    // Packed documents with statistics of their own layout, in backward, are not what cuDNN offers on every device.
    if (device.compute_capability() / 10 != 9)
      fail<UnsupportedError>("attention", "model.attention_backend \"cudnn\": found: compute capability {}.{}; needed: 9.0; allowed: the backend \"block\"",
                             device.compute_capability() / 10, device.compute_capability() % 10);
    prefix_ = fmt::format("library={} device={}", cudnn().cudnnGetVersion(), device.compute_capability());
    const cudaStream_t stream = device.stream();  // makes the device the thread's current one, for which the handle is
    cudnnHandle_t made = nullptr;
    check_cudnn(cudnn().cudnnCreate(&made), "cudnnCreate");
    handle_.reset(made);
    check_cudnn(cudnn().cudnnSetStream(made, stream), "cudnnSetStream");
  }
  cudnnHandle_t handle() const { return handle_.get(); }

  const cudnn_graph::Plan& plan(const CudnnFamily& family) {
    const auto found = plans_.find(family);
    return found != plans_.end() ? found->second : plans_.emplace(family, make(family)).first->second;
  }

  /// Engines that cuDNN proposes; throws UnsupportedError with its reason where there is none.
  std::vector<cudnn_graph::Engine> engines(const CudnnFamily& family) const {
    std::vector<cudnn_graph::Engine> all = cudnn_graph::engines(handle(), family.backward ? cudnn_backward_graph(family) : cudnn_forward_graph(family));
    if (all.empty()) refuse(family);
    return all;
  }

 private:
  [[noreturn]] void refuse(const CudnnFamily& family) const {
    fail<UnsupportedError>("attention", "model.attention_backend \"cudnn\": cuDNN {} has no {} for {} heads of {} over {} key/value heads (\"{}\"); allowed: the backend \"block\"",
                           library_version_text(cudnn().cudnnGetVersion()), name_of(family), family.heads, family.head_dim, family.kv_heads, cudnn_reason());
  }

  cudnn_graph::Plan make(const CudnnFamily& family) {
    const std::string key = fmt::format("attention.{}.heads={}.kv_heads={}.head_dim={}.longest={}", name_of(family), family.heads, family.kv_heads, family.head_dim, family.longest);
    const std::vector<cudnn_graph::Engine> all = engines(family);
    // What was chosen in this run for other strides comes before what an earlier one recorded.
    const auto made = device_.choices().find(key);
    const std::string* const wanted = made != device_.choices().end() ? &made->second : device_.recorded_choice(key);
    if (wanted != nullptr) {
      for (const cudnn_graph::Engine& engine : all)
        if (text_of(engine) == *wanted)
          if (cudnn_graph::Plan plan = cudnn_graph::compile(handle(), engine); plan.plan) return chosen(key, engine, std::move(plan));
      device_.note(fmt::format("{}: the recorded choice `{}` can not be made with {}; another is made: results may differ in their last bits", key, *wanted, prefix_));
    }
    for (const cudnn_graph::Engine& engine : all)
      if (cudnn_graph::Plan plan = cudnn_graph::compile(handle(), engine); plan.plan) return chosen(key, engine, std::move(plan));
    refuse(family);
  }
  cudnn_graph::Plan chosen(const std::string& key, const cudnn_graph::Engine& engine, cudnn_graph::Plan plan) {
    device_.choose(key, text_of(engine));
    return plan;
  }
  std::string text_of(const cudnn_graph::Engine& engine) const { return prefix_ + " " + engine.text; }

  CudaDevice& device_;
  std::string prefix_;
  struct Destroy { void operator()(cudnnHandle_t handle) const { cudnn().cudnnDestroy(handle); } };
  std::unique_ptr<cudnnContext, Destroy> handle_;
  std::map<CudnnFamily, cudnn_graph::Plan> plans_;
};

template <class Args>
CudnnFamily family_of(const Args& args) {
  return {.heads = args.heads, .kv_heads = args.kv_heads, .head_dim = args.head_dim, .longest = 0, .places = 0, .q_row = args.q_row, .k_row = args.k_row, .v_row = args.v_row,
          .out_row = args.out_row, .dout_row = 0, .backward = false, .unordered = false};
}

struct Rows {
  const char* name;
  const void* data;
  int64_t row;
};
template <class Args>
void check_call(const Args& args, std::initializer_list<Rows> tensors) {
  if (args.type != DType::bf16)
    fail<UnsupportedError>("attention", "model.attention_backend \"cudnn\": found: {}; needed: bf16; allowed: train.mixed_precision = \"bf16\", or the backend \"block\"", quire::name_of(args.type));
  if (args.window != 0) fail<UnsupportedError>("attention", "model.attention_backend \"cudnn\": found: a window of {}; needed: none; allowed: the backend \"block\"", args.window);
  for (const Rows& tensor : tensors)
    if (reinterpret_cast<uintptr_t>(tensor.data) % row_alignment != 0 || tensor.row * 2 % row_alignment != 0)
      fail<UnsupportedError>("attention", "model.attention_backend \"cudnn\": found: rows of {} {} elements apart, from {} bytes past a multiple of {}; needed: rows on multiples of {} bytes; "
                             "allowed: the backend \"block\"", tensor.name, tensor.row, reinterpret_cast<uintptr_t>(tensor.data) % row_alignment, row_alignment, row_alignment);
}

/// Pairs that attend; which others cuDNN computes it does not say.
template <class Args>
void count_work(Rank& rank, const Args& args) {
  int64_t pairs = 0;
  for (const DocumentRun& run : args.query_runs) pairs += int64_t{run.length} * (run.length + 1) / 2;
  rank.work().computed_pairs += args.heads * pairs;
  rank.work().attended_pairs += args.heads * pairs;
}

/// One call: its tables on the device, and an execution for each batch.
class Call {
 public:
  Call(Rank& rank, const CudnnFamily& family, const DocumentBatches& batches, const BoundaryTable& table, int64_t tokens, double scale)
      : rank_(rank), state_(cuda(rank).extension<CudnnState>()), family_(family), batches_(batches), workspace_(rank.stack()), scale_(static_cast<float>(scale)),
        rows_(family.rows()) {
    offsets_ = workspace_.take<int64_t>(static_cast<int64_t>(rows_.size()) * batches.entries);
    OffsetRows all{};
    for (const int64_t row : rows_) all.row[all.count++] = row;
    lengths_ = workspace_.take<int32_t>(batches.entries);
    document_offsets(rank, batches, table, tokens, all, offsets_, lengths_);
  }

  void tensor(int64_t id, const void* data) { bindings_.push_back({id, data}); }
  /// A tensor of the graph that has offsets of its own.
  void tensor(int64_t id, const void* data, int64_t row) {
    tensor(id, data);
    own_rows_.push_back({id, row});
  }
  /// Room for this call.
  template <class T> T* take(int64_t count) { return static_cast<T*>(aligned(count * static_cast<int64_t>(sizeof(T)))); }

  void execute() {
    for (const DocumentBatch& batch : batches_.batches) {
      family_.longest = batch.longest;
      family_.places = batch.places;
      execute(batch);
    }
  }

 private:
  void* aligned(int64_t bytes) { return align(workspace_, bytes); }
  static void* align(Workspace& workspace, int64_t bytes) {
    char* const data = workspace.take<char>(bytes + static_cast<int64_t>(workspace_alignment));
    return data + (workspace_alignment - reinterpret_cast<uintptr_t>(data) % workspace_alignment) % workspace_alignment;
  }

  void execute(const DocumentBatch& batch) {
    const cudnn_graph::Plan& plan = state_.plan(family_);
    Workspace room(rank_.stack());
    std::vector<cudnn_graph::Binding> all = bindings_;
    for (const auto& [id, row] : own_rows_) {
      const int64_t table = std::lower_bound(rows_.begin(), rows_.end(), row) - rows_.begin();
      all.push_back({offsets_id + id, offsets_ + table * batches_.entries + batch.first});
    }
    for (const int64_t id : {query_lengths_id, key_lengths_id}) all.push_back({id, lengths_ + batch.first});
    all.push_back({scale_id, &scale_});
    all.push_back({infinity_id, &infinity_});
    if (family_.backward) {
      all.push_back({one_id, &one_});
      all.push_back({sums_id, align(room, family_.sums_bytes())});
      if (const int64_t bytes = family_.query_sums_bytes(); bytes > 0) {
        void* const sums = align(room, bytes);
        rank_.accelerator()->fill(sums, 0, bytes);
        all.push_back({query_sums_id, sums});
      }
    }
    cudnn_graph::execute(state_.handle(), plan, all, plan.workspace_bytes > 0 ? align(room, plan.workspace_bytes) : nullptr);
  }

  Rank& rank_;
  CudnnState& state_;
  CudnnFamily family_;
  const DocumentBatches& batches_;
  Workspace workspace_;
  const float scale_, infinity_ = -std::numeric_limits<float>::infinity(), one_ = 1;
  const std::vector<int64_t> rows_;
  int64_t* offsets_ = nullptr;
  int32_t* lengths_ = nullptr;
  std::vector<cudnn_graph::Binding> bindings_;
  std::vector<std::pair<int64_t, int64_t>> own_rows_;
};

void run_backward(Rank& rank, const AttentionBackwardArgs& args, bool unordered) {
  check_call(args, {{"q", args.q, args.q_row}, {"k", args.k, args.k_row}, {"v", args.v, args.v_row}, {"out", args.out, args.out_row}, {"dout", args.dout, args.dout_row}});
  if (args.query_tokens == 0) return;
  count_work(rank, args);
  CudnnFamily family = family_of(args);
  family.dout_row = args.dout_row;
  family.backward = true;
  family.unordered = unordered;
  Call call(rank, family, *args.batches, args.query_table, args.query_tokens, args.scale);
  call.tensor(q_id, args.q, args.q_row);
  call.tensor(k_id, args.k, args.k_row);
  call.tensor(v_id, args.v, args.v_row);
  call.tensor(out_id, args.out, args.out_row);
  call.tensor(lse_id, args.lse, args.heads);
  if (args.dout_row == args.out_row) call.tensor(dout_id, args.dout);
  else call.tensor(dout_id, args.dout, args.dout_row);
  // cuDNN's gradients are bf16, in rows as those of what they are gradients of.
  struct Gradient { int64_t id, row, columns; void* to; int64_t to_row; };
  const int64_t query_columns = args.heads * args.head_dim, key_columns = args.kv_heads * args.head_dim;
  const Gradient gradients[] = {{dq_id, args.q_row, query_columns, args.dq, args.dq_row}, {dk_id, args.k_row, key_columns, args.dk, args.dk_row}, {dv_id, args.v_row, key_columns, args.dv, args.dv_row}};
  void* made[3] = {};
  for (int i = 0; i < 3; ++i) {
    made[i] = call.take<uint16_t>(args.query_tokens * gradients[i].row);
    call.tensor(gradients[i].id, made[i]);
  }
  call.execute();
  for (int i = 0; i < 3; ++i)
    widened_rows(rank, made[i], gradients[i].row, static_cast<float*>(gradients[i].to), gradients[i].to_row, args.query_tokens, gradients[i].columns);
}

}  // namespace

void forward(Rank& rank, const AttentionForwardArgs& args) {
  check_call(args, {{"q", args.q, args.q_row}, {"k", args.k, args.k_row}, {"v", args.v, args.v_row}, {"out", args.out, args.out_row}});
  if (args.query_tokens == 0) return;
  count_work(rank, args);
  Call call(rank, family_of(args), *args.batches, args.query_table, args.query_tokens, args.scale);
  call.tensor(q_id, args.q, args.q_row);
  call.tensor(k_id, args.k, args.k_row);
  call.tensor(v_id, args.v, args.v_row);
  call.tensor(out_id, args.out, args.out_row);
  call.tensor(lse_id, args.lse, args.heads);
  call.execute();
}

void backward(Rank& rank, const AttentionBackwardArgs& args) { run_backward(rank, args, false); }
void backward_unordered(Rank& rank, const AttentionBackwardArgs& args) { run_backward(rank, args, true); }

}  // namespace cudnn_attention

namespace {

/// Of tensors as the model has them, each in rows of its own.
cudnn_attention::CudnnFamily family_of_model(const AttentionOptions& options, int64_t longest) {
  const int64_t queries = options.heads * options.head_dim, keys = options.kv_heads * options.head_dim;
  return {.heads = options.heads, .kv_heads = options.kv_heads, .head_dim = options.head_dim, .longest = longest, .places = std::max<int64_t>(batch_tokens / longest, 1), .q_row = queries,
          .k_row = keys, .v_row = keys, .out_row = queries, .dout_row = 0, .backward = false, .unordered = false};
}
cudnn_attention::CudnnFamily backward_of(cudnn_attention::CudnnFamily family) {
  family.backward = true;
  family.dout_row = family.out_row;
  return family;
}

}  // namespace

void check_cudnn_attention(Rank& rank, const AttentionOptions& options) {
  cudnn_attention::CudnnState& state = cuda(rank).extension<cudnn_attention::CudnnState>();
  const cudnn_attention::CudnnFamily forward = family_of_model(options, shortest_batch);
  state.engines(forward);
  state.engines(backward_of(forward));
}

int64_t cudnn_attention_workspace(Rank& rank, const AttentionOptions& options, int64_t longest, int64_t tokens) {
  cudnn_attention::CudnnState& state = cuda(rank).extension<cudnn_attention::CudnnState>();
  // Batches of the longest documents take most: those of shorter ones have as many tokens, and less for each.
  const cudnn_attention::CudnnFamily forward = family_of_model(options, std::max<int64_t>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest))), shortest_batch));
  cudnn_attention::CudnnFamily backward = backward_of(forward);
  const auto wanted = rank.options().kernels.find("attention_backward");
  backward.unordered = wanted != rank.options().kernels.end() && wanted->second == "cudnn_unordered";
  const int64_t gradients = tokens * (backward.q_row + backward.k_row + backward.v_row) * 2;
  return std::max(state.plan(forward).workspace_bytes, state.plan(backward).workspace_bytes + backward.sums_bytes() + backward.query_sums_bytes() + gradients);
}

}  // namespace quire
