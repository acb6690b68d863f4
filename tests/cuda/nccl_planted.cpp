// Bugs of messages between devices, each in a process of its own (tests/cuda/planted/nccl.cpp).
#include "check.h"
#include "cuda/run_program.h"
#include "emulation.h"

namespace quire::test {

namespace {

struct Bug {
  const char* name;
  const char* shows;  ///< in the plain build
  bool is_race;       ///< which ThreadSanitizer sees
};
constexpr Bug bugs[] = {
    {"ungrouped", "deadlock: messages wait for each other; device", false},
    {"wrong_order", "deadlock: messages wait for each other; device", false},
    {"missing_event", "in place of", true},
    {"missing_wait", "in place of", true},
    {"released_early", "computed beside a message", true},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(nccl_planted)

BOOST_AUTO_TEST_CASE(nothing_shows_where_nothing_is_planted) { check_right("planted_nccl"); }

BOOST_AUTO_TEST_CASE(every_bug_is_caught) {
  for (const Bug& bug : bugs) {
    const ProgramOutcome outcome = run_program("planted_nccl", bug.name);
    const std::string shows = emulation::thread_sanitizer && bug.is_race ? "data race" : bug.shows;
    BOOST_TEST(outcome.exit_code != 0, bug.name << ": " << outcome.output);
    BOOST_TEST(outcome.output.find(shows) != std::string::npos, bug.name << ": " << outcome.output);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
