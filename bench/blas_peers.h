// Libraries of matrix products to compare with. Neither is a dependency of Quire: OpenBLAS is loaded when the program runs, Eigen is compiled into this
// program alone, where its headers are installed.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace quire::bench {

/// c [m,n] = op(a) op(b), f32, rows contiguous; op transposes where asked.
using Product = std::function<void(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c)>;

struct BlasPeer {
  std::string name, build;
  Product product;
};

/// The library at `path`, or where that is "" the first in the usual places; nothing for "none" and where there is none. One thread. Throws FileError where
/// a given path is no OpenBLAS.
std::optional<BlasPeer> load_openblas(const std::string& path);

/// Nothing where this build or this processor has none.
std::optional<BlasPeer> eigen_peer();

}  // namespace quire::bench
