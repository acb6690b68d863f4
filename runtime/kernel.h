// What a kernel is to the dispatcher. Light: each .cu file includes it, and nvcc reads every header several times.
#pragma once
#include <span>

namespace quire {

class Rank;

/// One way to compute an operation whose plain arguments are `Args` (a struct with a static `op` name).
template <class Args>
struct Kernel {
  const char* name;
  bool (*can_run)(const Args&);
  void (*run)(Rank&, const Args&);
};
template <class Args> using KernelList = std::span<const Kernel<Args>>;

/// The list of a device; each backend specialises these for every Args struct of ops/kernels.h (an absent backend returns {}).
template <class Args> KernelList<Args> cpu_kernels();
template <class Args> KernelList<Args> cuda_kernels();

}  // namespace quire
