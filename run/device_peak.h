// How many multiply-adds a device makes per second.
#pragma once
#include "runtime/dtype.h"
#include "runtime/rank.h"

namespace quire {

/// Floating-point operations per second that a large matrix product of `dtype` reaches on the rank's device: the peak that "share of peak" is about there.
/// Smaller products stand for it where memory lacks; 0 where there is none at all. Waits for the device. Leaves the rank's counters as they were.
double measure_device_peak_flops(Rank& rank, DType dtype);

}  // namespace quire
