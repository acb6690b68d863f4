// Programs of tests/cuda/planted, run in a process of their own: a sanitizer may end it.
#pragma once
#include <cstdio>
#include <string>
#include <sys/wait.h>

#include "check.h"

namespace quire::test {

struct ProgramOutcome {
  int exit_code;
  std::string output;  ///< of both streams
};

inline ProgramOutcome run_program(const std::string& program, const std::string& argument) {
  // ThreadSanitizer is to remember where the host wrote, however much it did since.
  const std::string command = "TSAN_OPTIONS=halt_on_error=1:history_size=7 " QUIRE_BUILD_ROOT "/tests/cuda/" + program + " " + argument + " 2>&1";
  FILE* const pipe = ::popen(command.c_str(), "r");
  BOOST_TEST_REQUIRE(pipe != nullptr);
  std::string output;
  char part[4096];
  while (const size_t got = std::fread(part, 1, sizeof part, pipe)) output.append(part, got);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, output};
}

}  // namespace quire::test
