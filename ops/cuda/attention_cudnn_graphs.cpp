// The pattern of operations is the one that cuDNN's documentation gives for attention; cuDNN recognises it as a whole and has fused kernels for it.
#include "ops/cuda/attention_cudnn_graphs.h"

#include <map>

namespace quire::cudnn_attention {

namespace {

using cudnn_graph::Descriptor;
using cudnn_graph::Graph;
using cudnn_graph::Sizes;
using cudnn_graph::TensorLayout;

constexpr cudnnDataType_t f32 = CUDNN_DATA_FLOAT, bf16 = CUDNN_DATA_BFLOAT16, i32 = CUDNN_DATA_INT32, i64 = CUDNN_DATA_INT64, boolean = CUDNN_DATA_BOOLEAN;

/// What both graphs share.
class Builder {
 public:
  explicit Builder(const CudnnFamily& family)
      : family_(family), b_(family.places), h_(family.heads), s_(family.longest), d_(family.head_dim), scores_(TensorLayout::dense({b_, h_, s_, s_})),
        column_(TensorLayout::dense({b_, h_, s_, 1})) {
    query_lengths = graph.tensor(query_lengths_id, i32, TensorLayout::dense({b_, 1, 1, 1}));
    key_lengths = graph.tensor(key_lengths_id, i32, TensorLayout::dense({b_, 1, 1, 1}));
    scale = graph.scalar(scale_id, f32);
    infinity_ = graph.scalar(infinity_id, f32);
  }

  /// [places, heads, longest, head_dim], whose rows lie `row` elements apart in memory and begin where those of the tensor `like` do.
  Descriptor rows(int64_t id, int64_t heads, int64_t row, int64_t like) {
    return graph.tensor(id, bf16, {{b_, heads, s_, d_}, {s_ * row, d_, row, 1}}, offsets(like));
  }
  Descriptor rows(int64_t id, int64_t heads, int64_t row) { return rows(id, heads, row, id); }
  /// The same transposed: [places, heads, head_dim, longest].
  Descriptor columns(int64_t id, int64_t heads, int64_t row) {
    return graph.tensor(id, bf16, {{b_, heads, d_, s_}, {s_ * row, d_, 1, row}}, offsets(id));
  }
  Descriptor lse() { return graph.tensor(lse_id, f32, {{b_, h_, s_, 1}, {s_ * h_, 1, h_, 1}}, offsets(lse_id), 4); }

  Descriptor scores(cudnnDataType_t type = f32) { return graph.inner(type, scores_); }
  Descriptor column() { return graph.inner(f32, column_); }

  Descriptor combined(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor& y) {
    const Descriptor result = scores();
    graph.pointwise(mode, f32, x, y, result);
    return result;
  }
  Descriptor exponential(const Descriptor& x) {
    const Descriptor result = scores();
    graph.pointwise(CUDNN_POINTWISE_EXP, f32, x, nullptr, result);
    return result;
  }
  /// Minus infinity wherever there is no query or no key.
  Descriptor inside_documents(const Descriptor& x) {
    const Descriptor row = scores(i32), key = scores(i32), row_inside = scores(boolean), key_inside = scores(boolean), both = scores(boolean), result = scores();
    graph.indices(x, 2, row);
    graph.indices(x, 3, key);
    graph.pointwise(CUDNN_POINTWISE_CMP_LT, boolean, row, query_lengths, row_inside);
    graph.pointwise(CUDNN_POINTWISE_CMP_LT, boolean, key, key_lengths, key_inside);
    graph.pointwise(CUDNN_POINTWISE_LOGICAL_AND, boolean, row_inside, key_inside, both);
    graph.select(both, x, infinity_, result);
    return result;
  }
  /// Minus infinity for keys after the query.
  Descriptor causal(const Descriptor& x) {
    const Descriptor row = scores(i32), key = scores(i32), sees = scores(boolean), result = scores();
    graph.indices(x, 2, row);
    graph.indices(x, 3, key);
    graph.pointwise(CUDNN_POINTWISE_CMP_GE, boolean, row, key, sees);
    graph.select(sees, x, infinity_, result);
    return result;
  }
  Descriptor transposed(const Descriptor& x) {
    const Descriptor result = graph.inner(bf16, {{b_, h_, s_, s_}, {h_ * s_ * s_, s_ * s_, 1, s_}});
    graph.reshape(x, result);
    return result;
  }
  /// The gradient of keys or values: a^T b, and where query heads share them, the sum over those.
  void key_gradient(int64_t id, int64_t row, int64_t like, const Descriptor& a, const Descriptor& b) {
    const Descriptor gradient = rows(id, family_.kv_heads, row, like);
    const Graph::Lengths inside{key_lengths, nullptr, query_lengths};
    if (family_.kv_heads == h_) return graph.matmul(a, b, gradient, inside);
    const Descriptor each = graph.inner(bf16, TensorLayout::dense({b_, h_, s_, d_}));
    graph.matmul(a, b, each, inside);
    graph.reduce(CUDNN_REDUCE_TENSOR_ADD, each, gradient);
  }

