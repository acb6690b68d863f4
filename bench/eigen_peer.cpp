// Compiled for its own instruction set, hence alone: nothing else may be instantiated here.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include "bench/eigen_peer.h"

namespace {
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using In = Eigen::Map<const Matrix>;
}  // namespace

void quire_eigen_product(bool ta, bool tb, long m, long n, long k, const float* a, const float* b, float* c) {
  Eigen::Map<Matrix> out(c, m, n);
  const In left(a, ta ? k : m, ta ? m : k), right(b, tb ? n : k, tb ? k : n);
  if (ta && tb) out.noalias() = left.transpose() * right.transpose();
  else if (ta) out.noalias() = left.transpose() * right;
  else if (tb) out.noalias() = left * right.transpose();
  else out.noalias() = left * right;
}

const char* quire_eigen_build() {
#define QUIRE_TEXT(x) #x
#define QUIRE_VALUE(x) QUIRE_TEXT(x)
  return "Eigen " QUIRE_VALUE(EIGEN_WORLD_VERSION) "." QUIRE_VALUE(EIGEN_MAJOR_VERSION) "." QUIRE_VALUE(EIGEN_MINOR_VERSION)
#if defined(__AVX512F__)
      " compiled for AVX-512";
#elif defined(__FMA__)
      " compiled for AVX2 and FMA";
#else
      " compiled for the compiler's default";
#endif
}

bool quire_eigen_runs() {
#if defined(__AVX512F__)
  return __builtin_cpu_supports("avx512f");
#elif defined(__FMA__) && (defined(__x86_64__) || defined(__i386__))
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return true;
#endif
}
