#include "run/memory_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "run/attention_workspace.h"
#include "run/machine.h"
#include "run/trainer.h"
#include "runtime/accelerator.h"
#include "runtime/error.h"

namespace quire {

bool fits_memory(const Config& config, int64_t longest, int64_t limit) {
  try {
    Rank rank(RankOptions{.device = {DeviceKind::null, 0}, .memory_limit = std::max<int64_t>(limit, 1)});
    Trainer(rank, config).rehearse(longest);
    return true;
  } catch (const OutOfMemoryError&) {
    return false;
  }
}

std::optional<std::string> what_would_fit(const Config& config, int64_t longest, int64_t limit) {
  const Config::Train& train = config.train;
  std::vector<std::string> modes{"none", "attention", "full"};
  modes.erase(modes.begin(), std::find(modes.begin(), modes.end(), train.activation_checkpointing));
  for (int64_t rows = train.microbatch_size; rows >= 1; rows = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows - 1)))) {
    if (train.global_batch_size % rows != 0) continue;
    for (const std::string& mode : modes) {
      Config tried = config;
      tried.train.activation_checkpointing = mode;
      tried.train.microbatch_size = rows;
      const bool same_mode = mode == train.activation_checkpointing, same_rows = rows == train.microbatch_size;
      if ((same_mode && same_rows) || !fits_memory(tried, longest, limit)) continue;
      std::string settings = same_mode ? "" : "train.activation_checkpointing=" + mode;
      if (!same_rows) settings += fmt::format("{}train.{}={}", same_mode ? "" : " ", train.batch_size > 0 ? "batch_size" : "microbatch_size", rows);
      if (!same_rows && train.grad_accum_steps > 0) settings += fmt::format(" train.grad_accum_steps={}", train.global_batch_size / rows);
      return settings;
    }
  }
  return std::nullopt;
}

std::string memory_advice(Rank& rank, const Config& config, int64_t longest) {
  int64_t limit = rank.options().memory_limit;
  if (rank.accelerator() != nullptr) {
    const int64_t free = rank.accelerator()->free_bytes() + rank.allocator().reserved();
    limit = limit > 0 ? std::min(limit, free) : free;
  }
  if (limit == 0) limit = physical_bytes();
  int64_t kernels = std::max(rank.stack().peak(), limit / 16) + (int64_t{1} << 20);
  try {
    if (rank.accelerator() != nullptr) kernels = std::max(kernels, attention_workspace(rank, config, longest));
  } catch (const Error&) {  // a library that can not be asked now: advice is what can still be given
  }
  const std::optional<std::string> fits = what_would_fit(config, longest, limit - kernels);
  if (fits) return fmt::format("; what would fit: {}", *fits);
  return "; no setting of train.activation_checkpointing and train.microbatch_size makes it fit: choose a smaller model or shorter rows (train.seq_len)";
}

}  // namespace quire
