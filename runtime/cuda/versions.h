// Versions of CUDA's parts: what is found and what is needed.
#pragma once
#include <cstddef>
#include <string>

namespace quire {

constexpr int oldest_toolkit = 12080;    ///< of the toolkit, as CUDART_VERSION counts: 1000 * major + 10 * minor
constexpr int oldest_capability = 80;    ///< bf16 products and asynchronous copies
int driver_version();                    ///< newest CUDA that the driver knows, 0 where there is no driver. Throws DeviceError
int runtime_version();                   ///< of the runtime that this was linked with. Throws DeviceError
std::string version_text(int version);   ///< 12080 -> "12.8"
std::string library_version_text(size_t version);  ///< of cuBLASLt and cuDNN, as they count: 91900 -> "9.19.0"
/// Why this runtime can not work with this driver (found, needed); "" where it can.
std::string version_problem(int driver, int runtime);

}  // namespace quire
