#include "bench/blas_peers.h"
#include "bench/eigen_peer.h"

namespace quire::bench {

std::optional<BlasPeer> eigen_peer() {
  if (!quire_eigen_runs()) return {};
  return BlasPeer{"eigen", quire_eigen_build(),
                  [](bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c) { quire_eigen_product(ta, tb, m, n, k, a, b, c); }};
}

}  // namespace quire::bench
