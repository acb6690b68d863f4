#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "bench/blas_peers.h"
#include "runtime/error.h"

namespace quire::bench {

namespace {

using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);

/// Debian keeps its flavours in folders of their own.
std::vector<std::string> usual_places() {
  namespace fs = std::filesystem;
  std::vector<std::string> places{"libopenblas.so.0"};
  std::error_code ignored;
  for (const auto& machine : fs::directory_iterator("/usr/lib", ignored))
    for (const char* flavour : {"openblas-serial", "openblas-openmp", "openblas-pthread"})
      if (const fs::path file = machine.path() / flavour / "libopenblas.so.0"; fs::exists(file, ignored)) places.push_back(file.string());
  return places;
}

}  // namespace

std::optional<BlasPeer> load_openblas(const std::string& path) {
  if (path == "none") return {};
  void* library = nullptr;
  for (const std::string& place : path.empty() ? usual_places() : std::vector<std::string>{path})
    if ((library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL))) break;
  if (!library) {
    if (path.empty()) return {};
    fail<FileError>("bench", "--openblas is {}, which does not load: {}", path, std::string(::dlerror()));
  }
  const auto sgemm = reinterpret_cast<Sgemm>(::dlsym(library, "cblas_sgemm"));
  const auto set_threads = reinterpret_cast<void (*)(int)>(::dlsym(library, "openblas_set_num_threads"));
  const auto config = reinterpret_cast<char* (*)()>(::dlsym(library, "openblas_get_config"));
  const auto core = reinterpret_cast<char* (*)()>(::dlsym(library, "openblas_get_corename"));
  if (!sgemm || !set_threads || !config || !core) {
    if (path.empty()) return {};
    fail<FileError>("bench", "--openblas is {}, which is no OpenBLAS", path);
  }
  set_threads(1);
  return BlasPeer{"openblas", fmt::format("{}, kernels of {}, one thread", config(), core()),
                  [sgemm](bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c) {
                    constexpr int row_major = 101, plain = 111, transposed = 112;
                    sgemm(row_major, ta ? transposed : plain, tb ? transposed : plain, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1, a,
                          static_cast<int>(ta ? m : k), b, static_cast<int>(tb ? k : n), 0, c, static_cast<int>(n));
                  }};
}

}  // namespace quire::bench
