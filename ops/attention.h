// Attention that stays inside documents. It is rectangular: some queries over some keys, each with their document boundaries; one process makes one
// call, context parallelism merges several, generation has one query.
#pragma once
#include <memory>

#include "runtime/documents.h"
#include "runtime/tape.h"

namespace quire {

/// Which kernels compute attention: `block`, tiles with online softmax that never touch what no document needs; `dense`, the materialised mask; `cudnn`, those of
/// the library cuDNN.
enum class AttentionBackend : uint8_t { block, dense, cudnn };
AttentionBackend attention_backend_from(std::string_view name);  ///< throws ConfigError with the allowed names
std::string_view name_of(AttentionBackend backend);

struct BoundaryTable;
struct DocumentBatches;

/// Runs, and the tables that devices look them up in: made at the first call that needs one, kept as long as the runs. One rank uses a list at a time.
class RunList : public std::vector<DocumentRun> {
 public:
  using vector::vector;
  explicit RunList(std::vector<DocumentRun> runs) : vector(std::move(runs)) {}
  RunList(const RunList&) = delete;  // tables belong to these runs
  RunList& operator=(const RunList&) = delete;
  /// For tensors of `tokens` rows on this rank's device; empty where the rank has none.
  BoundaryTable table(Rank& rank, int64_t tokens) const;
  /// Gives the table itself, of boundaries that came to the device and that the host has not seen: global and start [tokens], tiles [4 * tiles] i32. The runs are then those
  /// that are expected, and count the work.
  void set_table(Rank& rank, const Tensor& global, const Tensor& start, const Tensor& tiles);
  /// The runs as batches of documents, for libraries; the rank's device has their tables. Throws UnsupportedError where a run is no whole document.
  const DocumentBatches& batches(Rank& rank) const;

 private:
  struct Tables;
  mutable std::shared_ptr<Tables> tables_;
};
using DocumentRuns = std::shared_ptr<const RunList>;
inline DocumentRuns shared_runs(const Documents& documents) { return std::make_shared<const RunList>(documents.runs()); }

struct AttentionOptions {
  int64_t heads = 1, kv_heads = 1, head_dim = 0;
  int64_t window = 0;   ///< tokens a query sees, itself included; 0 = the whole document before it
  double scale = 0;     ///< of scores; 0 = 1 / sqrt(head_dim)
  AttentionBackend backend = AttentionBackend::block;
};

/// out [Tq, heads * head_dim] in the accumulator type, lse [Tq, heads]: softmax over the keys given, and its log-sum-exp. A query without keys has
/// out 0 and lse -infinity.
struct AttentionPartial {
  Tensor out, lse;
};

/// q [Tq, heads * head_dim], k and v [Tk, kv_heads * head_dim], one dtype. Runs say where each token lies in its document (see Documents); the mask is
/// a matter of them alone. Runs ascend and do not overlap, and may leave rows out: such keys no query reads (a cache's room), and such queries are not read and
/// get no result (their rows of out and lse stay as they were: undefined where this call allocates them). Throws ShapeError, UnsupportedError.
AttentionPartial attention_partial(Rank& rank, const Tensor& q, const Tensor& k, const Tensor& v, const DocumentRuns& query_runs, const DocumentRuns& key_runs,
                                   const AttentionOptions& options);
/// The same into tensors given; out may also be of q's dtype.
void attention_partial(Rank& rank, const Tensor& q, const Tensor& k, const Tensor& v, const DocumentRuns& query_runs, const DocumentRuns& key_runs,
                       const AttentionOptions& options, const AttentionPartial& into);

/// Makes `into` the attention over both key sets.
void attention_merge(Rank& rank, const AttentionPartial& into, const AttentionPartial& other, const AttentionOptions& options);
/// The same for the rows of `runs` alone; all others stay as they are.
void attention_merge(Rank& rank, const AttentionPartial& into, const AttentionPartial& other, const DocumentRuns& runs, const AttentionOptions& options);

/// delta [Tq, heads] = sum over a head of out * dout (out and dout of one dtype): what backward needs of the merged output.
Tensor attention_delta(Rank& rank, const Tensor& out, const Tensor& dout, const AttentionOptions& options);

/// Adds to dq, dk, dv (accumulator type, rows may be strided) the gradients of one partial call, given the merged lse and delta. Queries that no run covers
/// are left out.
void attention_backward(Rank& rank, const Tensor& q, const Tensor& k, const Tensor& v, const DocumentRuns& query_runs, const DocumentRuns& key_runs,
                        const Tensor& dout, const Tensor& lse, const Tensor& delta, const AttentionOptions& options, const Tensor& dq, const Tensor& dk,
                        const Tensor& dv);

/// Throws UnsupportedError where the rank can not compute attention with these options' backend (found, needed). Others than `cudnn` are not looked at.
void check_attention_backend(Rank& rank, const AttentionOptions& options, DType dtype);

/// Bytes of device memory that attention takes beside its tensors while it runs, at their most, over documents of at most `longest` tokens in microbatches of `tokens`: for the backend `cudnn`, whose
/// library is asked (0 for others, whose kernels take little). On a rank with a device. Throws as `check_attention_backend`.
int64_t attention_workspace(Rank& rank, const AttentionOptions& options, DType dtype, int64_t longest, int64_t tokens);

/// Self-attention of a microbatch held by one process; out [T, heads * head_dim] in q's dtype. The backend `cudnn` is for this form alone and without a window:
/// partial results and windows are `block`'s where it is asked for.
Value attention(Tape& tape, const Value& q, const Value& k, const Value& v, const DocumentRuns& runs, const AttentionOptions& options);

}  // namespace quire
