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

inline ProgramOutcome run_command(const std::string& command) {
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {127, "not started"};
  std::string output;
  char part[4096];
  while (const size_t got = std::fread(part, 1, sizeof part, pipe)) output.append(part, got);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, output};
}

inline ProgramOutcome run_program(const std::string& program, const std::string& argument) {
  // ThreadSanitizer is to remember where the host wrote, however much it did since.
  return run_command("TSAN_OPTIONS=halt_on_error=1:history_size=7 " QUIRE_BUILD_ROOT "/tests/cuda/" + program + " " + argument + " 2>&1");
}

/// Control: without a bug the program computes what is right.
inline void check_right(const std::string& program, const std::string& argument = "none") {
  const ProgramOutcome outcome = run_program(program, argument);
  BOOST_TEST(outcome.exit_code == 0, outcome.output);
  BOOST_TEST(outcome.output == "right\n");
}

}  // namespace quire::test
