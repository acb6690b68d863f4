// The phases of tools/gpu_report that run on the device. Each writes what it finds into its report as it goes.
#pragma once
#include <string>

#include "bench/gpu/report.h"
#include "runtime/rank.h"

namespace quire {
class Communicator;
}

namespace quire::gpu_report {

struct PhaseOptions {
  bool tiny = false;    ///< sizes that the emulated device computes in seconds: they show that a phase runs, and measure nothing
  std::string goldens;  ///< file of golden outputs
  std::string found;    ///< where this device's outputs go; "" for nowhere
};

/// Every wrapper's output against the golden one.
void compare_goldens(Rank& rank, const PhaseOptions& options, PhaseReport& report);
/// Kernels against literal loops on the CPU.
void run_checks(Rank& rank, const PhaseOptions& options, PhaseReport& report);
/// Attention and matrix products, timed.
void measure_kernels(Rank& rank, const PhaseOptions& options, PhaseReport& report);
/// Forward and backward of a small model, whole steps of a large one.
void measure_steps(Rank& rank, const PhaseOptions& options, PhaseReport& report);
/// Lets two ranks send to each other. Throws CommunicationError where NCCL does not take their devices, UnsupportedError where there is no NCCL.
void connect_both_ways(Communicator& world, Rank& rank);
/// Messages and sums of tensors of the device between two connected ranks, each of which calls it.
void try_communication(Communicator& world, Rank& rank, const PhaseOptions& options, PhaseReport& report);

}  // namespace quire::gpu_report
