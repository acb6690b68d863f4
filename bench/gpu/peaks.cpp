// What cards can do at most, and how times are shown: free of CUDA.
#include "bench/gpu/timing.h"

namespace quire::gpu_report {

Peak peak_of(const std::string& card) {
  struct Known {
    const char* part;
    double teraflops;
    const char* source;
  };
  // The first whose part is in the card's name: longer names stand first. Without sparsity.
  static constexpr Known known[] = {
    {"GH200", 989.4, "NVIDIA GH200 data sheet"},
    {"H200 NVL", 835.5, "NVIDIA H200 data sheet"},
    {"H200", 989.4, "NVIDIA H200 data sheet"},
    {"H100 NVL", 835.5, "NVIDIA H100 data sheet"},
    {"H100 PCIe", 756.5, "NVIDIA H100 data sheet"},
    {"H100", 989.4, "NVIDIA H100 data sheet"},
    {"A100", 311.9, "NVIDIA A100 data sheet"},
    {"L40S", 362.1, "NVIDIA L40S data sheet"},
    {"B200", 2250, "NVIDIA B200 data sheet"},
  };
  for (const Known& each : known)
    if (card.find(each.part) != std::string::npos) return {each.teraflops * 1e12, each.source};
  return {};
}

void add_times(std::vector<Cell>& cells, const std::vector<double>& seconds) {
  const bench::Spread spread = bench::spread_of(seconds);
  cells.insert(cells.end(), {Cell(spread.median * 1e3, 3), Cell(spread.low * 1e3, 3), Cell(spread.high * 1e3, 3)});
}

void add_time_columns(std::vector<Column>& columns) {
  columns.insert(columns.end(), {Column{"milliseconds", "ms"}, Column{"lower_quartile_ms", "lower quartile"}, Column{"upper_quartile_ms", "upper quartile"}});
}

}  // namespace quire::gpu_report
