// The machine at hand: what it is, how much memory the process holds, and how fast its arithmetic is.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/dtype.h"
#include "runtime/rank.h"

namespace quire {

/// Quire's version, "0.1.0".
std::string_view version();

/// The processor's name as the system gives it; "unknown processor" where it gives none.
std::string processor_name();

/// Processors that this process may use: its affinity, and the cgroup's quota where there is one. At least 1.
int usable_processors();
/// Processors of its affinity alone. At least 1.
int affine_processors();
/// The same as `usable_processors` from given facts; `cpu_max` is the text of cgroup v2's cpu.max ("max 100000", "150000 100000"), "" for none.
int usable_processors(int affinity, std::string_view cpu_max);

/// Bytes of physical memory that this process holds now; 0 where the system does not say.
int64_t resident_bytes();
/// Bytes of physical memory in the machine; 0 where the system does not say.
int64_t physical_bytes();

/// Multiply-adds per second times two that the rank's threads together reach on registers, with the rank's instruction set: the peak that
/// "share of peak" is about. f64 or f32 (bf16 accumulates in f32 and counts as f32); DTypeError for integers. Takes about 20 ms and returns
/// the best of a few tries, so that a disturbed one does not count; with one thread its processor time counts, so other programs take nothing from it.
/// On a device: what `measure_device_peak_flops` says.
double measure_peak_flops(Rank& rank, DType dtype = DType::f32);

/// The first log line: version, the device if there is one, processor, threads, instruction set, memory.
std::string machine_line(const Rank& rank);

}  // namespace quire
