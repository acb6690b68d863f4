// Bugs planted in the matrix products' kernels, each in a process of its own, which a sanitizer may end.
#include "check.h"
#include "cuda/run_program.h"
#include "emulation.h"

namespace quire::test {

BOOST_AUTO_TEST_SUITE(cuda_matmul_planted)

BOOST_AUTO_TEST_CASE(nothing_shows_where_nothing_is_planted) {
  for (const char* kernel : {"mma", "wgmma"}) check_right("planted_matmul", std::string(kernel) + " none");
}

BOOST_AUTO_TEST_CASE(every_bug_is_caught) {
  struct Bug {
    const char *name, *shows;
    bool races;
  };
  for (const Bug& bug : {Bug{"mma matmul.wrong_fragment", "wrong", false}, {"mma matmul.missing_wait", "wrong", true},
                         {"wgmma matmul.missing_wait", "more arrivals than it expects", true},
                         // No race to ThreadSanitizer: the reads of a product are seen when it is waited for, by when every later tile has been waited for, too.
                         {"wgmma matmul.early_release", "wrong", false}}) {
    const ProgramOutcome outcome = run_program("planted_matmul", bug.name);
    BOOST_TEST(outcome.exit_code != 0, bug.name << ": " << outcome.output);
    const char* const shows = emulation::thread_sanitizer && bug.races ? "data race" : bug.shows;
    BOOST_TEST(outcome.output.find(shows) != std::string::npos, bug.name << ": " << outcome.output);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
