// What a config says about the rank that carries it out.
#pragma once
#include <string_view>

#include "parallel/communicator.h"
#include "run/config.h"
#include "runtime/rank.h"

namespace quire {

/// RankOptions::first_processor for `run.pin_threads`. `auto` binds only where the ranks on this machine have a thread for each of the `affine` processors:
/// with fewer (by a quota too, which is time, not processors) the system places them better, as other runs may be beside this one.
int first_processor(std::string_view pin_threads, int threads, int local_rank, int local_size, int affine);

/// A rank's place among those of its machine: as a starter announced it, or, where ranks are threads of this process, in their group.
struct LocalPlace {
  int rank = 0, size = 1;
};
LocalPlace local_place(const Communicator* world);

/// Where `choice` (auto, cpu, cuda) lets a rank compute: each on the device of its number among the machine's ranks. `auto`: on CUDA devices where there is one (an emulated
/// one is none) for each of these ranks, in f32 or bf16. Throws UnsupportedError for `cuda` on a machine with fewer devices than ranks; that one can be used at all is seen when the Rank is made.
Device device_of(std::string_view choice, DType dtype, const LocalPlace& place);
/// Throws UnsupportedError where `ranks` ranks on devices can not send each other what lies there: without NCCL, or with one that is too old.
void check_messages(const Device& device, int ranks);
/// Throws as `device_of` does where so many ranks are to be started on this machine, and where it has no device that can be used at all; and as `check_messages`.
void check_devices(const Config& config, int ranks);
/// Throws UnsupportedError where the rank has a device that can not do what is asked of it: f64.
void check_device(const Rank& rank, DType dtype);
/// Throws UnsupportedError where this rank can not compute the model's attention with the backend asked for.
void check_attention(Rank& rank, const Config& config);

/// Threads (0 in the config: the processors this process may use, shared by the ranks that were started on the machine; at least 1), where they are bound, memory limit, instruction set, kernels and
/// device of a resolved config, for a rank of `world` or one alone.
RankOptions rank_options(const Config& config, const Communicator* world = nullptr);
/// The same for `ranks` ranks that are threads of this process, whatever starter there is: they share its threads, and none is bound. `of_rank` gives each of them its device.
RankOptions shared_rank_options(const Config& config, int64_t ranks);
RankOptions of_rank(RankOptions shared, int64_t rank);

}  // namespace quire
