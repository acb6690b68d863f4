#include "runtime/cuda/libraries.h"

#include "runtime/cuda/shared_library.h"

namespace quire {

const CublasLt& cublaslt() {
  static const CublasLt functions = [] {
    static const SharedLibrary library({"libcublasLt.so.13", "libcublasLt.so.12"}, "matrix products");
    CublasLt table;
#define QUIRE_LOAD(name) table.name = library.function<decltype(::name)>(#name);
    QUIRE_CUBLASLT_FUNCTIONS(QUIRE_LOAD)
#undef QUIRE_LOAD
    return table;
  }();
  return functions;
}

}  // namespace quire
