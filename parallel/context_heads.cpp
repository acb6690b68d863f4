// The exchange in which tokens come to their heads (DeepSpeed-Ulysses: Jacobs et al., 2023): every rank computes attention of the whole microbatch for
// its share of the heads. Order of a pair's messages, forward: boundaries, queries with keys and values, outputs; backward: gradients of outputs, then
// those of queries, keys and values.
#include <algorithm>
#include <utility>

#include "ops/elementwise.h"
#include "parallel/context_pass.h"
#include "parallel/context_traffic.h"

namespace quire {

void check_head_exchange(int64_t heads, int64_t kv_heads, int64_t ranks) {
  if (heads_fit(heads, kv_heads, ranks)) return;
  fail<ConfigError>("context", "{} query heads and {} key/value heads can not be shared out to {} context ranks by the exchange 'heads'; allowed: query "
                    "heads that are a multiple of the ranks, and key/value heads that are a multiple or a divisor of them; 'ring' and 'gather' take any heads",
                    heads, kv_heads, ranks);
}

namespace {

/// What one rank computes for the whole microbatch, and what its backward pass needs.
struct HeadPart {
  Tensor inputs;  ///< [tokens, width]: of each token this rank's queries, then keys, then values
  AttentionPartial result;
  DocumentRuns runs;
};

class HeadWalk {
 public:
  HeadWalk(ContextPass pass, const AttentionOptions& whole) : pass_(std::move(pass)), whole_(whole), part_(whole), ranks_(pass_.ranks()) {
    check_head_exchange(whole.heads, whole.kv_heads, ranks_);
    part_.heads = whole.heads / ranks_;
    part_.kv_heads = std::max<int64_t>(1, whole.kv_heads / ranks_);
    query_width_ = part_.heads * part_.head_dim;
    key_width_ = part_.kv_heads * part_.head_dim;
    width_ = query_width_ + 2 * key_width_;
  }

  /// Sets `out` [own tokens, heads * head_dim] of the microbatch's attention.
  HeadPart forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out) const {
    ContextStepWork& tokens = pass_.work().tokens;
    HeadPart part{Tensor::empty(rank(), {tokens.received, width_}, q.dtype()), {}, {}};
    std::vector<Tensor> records(tokens.receives.size());
    std::vector<Request> arrivals;
    for (KeyMessage& message : tokens.receives) {
      if (message.peer == pass_.own_rank() || message.count == 0) continue;
      Tensor& record = records[static_cast<size_t>(message.peer)] = pass_.empty_record(pass_.record_of(message));
      arrivals.push_back(pass_.receive(record, message.peer, MessageKind::boundaries, "tokens for their heads"));
      arrivals.push_back(pass_.receive(rows_of(part.inputs, message), message.peer, MessageKind::head_parts, "queries, keys and values"));
    }
    for_others([&](int peer) {
      if (own().count == 0) return;
      pass_.send(pass_.record_of(own()), peer, MessageKind::boundaries, "tokens for their heads");
      pass_.send(pack(peer, q, k, v, Tensor::empty(rank(), {own().count, width_}, q.dtype())), peer, MessageKind::head_parts, "queries, keys and values");
    });
    pack(pass_.own_rank(), q, k, v, rows_of(part.inputs, own()));
    std::vector<Tensor> outputs;
    const std::vector<Request> back = receive_own(query_width_, q.dtype(), "outputs", outputs);
    for (const Request& request : arrivals) request.wait();
    part.runs = pass_.runs_of(tokens, records).runs;

    part.result.out = Tensor::empty(rank(), {tokens.received, query_width_}, q.dtype());
    part.result.lse = Tensor::empty(rank(), {tokens.received, part_.heads}, accumulator_of(q.dtype()));
    attention_partial(rank(), queries(part.inputs), keys(part.inputs), values(part.inputs), part.runs, part.runs, part_, part.result);
    send_back(part.result.out, "outputs");
    outputs[static_cast<size_t>(pass_.own_rank())] = rows_of(part.result.out, own());
    for (int peer = 0; peer < ranks_; ++peer) {
      back[static_cast<size_t>(peer)].wait();
      copy(rank(), outputs[static_cast<size_t>(peer)], queries_of(peer, out));
    }
    return part;
  }

