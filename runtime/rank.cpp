#include "runtime/rank.h"

#include "runtime/accelerator.h"
#include "runtime/dispatch.h"
#include "runtime/error.h"

namespace quire {

std::string to_string(Device device) {
  switch (device.kind) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::cuda: return fmt::format("cuda:{}", device.index);
    case DeviceKind::null: return "null";
  }
  return "?";
}

Rank::Rank(RankOptions options)
    : options_(std::move(options)),
      accelerator_(make_accelerator(options_)),
      allocator_(accelerator_ ? std::make_shared<Allocator>(accelerator_, options_.memory_limit, options_.poison)
                              : std::make_shared<Allocator>(options_.device.kind != DeviceKind::null, options_.memory_limit, options_.poison)),
      pool_(std::make_unique<ThreadPool>(options_.threads, options_.first_processor)),
      stack_(std::make_unique<StepStack>(allocator_)),
      work_(std::make_unique<WorkCounters>()) {}

std::map<std::string, std::string, std::less<>> Rank::chosen_kernels() const {
  std::lock_guard lock(chosen_mutex_);
  return chosen_;
}

void Rank::note_kernel(std::string_view op, std::string_view kernel) {
  std::lock_guard lock(chosen_mutex_);
  const auto found = chosen_.find(op);
  if (found == chosen_.end()) chosen_.emplace(op, kernel);
  else if (found->second != kernel) found->second = kernel;
}

void no_kernel(Rank& rank, std::string_view op, const std::vector<KernelChoice>& kernels) {
  std::vector<std::string> able;
  bool exists = false;
  const auto& wanted = rank.options().kernels;
  const auto named = wanted.find(op);
  for (const KernelChoice& kernel : kernels) {
    if (kernel.can_run) able.emplace_back(kernel.name);
    exists = exists || (named != wanted.end() && named->second == kernel.name);
  }
  const std::string allowed = able.empty() ? "none" : fmt::format("{}", fmt::join(able, ", ")), device = to_string(rank.device());
  if (named == wanted.end()) fail<UnsupportedError>(op, "no kernel on {} for these arguments", device);
  if (exists) fail<UnsupportedError>(op, "the kernel '{}' that run.kernels asks for can not run this on {}; allowed: {}", named->second, device, allowed);
  const std::string near = nearest(named->second, able);
  fail<ConfigError>("run.kernels", "{} has no kernel '{}' on {}; allowed: {}{}", op, named->second, device, allowed, near.empty() ? "" : "; nearest: " + near);
}

}  // namespace quire
