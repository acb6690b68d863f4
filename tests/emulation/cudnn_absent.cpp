// Where cuDNN's header is not found: no cuDNN.
#include "libraries.h"

namespace emulation {

Library cudnn_library() {
  return {"libcudnn.so", [] { return false; }, [](const char*) -> void* { return nullptr; }};
}

}  // namespace emulation
