// What a config says about the rank that carries it out.
#pragma once
#include <string_view>

#include "run/config.h"
#include "runtime/rank.h"

namespace quire {

/// RankOptions::first_processor for `run.pin_threads`. `auto` binds only where the ranks on this machine have a thread for each of the `affine` processors:
/// with fewer (by a quota too, which is time, not processors) the system places them better, as other runs may be beside this one.
int first_processor(std::string_view pin_threads, int threads, int local_rank, int local_size, int affine);

/// Where `choice` (auto, cpu, cuda) lets the `local_rank`-th rank of this machine compute. `auto`: on a CUDA device where there is one (an emulated one is none)
/// and it can do what is asked of it: one rank, f32 or bf16. That `cuda` can be had is seen when the Rank is made.
Device device_of(std::string_view choice, DType dtype, int64_t ranks, int local_rank);
/// Throws UnsupportedError where the rank has a device that can not do what is asked of it: several ranks, f64.
void check_device(const Rank& rank, DType dtype, int64_t ranks);

/// Threads (0 in the config: the processors this process may use, shared by the ranks that were started on the machine; at least 1), where they are bound, memory limit, instruction set, kernels and device of a resolved config.
RankOptions rank_options(const Config& config);
/// The same for each of `ranks` ranks that are threads of this process: they share its threads, none is bound, and they compute on the CPU.
RankOptions shared_rank_options(const Config& config, int64_t ranks);

}  // namespace quire
