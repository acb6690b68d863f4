// Stands in for the NCCL communicator where CUDA or NCCL's headers were not found or not wanted when Quire was built.
#include "parallel/nccl.h"
#include "runtime/error.h"

namespace quire {

bool nccl_is_built() { return false; }

std::string nccl_version() {
  fail<UnsupportedError>("nccl", "this build has no NCCL, which several ranks on devices need; to have it: the CUDA toolkit, NCCL's headers (libnccl-dev) and `meson setup "
                                 "-Dcuda=enabled`");
}

std::unique_ptr<Communicator> with_device_memory(std::unique_ptr<Communicator> control) { return control; }

void run_local_on_devices(int ranks, const CommunicatorOptions& options, const std::function<void(Communicator& world)>& body) { run_local(ranks, options, body); }

void prepare_cuda_connections() {}

}  // namespace quire
