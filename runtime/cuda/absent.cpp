// A build without CUDA: no device, and the reason.
#include "runtime/accelerator.h"
#include "runtime/error.h"

namespace quire {

CudaAvailability cuda_availability() { return {0, false, "this build has no CUDA; allowed: cpu; to have it: the CUDA toolkit and `meson setup -Dcuda=enabled`"}; }

std::shared_ptr<Accelerator> make_accelerator(const RankOptions& options) {
  if (options.device.kind == DeviceKind::cuda) fail<UnsupportedError>("device", "{}", cuda_availability().reason);
  return nullptr;
}

}  // namespace quire