  /// Gradients of this rank's tokens, accumulator type.
  void backward(const Tensor& inputs, const Tensor& out, const Tensor& lse, const DocumentRuns& runs, const Tensor& grad, const Tensor& dq, const Tensor& dk,
                const Tensor& dv) const {
    ContextStepWork& tokens = pass_.work().tokens;
    const DType accumulator = accumulator_of(inputs.dtype());
    const Tensor dout = Tensor::empty(rank(), {tokens.received, query_width_}, inputs.dtype());
    std::vector<Request> arrivals;
    for (const KeyMessage& message : tokens.receives)
      if (message.peer != pass_.own_rank() && message.count > 0)
        arrivals.push_back(pass_.receive(rows_of(dout, message), message.peer, MessageKind::head_parts, "gradients of outputs"));
    for_others([&](int peer) {
      if (own().count > 0) pass_.send(contiguous(rank(), queries_of(peer, grad)), peer, MessageKind::head_parts, "gradients of outputs");
    });
    copy(rank(), queries_of(pass_.own_rank(), grad), rows_of(dout, own()));
    std::vector<Tensor> parts;
    const std::vector<Request> back = receive_own(width_, accumulator, "gradients", parts);
    for (const Request& request : arrivals) request.wait();

    const Tensor gradients = Tensor::zeros(rank(), inputs.shape(), accumulator);
    const Tensor delta = attention_delta(rank(), out, dout, part_);
    attention_backward(rank(), queries(inputs), keys(inputs), values(inputs), runs, runs, dout, lse, delta, part_, queries(gradients),
                       keys(gradients), values(gradients));
    send_back(gradients, "gradients");
    parts[static_cast<size_t>(pass_.own_rank())] = rows_of(gradients, own());
    for (int peer = 0; peer < ranks_; ++peer) {
      back[static_cast<size_t>(peer)].wait();
      Tensor& part = parts[static_cast<size_t>(peer)];
      if (peer != pass_.own_rank() && own().count > 0) part = pass_.returned(part);
      copy(rank(), queries(part), queries_of(peer, dq));
    }
    add_key_gradients(parts, dk, dv);
  }

 private:
  Rank& rank() const { return pass_.rank(); }
  KeyMessage& own() const { return pass_.work().tokens.receives[static_cast<size_t>(pass_.own_rank())]; }
  static Tensor rows_of(const Tensor& buffer, const KeyMessage& message) { return buffer.slice(0, message.first, message.first + message.count); }
  Tensor queries(const Tensor& packed) const { return packed.slice(1, 0, query_width_); }
  Tensor keys(const Tensor& packed) const { return packed.slice(1, query_width_, query_width_ + key_width_); }
  Tensor values(const Tensor& packed) const { return packed.slice(1, query_width_ + key_width_, width_); }
  /// The columns of a rank's heads. Key/value heads fewer than ranks are shared by neighbours.
  Tensor queries_of(int peer, const Tensor& all) const { return all.slice(1, peer * query_width_, (peer + 1) * query_width_); }
  Tensor keys_of(int peer, const Tensor& all) const {
    const int64_t first = peer / sharers() * key_width_;
    return all.slice(1, first, first + key_width_);
  }
  /// Ranks that have the same key/value heads.
  int64_t sharers() const { return std::max<int64_t>(1, ranks_ / whole_.kv_heads); }

  template <class Do>
  void for_others(const Do& what) const {
    for (int distance = 1; distance < ranks_; ++distance) what((pass_.own_rank() + distance) % ranks_);
  }

  Tensor pack(int peer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& to) const {
    copy(rank(), queries_of(peer, q), queries(to));
    copy(rank(), keys_of(peer, k), keys(to));
    copy(rank(), keys_of(peer, v), values(to));
    return to;
  }

