// Which bug a test has planted. The CPU twin of ops/cuda/native/planted.h, in which there is none.
#pragma once
#include <atomic>

namespace emulation {
extern std::atomic<const char*> planted_name;
bool is_planted(const char* name);
}  // namespace emulation

namespace gpu {

/// Whether the running test wants the bug of this name (emulation::Planted).
inline bool planted(const char* name) { return emulation::planted_name.load(std::memory_order_relaxed) != nullptr && emulation::is_planted(name); }

}  // namespace gpu
