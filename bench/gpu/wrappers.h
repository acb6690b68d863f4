// Every wrapper of an instruction (ops/cuda/native/gpu.h and hopper.h), run on fixed inputs: its golden output.
#pragma once
#include <functional>
#include <vector>

#include "bench/gpu/goldens.h"
#include "runtime/rank.h"

namespace quire::gpu_report {

/// `run` waits for the device and gives the output as a whole.
struct WrapperCase {
  std::string name;
  std::function<Golden(Rank&)> run;
};

/// Of gpu.h: devices of compute capability 8.0 and newer.
std::vector<WrapperCase> wrapper_cases();
/// Of hopper.h: compute capability 9.0 alone.
std::vector<WrapperCase> hopper_wrapper_cases();

/// All that a device has; `found` hears of each as soon as it is there.
Goldens run_wrappers(Rank& rank, const std::function<void(const Golden&)>& found);

}  // namespace quire::gpu_report
