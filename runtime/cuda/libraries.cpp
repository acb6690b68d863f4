#include "runtime/cuda/libraries.h"

#include "runtime/cuda/shared_library.h"
#include "runtime/cuda/versions.h"
#include "runtime/error.h"

namespace quire {

namespace {

constexpr size_t oldest_cublaslt = 120800;  ///< as cublasLtGetVersion counts: 10000 * major + 100 * minor + patch

}  // namespace

void check_cublaslt_version(size_t found) {
  if (found < oldest_cublaslt)
    fail<UnsupportedError>("cuda", "found: cuBLASLt {}; needed: {} or newer, for matrix products; allowed: a newer one in LD_LIBRARY_PATH, or cpu", library_version_text(found),
                           library_version_text(oldest_cublaslt));
}

const CublasLt& cublaslt() {
  static const CublasLt functions = [] {
    // Of the headers' major version: enumerators and structures are those that this was compiled with.
    static const SharedLibrary library({fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR)}, "matrix products");
    CublasLt table;
#define QUIRE_LOAD(name) table.name = library.function<decltype(::name)>(#name);
    QUIRE_CUBLASLT_FUNCTIONS(QUIRE_LOAD)
#undef QUIRE_LOAD
    check_cublaslt_version(table.cublasLtGetVersion());
    return table;
  }();
  return functions;
}

}  // namespace quire
