#include "runtime/cuda/launch.h"

#include "runtime/cuda/device.h"

namespace quire {

cudaStream_t stream_of(Rank& rank) { return cuda(rank).stream(); }
int multiprocessors_of(Rank& rank) { return cuda(rank).multiprocessors(); }
int compute_capability_of(Rank& rank) { return cuda(rank).compute_capability(); }
void copy_on_device(Rank& rank, const void* from, void* to, int64_t bytes) { cuda(rank).copy(from, to, bytes); }
void count_flops(Rank& rank, int64_t flops) { rank.work().flops += flops; }

class KernelWorkspace::Scope : public Workspace {
 public:
  using Workspace::Workspace;
};
KernelWorkspace::KernelWorkspace(Rank& rank) : scope_(new Scope(rank.stack())) {}
KernelWorkspace::~KernelWorkspace() { delete scope_; }
void* KernelWorkspace::take_bytes(int64_t bytes) { return scope_->take<std::byte>(bytes); }

}  // namespace quire
