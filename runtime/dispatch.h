// Choosing a kernel: per operation an ordered list, best first, the reference last.
#pragma once
#include "runtime/kernel.h"
#include "runtime/profile.h"
#include "runtime/rank.h"

namespace quire {

/// Throws UnsupportedError: no kernel of `op` for these arguments on this device, with what was asked.
[[noreturn]] void no_kernel(Rank& rank, std::string_view op);

/// What a profile calls an operation: its `op`, or what its arguments say of themselves (products tell their forms apart).
template <class Args>
const char* profile_name(const Args& args) {
  if constexpr (requires { args.profile_name(); }) return args.profile_name();
  else return Args::op;
}

/// Runs the best kernel that can, or the one that `RankOptions::kernels` names. Never falls back to another device. The null device does nothing.
template <class Args>
void dispatch(Rank& rank, const Args& args) {
  if (!rank.computes()) return;
  const KernelList<Args> list = rank.device().kind == DeviceKind::cuda ? cuda_kernels<Args>() : cpu_kernels<Args>();
  const auto& wanted = rank.options().kernels;
  const auto named = wanted.find(std::string_view(Args::op));
  for (const Kernel<Args>& kernel : list) {
    if (named != wanted.end() && named->second != kernel.name) continue;
    if (!kernel.can_run(args)) continue;
    rank.note_kernel(Args::op, kernel.name);
    const ProfiledCall timed(rank.profile(), profile_name(args));
    kernel.run(rank, args);
    return;
  }
  no_kernel(rank, Args::op);
}

}  // namespace quire
