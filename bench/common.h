// What the reports and options of all measurements share.
#pragma once
#include <string>
#include <vector>

#include "runtime/tensor.h"

namespace quire::bench {

/// "AMD EPYC, avx2".
std::string machine_name();
/// Today in UTC, "2026-11-30".
std::string today();

/// f32 numbers between -1 and 1 [count], the same for a stream on every machine, in memory as a step has it (huge pages where the system gives them).
Tensor random_numbers(Rank& rank, int64_t count, uint64_t stream);
/// Zeros in such memory.
inline Tensor no_numbers(Rank& rank, int64_t count) { return Tensor::zeros(rank, {count}, DType::f32); }
/// Throws ConfigError, naming the nearest, for a name that is not known, and where none is given.
void check_names(const char* option, const std::vector<std::string>& given, const std::vector<std::string>& known);

}  // namespace quire::bench
