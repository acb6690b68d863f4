// A build for real devices.
#include "runtime/cuda/emulated.h"

namespace quire {

bool cuda_is_emulated() { return false; }

}  // namespace quire
