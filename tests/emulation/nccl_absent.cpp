// Where NCCL's headers are missing there is no emulated NCCL.
#include "libraries.h"

namespace emulation {

Library nccl_library() {
  return {"libnccl.so", [] { return false; }, [](const char*) -> void* { return nullptr; }};
}

}  // namespace emulation
