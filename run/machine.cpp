#include "run/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "ops/cpu/instruction_set.h"
#include "run/version.h"
#include "runtime/accelerator.h"

namespace quire {

std::string_view version() { return QUIRE_VERSION; }

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name") && !line.starts_with("Processor")) continue;
    const size_t at = line.find(": ");
    if (at != std::string::npos && at + 2 < line.size()) return line.substr(at + 2);
  }
  return "unknown processor";
}

int usable_processors(int affinity, std::string_view cpu_max) {
  int allowed = std::max(affinity, 1);
  int64_t quota = 0, period = 0;
  const size_t space = cpu_max.find(' ');
  if (space == std::string_view::npos) return allowed;
  const char* end = cpu_max.data() + cpu_max.size();
  const bool quota_read = std::from_chars(cpu_max.data(), cpu_max.data() + space, quota).ec == std::errc();
  const bool period_read = std::from_chars(cpu_max.data() + space + 1, end, period).ec == std::errc();
  if (!quota_read || !period_read || quota <= 0 || period <= 0) return allowed;  // "max": no quota
  return static_cast<int>(std::clamp<int64_t>((quota + period - 1) / period, 1, allowed));
}

int affine_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return std::max(::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), 1);
}

int usable_processors() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string cpu_max;
  std::getline(file, cpu_max);
  return usable_processors(affine_processors(), cpu_max);
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  return file >> total >> resident ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

int64_t physical_bytes() {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES);
  return pages > 0 ? pages * ::sysconf(_SC_PAGESIZE) : 0;
}

std::string machine_line(const Rank& rank) {
  const int threads = rank.options().threads;
  const std::string device = rank.accelerator() == nullptr ? "" : fmt::format("{} ({}), with ", to_string(rank.device()), rank.accelerator()->description());
  return fmt::format("quire {} on {}{}, {} thread{}, {}, {:.1f} GiB of memory", version(), device, processor_name(), threads, threads == 1 ? "" : "s",
                     instruction_set(rank), static_cast<double>(physical_bytes()) / (1 << 30));
}

}  // namespace quire
