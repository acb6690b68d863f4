// Bugs planted in attention's own kernels, each in a process of its own (tests/cuda/planted/attention.cpp).
#include "check.h"
#include "cuda/run_program.h"
#include "emulation.h"

namespace quire::test {

BOOST_AUTO_TEST_SUITE(cuda_attention_planted)

BOOST_AUTO_TEST_CASE(nothing_shows_where_nothing_is_planted) { check_right("planted_attention"); }

BOOST_AUTO_TEST_CASE(bugs_in_the_kernels_are_caught) {
  struct Bug { const char *name, *shows; };
  for (const Bug& bug : {Bug{"attention.missing_barrier", "64: wrong\n128: wrong"}, {"attention.wrong_fragment", "64: wrong\n128: wrong"},
                         {"attention.mask_off_by_one", "64: wrong\n128: wrong"}, {"attention.short_shared", "cp.async"}}) {
    const ProgramOutcome outcome = run_program("planted_attention", bug.name);
    BOOST_TEST(outcome.exit_code != 0, bug.name << ": " << outcome.output);
    if (emulation::thread_sanitizer && std::string(bug.name) == "attention.missing_barrier") {
      BOOST_TEST(outcome.output.find("data race") != std::string::npos, outcome.output);
      BOOST_TEST(outcome.output.find("forward<") != std::string::npos, outcome.output);  // the kernel, by line where there is debugging information
    } else if (!emulation::thread_sanitizer && !emulation::address_sanitizer) {
      BOOST_TEST(outcome.output.find(bug.shows) != std::string::npos, bug.name << ": " << outcome.output);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
