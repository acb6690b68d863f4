// What the reports and options of all measurements share.
#pragma once
#include <string>
#include <vector>

namespace quire::bench {

/// "AMD EPYC, avx2".
std::string machine_name();
/// Today in UTC, "2026-11-30".
std::string today();

/// Throws ConfigError, naming the nearest, for a name that is not known, and where none is given.
void check_names(const char* option, const std::vector<std::string>& given, const std::vector<std::string>& known);

}  // namespace quire::bench