  Graph graph;
  Descriptor query_lengths, key_lengths, scale;

 private:
  const Descriptor& offsets(int64_t id) {
    Descriptor& made = offsets_[id];
    if (!made) made = graph.tensor(offsets_id + id, i64, TensorLayout::dense({b_ + 1, 1, 1, 1}));
    return made;
  }
  const CudnnFamily& family_;
  const int64_t b_, h_, s_, d_;
  const TensorLayout scores_, column_;
  std::map<int64_t, Descriptor> offsets_;
  Descriptor infinity_;
};

}  // namespace

Graph cudnn_forward_graph(const CudnnFamily& family) {
  Builder g(family);
  const Descriptor q = g.rows(q_id, family.heads, family.q_row), k = g.columns(k_id, family.kv_heads, family.k_row), v = g.rows(v_id, family.kv_heads, family.v_row);
  const Descriptor products = g.scores();
  g.graph.matmul(q, k, products, {g.query_lengths, g.key_lengths, nullptr}, true);
  const Descriptor scores = g.causal(g.inside_documents(g.combined(CUDNN_POINTWISE_MUL, products, g.scale)));
  const Descriptor most = g.column(), sum = g.column(), log_sum = g.column(), p = g.scores(bf16);
  g.graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, most);
  const Descriptor weights = g.exponential(g.combined(CUDNN_POINTWISE_SUB, scores, most));
  g.graph.reduce(CUDNN_REDUCE_TENSOR_ADD, weights, sum);
  g.graph.pointwise(CUDNN_POINTWISE_LOG, f32, sum, nullptr, log_sum);
  g.graph.pointwise(CUDNN_POINTWISE_ADD, f32, most, log_sum, g.lse());
  g.graph.pointwise(CUDNN_POINTWISE_DIV, f32, weights, sum, p);
  g.graph.matmul(p, v, g.rows(out_id, family.heads, family.out_row), {g.query_lengths, nullptr, g.key_lengths});
  return g.graph;
}

Graph cudnn_backward_graph(const CudnnFamily& family) {
  Builder g(family);
  const int64_t b = family.places, h = family.heads, s = family.longest, d = family.head_dim;
  const Descriptor q = g.rows(q_id, h, family.q_row), k = g.columns(k_id, family.kv_heads, family.k_row), v = g.columns(v_id, family.kv_heads, family.v_row),
                   out = g.rows(out_id, h, family.out_row), dout = g.rows(dout_id, h, family.dout_row, family.dout_row == family.out_row ? out_id : dout_id), lse = g.lse();
  // sums = row sums of dout * out, which are those of dp * p
  const Descriptor products = g.graph.inner(f32, TensorLayout::dense({b, h, s, d})), row_sums = g.column(), sums = g.graph.tensor(sums_id, f32, TensorLayout::dense({b, h, s, 1}));
  g.graph.pointwise(CUDNN_POINTWISE_MUL, f32, dout, out, products);
  g.graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, row_sums);
  g.graph.pointwise(CUDNN_POINTWISE_MUL, f32, row_sums, g.graph.scalar(one_id, f32), sums);
  // p = exp(scores - lse), dv = p^T dout
  const Descriptor scores = g.scores();
  g.graph.matmul(q, k, scores, {g.query_lengths, g.key_lengths, nullptr});
  const Descriptor p = g.exponential(g.causal(g.inside_documents(g.combined(CUDNN_POINTWISE_SUB, g.combined(CUDNN_POINTWISE_MUL, scores, g.scale), lse))));
  g.key_gradient(dv_id, family.v_row, v_id, g.transposed(p), dout);
  // ds = (dout v^T - sums) * p * scale, dk = ds^T q, dq = ds k
  const Descriptor dp = g.scores();
  g.graph.matmul(dout, v, dp, {g.query_lengths, g.key_lengths, nullptr});
  const Descriptor ds = g.combined(CUDNN_POINTWISE_MUL, g.combined(CUDNN_POINTWISE_MUL, g.combined(CUDNN_POINTWISE_SUB, dp, sums), p), g.scale);
  g.key_gradient(dk_id, family.k_row, k_id, g.transposed(ds), q);
  const Descriptor keys = g.graph.inner(bf16, {{b, family.kv_heads, s, d}, {s * family.k_row, d, family.k_row, 1}}), dq = g.rows(dq_id, h, family.q_row, q_id);
  g.graph.reshape(k, keys);
  if (!family.unordered) {
    // Without f32 sums in memory cuDNN keeps all of ds and makes each element of dq in one block.
    g.graph.matmul(ds, keys, dq, {g.query_lengths, nullptr, g.key_lengths});
    return g.graph;
  }
  const Descriptor query_sums = g.graph.tensor(query_sums_id, f32, TensorLayout::dense({b, h, s, d}));
  g.graph.matmul(ds, keys, query_sums, {g.query_lengths, nullptr, g.key_lengths});
  g.graph.pointwise(CUDNN_POINTWISE_IDENTITY, f32, query_sums, nullptr, dq);
  return g.graph;
}

}  // namespace quire::cudnn_attention
