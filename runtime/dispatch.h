// Choosing a kernel: per operation an ordered list, best first, the reference last.
#pragma once
#include <string_view>
#include <vector>

#include "runtime/kernel.h"
#include "runtime/profile.h"
#include "runtime/rank.h"

namespace quire {

/// An operation's kernel on a device, and whether it can run the arguments at hand.
struct KernelChoice {
  std::string_view name;
  bool can_run;
};
/// Throws: no kernel of `op` for these arguments on this device. ConfigError for one that `RankOptions::kernels` names and that is not among them, else UnsupportedError; both name those that can.
[[noreturn]] void no_kernel(Rank& rank, std::string_view op, const std::vector<KernelChoice>& kernels);

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
  std::vector<KernelChoice> kernels;
  for (const Kernel<Args>& kernel : list) kernels.push_back({kernel.name, kernel.can_run(args)});
  no_kernel(rank, Args::op, kernels);
}

}  // namespace quire
