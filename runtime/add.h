// The one arithmetic that the tape itself needs: adding gradients. The kernels are in ops/, like all others.
#pragma once
#include <cstdint>

#include "runtime/dtype.h"

namespace quire {

/// into[i] += from[i] (both of `type`).
struct AddArgs {
  static constexpr const char* op = "add";
  DType type;
  int64_t count;
  const void* from;
  void* into;
};
/// into[i] = a[i] + b[i] (all of `type`).
struct SumArgs {
  static constexpr const char* op = "sum";
  DType type;
  int64_t count;
  const void* a; const void* b;
  void* into;
};

}  // namespace quire
