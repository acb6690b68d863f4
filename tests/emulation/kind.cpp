// A build whose devices are emulated.
#include "runtime/cuda/emulated.h"

namespace quire {

bool cuda_is_emulated() { return true; }

}  // namespace quire
