#include "run/rank_options.h"

#include <algorithm>

#include "ops/attention.h"
#include "parallel/nccl.h"
#include "run/machine.h"
#include "runtime/accelerator.h"
#include "runtime/error.h"

namespace quire {

int first_processor(std::string_view pin_threads, int threads, int local_rank, int local_size, int affine) {
  const bool all_taken = int64_t{threads} * local_size == affine;
  return pin_threads == "always" || (pin_threads == "auto" && all_taken) ? local_rank * threads : -1;
}

LocalPlace local_place(const Communicator* world) {
  const AnnouncedRanks announced = announced_ranks();
  if (announced.size > 0) return {announced.local_rank, std::max(announced.local_size, announced.local_rank + 1)};
  return world == nullptr ? LocalPlace{} : LocalPlace{world->world_rank(), world->size()};
}

Device device_of(std::string_view choice, DType dtype, const LocalPlace& place) {
  if (choice == "cpu") return {};
  const CudaAvailability cuda = cuda_availability();
  if (choice == "auto" && (cuda.devices < place.size || cuda.devices == 0 || cuda.emulated || dtype == DType::f64)) return {};
  if (cuda.devices > 0 && cuda.devices < place.size)
    fail<UnsupportedError>("device", "{} ranks on a machine with {} CUDA device{}; allowed: a device for each rank, so at most {} here; or run.device = \"cpu\"", place.size, cuda.devices,
                           cuda.devices == 1 ? "" : "s", cuda.devices);
  return {DeviceKind::cuda, place.rank};
}

void check_device(const Rank& rank, DType dtype) {
  if (rank.accelerator() == nullptr) return;
  if (dtype == DType::f64) fail<UnsupportedError>("device", "f64 on {}; allowed there: f32, bf16; for f64: the CPU", to_string(rank.device()));
}

void check_attention(Rank& rank, const Config& config) {
  const ModelConfig model = config.model.resolved();
  check_attention_backend(rank, {.heads = model.n_heads, .kv_heads = model.n_kv_heads, .head_dim = model.head_dim, .backend = attention_backend_from(model.attention_backend)},
                          config.dtype());
}

namespace {

/// `auto` with attention that is the CPU's reference is the CPU.
std::string_view device_choice(const Config& config) {
  return config.run.device == "auto" && config.model.attention_backend == "dense" ? std::string_view("cpu") : std::string_view(config.run.device);
}

}  // namespace

void check_messages(const Device& device, int ranks) {
  if (device.kind == DeviceKind::cuda && ranks > 1) nccl_version();
}

void check_devices(const Config& config, int ranks) {
  const Device device = device_of(device_choice(config), config.dtype(), {0, ranks});
  const CudaAvailability cuda = cuda_availability();
  if (device.kind == DeviceKind::cuda && cuda.devices == 0) fail<UnsupportedError>("device", "a CUDA device for each of {} ranks asked for; {}; allowed: cpu", ranks, cuda.reason);
  check_messages(device, ranks);
}

RankOptions rank_options(const Config& config, const Communicator* world) {
  RankOptions options;
  const AnnouncedRanks announced = announced_ranks();
  const int local_size = std::max(announced.local_size, 1), processors = usable_processors();
  options.threads = config.run.threads > 0 ? static_cast<int>(config.run.threads) : std::max(processors / local_size, 1);
  options.first_processor = first_processor(config.run.pin_threads, options.threads, announced.local_rank, local_size, affine_processors());
  options.device = device_of(device_choice(config), config.dtype(), local_place(world));
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
  options.device = device_of(device_choice(config), config.dtype(), {0, static_cast<int>(ranks)});
  return options;
}

RankOptions of_rank(RankOptions shared, int64_t rank) {
  if (shared.device.kind == DeviceKind::cuda) shared.device.index = static_cast<int>(rank);
  return shared;
}

}  // namespace quire
