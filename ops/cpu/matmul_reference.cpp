// The plain triple loop: one chain of additions in ascending k per element, in the accumulator type.
#include "ops/cpu/matmul.h"
#include "ops/kernels.h"
#include "runtime/rank.h"

namespace quire {
namespace {

/// Rows of one chunk.
constexpr int64_t chunk_rows = 16;

template <class T, class A, class C>
void multiply_rows(const MatmulArgs& args, int64_t begin, int64_t end) {
  const T* a = static_cast<const T*>(args.a);
  const T* b = static_cast<const T*>(args.b);
  for (int64_t i = begin; i < end; ++i) {
    C* c = static_cast<C*>(args.c) + i * args.c_row;
    for (int64_t j = 0; j < args.n; ++j) {
      A sum = 0;
      for (int64_t p = 0; p < args.k; ++p)
        sum += static_cast<A>(a[i * args.a_row + p * args.a_col]) * static_cast<A>(b[p * args.b_row + j * args.b_col]);
      c[j] = C(args.accumulate ? static_cast<A>(c[j]) + sum : sum);
    }
  }
}

template <class T, class A, class C>
void multiply_all(Rank& rank, const MatmulArgs& args) {
  rank.pool().parallel_for(chunks_of(args.m, chunk_rows), [&](int64_t chunk, int) {
    multiply_rows<T, A, C>(args, chunk * chunk_rows, std::min(args.m, (chunk + 1) * chunk_rows));
  });
}

}  // namespace

void matmul_reference(Rank& rank, const MatmulArgs& args) {
  rank.work().flops += 2 * args.m * args.n * args.k;
  if (args.type == DType::f64) multiply_all<double, double, double>(rank, args);
  else if (args.type == DType::f32) multiply_all<float, float, float>(rank, args);
  else if (args.c_type == DType::bf16) multiply_all<bf16, float, bf16>(rank, args);
  else multiply_all<bf16, float, float>(rank, args);
}

}  // namespace quire