  /// Posts what comes back of this rank's tokens from all others; `parts` by rank.
  std::vector<Request> receive_own(int64_t width, DType dtype, const char* purpose, std::vector<Tensor>& parts) const {
    std::vector<Request> requests(static_cast<size_t>(ranks_));
    parts.assign(requests.size(), Tensor::empty(rank(), {0, width}, dtype));
    for_others([&](int peer) {
      if (own().count == 0) return;
      Tensor& part = parts[static_cast<size_t>(peer)] = Tensor::empty(rank(), {own().count, width}, dtype);
      requests[static_cast<size_t>(peer)] = pass_.receive(part, peer, MessageKind::head_parts, purpose);
    });
    return requests;
  }
  void send_back(const Tensor& all, const char* purpose) const {
    for (const KeyMessage& message : pass_.work().tokens.receives)
      if (message.peer != pass_.own_rank() && message.count > 0) pass_.send(rows_of(all, message), message.peer, MessageKind::head_parts, purpose);
  }

  /// Each rank's sums over its query heads make up the columns of its key/value heads; those of ranks that share heads are added in the order of ranks.
  void add_key_gradients(const std::vector<Tensor>& parts, const Tensor& dk, const Tensor& dv) const {
    for (int peer = 0; peer < ranks_; peer += static_cast<int>(sharers())) {
      const Tensor sum = Tensor::empty(rank(), {own().count, 2 * key_width_}, dk.dtype());
      for (int sharer = peer; sharer < peer + sharers(); ++sharer) {
        const Tensor both = parts[static_cast<size_t>(sharer)].slice(1, query_width_, width_);
        if (sharer == peer) copy(rank(), both, sum);
        else accumulate(rank(), contiguous(rank(), both), sum);
      }
      copy(rank(), sum.slice(1, 0, key_width_), keys_of(peer, dk));
      copy(rank(), sum.slice(1, key_width_, 2 * key_width_), keys_of(peer, dv));
    }
  }

  ContextPass pass_;
  AttentionOptions whole_, part_;
  int ranks_;
  int64_t query_width_, key_width_, width_;
};

class HeadExchangeNode final : public Node {
 public:
  HeadExchangeNode(HeadWalk walk, const HeadPart& part, const AttentionOptions& options)
      : walk_(std::move(walk)), options_(options), runs_(part.runs), inputs_(save(part.inputs, For::input_gradient)),
        out_(save(part.result.out, For::input_gradient)), lse_(save(part.result.lse, For::input_gradient)) {}
  std::string_view name() const override { return "context_attention"; }

  void input_gradient(Tape& tape, const Tensor& grad) override {
    Rank& rank = tape.rank();
    const DType dtype = grad.dtype(), accumulator = accumulator_of(dtype);
    const int64_t keys = options_.kv_heads * options_.head_dim;
    const Tensor dq = Tensor::empty(rank, grad.shape(), accumulator), dk = Tensor::empty(rank, {grad.size(0), keys}, accumulator),
                 dv = Tensor::empty(rank, {grad.size(0), keys}, accumulator);
    walk_.backward(saved(inputs_), saved(out_), saved(lse_), runs_, grad, dq, dk, dv);
    tape.add_gradient(input(0), cast(rank, dq, dtype));
    tape.add_gradient(input(1), cast(rank, dk, dtype));
    tape.add_gradient(input(2), cast(rank, dv, dtype));
  }

 private:
  HeadWalk walk_;
  AttentionOptions options_;
  DocumentRuns runs_;
  int inputs_, out_, lse_;
};

}  // namespace

Value attend_by_heads(const ContextPass& pass, Tape& tape, const Value& q, const Value& k, const Value& v) {
  const HeadWalk walk(pass, pass.options());
  const Tensor out = Tensor::empty(pass.rank(), q.tensor.shape(), q.tensor.dtype());
  const HeadPart part = walk.forward(q.tensor, k.tensor, v.tensor, out);
  const Value inputs[] = {q, k, v};
  if (!tape.must_record(inputs, false)) return tape.constant(out);
  return tape.record(std::make_unique<HeadExchangeNode>(walk, part, pass.options()), inputs, out);
}

}  // namespace quire
