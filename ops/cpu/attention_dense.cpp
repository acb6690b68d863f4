// The reference: every query against every key in plain loops, the mask made from the tokens' boundaries.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/cpu/attention_kernels.h"
#include "runtime/error.h"

namespace quire {
namespace {

template <class T> using accumulator_type = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// For each local token its global index and its document's start; tokens in no run have start -1 and meet nobody.
struct Tokens {
  int32_t *global, *start;
  Tokens(Workspace& workspace, std::span<const DocumentRun> runs, int64_t count)
      : global(workspace.take<int32_t>(count)), start(workspace.take<int32_t>(count)) {
    std::fill_n(global, count, 0);
    std::fill_n(start, count, -1);
    for (const DocumentRun& run : runs)
      for (int32_t i = 0; i < run.length; ++i) {
        global[run.local + i] = run.global + i;
        start[run.local + i] = run.start;
      }
  }
};

/// The mask: max(start_i, i - window + 1) <= j <= i, of one document.
struct Mask {
  Tokens queries, keys;
  int64_t window;
  bool reads(int64_t i, int64_t j) const {
    return queries.start[i] >= 0 && queries.start[i] == keys.start[j] && keys.global[j] <= queries.global[i] &&
           (window == 0 || keys.global[j] > queries.global[i] - window);
  }
};

template <class A, class T>
A dot(const T* a, const T* b, int64_t width) {
  A sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += static_cast<A>(a[i]) * static_cast<A>(b[i]);
  return sum;
}

constexpr int64_t query_chunk = 32;

template <class T>
void forward(Rank& rank, const AttentionForwardArgs& args) {
  using A = accumulator_type<T>;
  Workspace workspace(rank.stack());
  const Mask mask{{workspace, args.query_runs, args.query_tokens}, {workspace, args.key_runs, args.key_tokens}, args.window};
  std::atomic<int64_t> attended{0};
  A* memory = workspace.take<A>((args.key_tokens + args.head_dim) * rank.pool().threads());
  const int64_t width = args.head_dim, chunks = chunks_of(args.query_tokens, query_chunk);
  rank.pool().parallel_for(chunks * args.heads, [&](int64_t chunk, int thread) {
    A *scores = memory + thread * (args.key_tokens + width), *sums = scores + args.key_tokens;
    const int64_t head = chunk / chunks, kv_head = head / (args.heads / args.kv_heads), begin = chunk % chunks * query_chunk;
    for (int64_t i = begin; i < std::min(begin + query_chunk, args.query_tokens); ++i) {
      if (mask.queries.start[i] < 0) continue;  // a place in the buffer, not a token
      const T* q = static_cast<const T*>(args.q) + i * args.q_row + head * width;
      A maximum = -std::numeric_limits<A>::infinity(), sum = 0;
      int64_t met = 0;
      for (int64_t j = 0; j < args.key_tokens; ++j) {
        scores[j] = static_cast<A>(args.scale) * dot<A>(q, static_cast<const T*>(args.k) + j * args.k_row + kv_head * width, width);
        if (!mask.reads(i, j)) continue;
        ++met;
        maximum = std::max(maximum, scores[j]);
      }
      std::fill_n(sums, width, A{0});
      for (int64_t j = 0; j < args.key_tokens; ++j) {
        if (!mask.reads(i, j)) continue;
        const A p = std::exp(scores[j] - maximum);
        const T* v = static_cast<const T*>(args.v) + j * args.v_row + kv_head * width;
        sum += p;
        for (int64_t c = 0; c < width; ++c) sums[c] += p * static_cast<A>(v[c]);
      }
      static_cast<A*>(args.lse)[i * args.heads + head] = met > 0 ? maximum + std::log(sum) : maximum;
      for (int64_t c = 0; c < width; ++c) {
        const A value = met > 0 ? sums[c] / sum : A{0};
        const int64_t place = i * args.out_row + head * width + c;
        if (args.accumulate_out) static_cast<A*>(args.out)[place] = value;
        else static_cast<T*>(args.out)[place] = static_cast<T>(value);
      }
      attended += met;
    }
  });
  rank.work().computed_pairs += args.heads * args.query_tokens * args.key_tokens;
  rank.work().attended_pairs += attended;
}

template <class T>
void backward(Rank& rank, const AttentionBackwardArgs& args) {
  using A = accumulator_type<T>;
  Workspace workspace(rank.stack());
  const Mask mask{{workspace, args.query_runs, args.query_tokens}, {workspace, args.key_runs, args.key_tokens}, args.window};
  const int64_t width = args.head_dim, group = args.heads / args.kv_heads;
  std::atomic<int64_t> attended{0};
  if (args.overwrite) {
    for (int64_t i = 0; i < args.query_tokens; ++i) std::fill_n(static_cast<A*>(args.dq) + i * args.dq_row, args.heads * width, A{0});
    for (int64_t j = 0; j < args.key_tokens; ++j) {
      std::fill_n(static_cast<A*>(args.dk) + j * args.dk_row, args.kv_heads * width, A{0});
      std::fill_n(static_cast<A*>(args.dv) + j * args.dv_row, args.kv_heads * width, A{0});
    }
  }
  rank.pool().parallel_for(args.kv_heads, [&](int64_t kv_head, int) {
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
      for (int64_t i = 0; i < args.query_tokens; ++i) {
        const A lse = static_cast<const A*>(args.lse)[i * args.heads + head], delta = static_cast<const A*>(args.delta)[i * args.heads + head];
        if (mask.queries.start[i] < 0 || lse == -std::numeric_limits<A>::infinity()) continue;
        const T* q = static_cast<const T*>(args.q) + i * args.q_row + head * width;
        const T* dout = static_cast<const T*>(args.dout) + i * args.dout_row + head * width;
        int64_t met = 0;
        A* dq = static_cast<A*>(args.dq) + i * args.dq_row + head * width;
        for (int64_t j = 0; j < args.key_tokens; ++j) {
          const T* k = static_cast<const T*>(args.k) + j * args.k_row + kv_head * width;
          const T* v = static_cast<const T*>(args.v) + j * args.v_row + kv_head * width;
          const A p = std::exp(static_cast<A>(args.scale) * dot<A>(q, k, width) - lse);
          if (!mask.reads(i, j)) continue;
          const A ds = static_cast<A>(args.scale) * p * (dot<A>(dout, v, width) - delta);
          A* dk = static_cast<A*>(args.dk) + j * args.dk_row + kv_head * width;
          A* dv = static_cast<A*>(args.dv) + j * args.dv_row + kv_head * width;
          for (int64_t c = 0; c < width; ++c) {
            dq[c] += ds * static_cast<A>(k[c]);
            dk[c] += ds * static_cast<A>(q[c]);
            dv[c] += p * static_cast<A>(dout[c]);
          }
          ++met;
        }
        attended += met;
      }
  });
  rank.work().computed_pairs += args.heads * args.query_tokens * args.key_tokens;
  rank.work().attended_pairs += attended;
}

template <class Args, class F64, class F32, class BF16>
void by_type(const Args& args, F64 f64, F32 f32, BF16 bf16_) {
  switch (args.type) {
    case DType::f64: return f64();
    case DType::f32: return f32();
    case DType::bf16: return bf16_();
    default: fail<DTypeError>(Args::op, "dtype {}: allowed are f64, f32 and bf16", name_of(args.type));
  }
}

}  // namespace

void dense_attention_forward(Rank& rank, const AttentionForwardArgs& args) {
  by_type(args, [&] { forward<double>(rank, args); }, [&] { forward<float>(rank, args); }, [&] { forward<bf16>(rank, args); });
}

void dense_attention_backward(Rank& rank, const AttentionBackwardArgs& args) {
  by_type(args, [&] { backward<double>(rank, args); }, [&] { backward<float>(rank, args); }, [&] { backward<bf16>(rank, args); });
}

}  // namespace quire
