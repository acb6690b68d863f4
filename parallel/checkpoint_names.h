// How the folders and files of checkpoints are called.
#pragma once
#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

inline constexpr const char* writing_suffix = ".writing";
inline constexpr const char* removing_suffix = ".removing";
inline constexpr const char* replaced_suffix = ".replaced";

inline std::string checkpoints_folder(const std::string& run_folder) { return run_folder + "/checkpoints"; }

/// The step of `step-00000030` (no suffix), or nothing.
inline std::optional<int64_t> step_of(std::string_view name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return {};
  name.remove_prefix(prefix.size());
  if (name.size() < 8 || name.size() > 18 || (name.size() > 8 && name[0] == '0')) return {};
  int64_t step = 0;
  for (const char digit : name) {
    if (digit < '0' || digit > '9') return {};
    step = 10 * step + (digit - '0');
  }
  return step;
}

inline std::string comma_separated(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += fmt::format("{}{}", text.empty() ? "" : ",", value);
  return text;
}

}  // namespace quire
