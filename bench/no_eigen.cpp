#include "bench/blas_peers.h"

namespace quire::bench {

std::optional<BlasPeer> eigen_peer() { return {}; }

}  // namespace quire::bench
