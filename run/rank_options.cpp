#include "run/rank_options.h"

#include <algorithm>

#include "parallel/communicator.h"
#include "parallel/mesh.h"
#include "run/machine.h"
#include "runtime/accelerator.h"
#include "runtime/error.h"

namespace quire {

int first_processor(std::string_view pin_threads, int threads, int local_rank, int local_size, int affine) {
  const bool all_taken = int64_t{threads} * local_size == affine;
  return pin_threads == "always" || (pin_threads == "auto" && all_taken) ? local_rank * threads : -1;
}

Device device_of(std::string_view choice, DType dtype, int64_t ranks, int local_rank) {
  if (choice == "cpu") return {};
  if (choice == "auto") {
    const CudaAvailability cuda = cuda_availability();
    if (cuda.devices == 0 || cuda.emulated || dtype == DType::f64 || ranks > 1) return {};
  }
  return {DeviceKind::cuda, std::max(local_rank, 0)};
}

void check_device(const Rank& rank, DType dtype, int64_t ranks) {
  if (rank.accelerator() == nullptr) return;
  if (ranks > 1) fail<UnsupportedError>("device", "{} ranks on {}; allowed there: one rank; for several: the CPU", ranks, to_string(rank.device()));
  if (dtype == DType::f64) fail<UnsupportedError>("device", "f64 on {}; allowed there: f32, bf16; for f64: the CPU", to_string(rank.device()));
}

RankOptions rank_options(const Config& config) {
  RankOptions options;
  const AnnouncedRanks announced = announced_ranks();
  const int local_size = std::max(announced.local_size, 1), processors = usable_processors();
  options.threads = config.run.threads > 0 ? static_cast<int>(config.run.threads) : std::max(processors / local_size, 1);
  options.first_processor = first_processor(config.run.pin_threads, options.threads, announced.local_rank, local_size, affine_processors());
  const bool needs_cpu = config.run.device == "auto" && config.model.attention_backend == "dense";  // which is the CPU's reference
  options.device = device_of(needs_cpu ? "cpu" : config.run.device, config.dtype(), mesh_shape(config).ranks(), announced.local_rank);
  options.memory_limit = config.run.memory_limit;
  options.instruction_set = config.run.instruction_set;
  for (const std::string& choice : config.run.kernels) {
    const size_t equals = choice.find('=');
    options.kernels[choice.substr(0, equals)] = choice.substr(equals + 1);
  }
  return options;
}

RankOptions shared_rank_options(const Config& config, int64_t ranks) {
  RankOptions options = rank_options(config);
  options.threads = std::max(1, static_cast<int>(options.threads / ranks));
  options.first_processor = -1;
  options.device = {};
  return options;
}

}  // namespace quire
