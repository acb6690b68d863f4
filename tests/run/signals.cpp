// SIGTERM and SIGINT: the first asks, a second SIGINT ends at once, and what was there before comes back.
#include "run/signals.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "check.h"

using namespace quire;

namespace {

/// Runs `code` in a child; its exit status, or minus the signal that ended it.
int status_of(const std::function<int()>& code) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(code());
  int status = 0;
  BOOST_REQUIRE_EQUAL(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(signals)

BOOST_AUTO_TEST_CASE(either_signal_sets_the_flag_and_the_process_goes_on) {
  for (const int signal : {SIGTERM, SIGINT})
    BOOST_TEST(status_of([&] {
      const StopSignals signals;
      if (signals.stop_requested()) return 1;
      ::raise(signal);
      return signals.stop_requested() && signals.signal() == signal ? 7 : 2;
    }) == 7);
}

BOOST_AUTO_TEST_CASE(a_second_interrupt_ends_at_once_and_a_second_term_does_not) {
  BOOST_TEST(status_of([] {
    const StopSignals signals;
    ::raise(SIGINT);
    ::raise(SIGINT);
    return 7;
  }) == 130);
  BOOST_TEST(status_of([] {
    const StopSignals signals;
    ::raise(SIGTERM);
    ::raise(SIGINT);
    return 7;
  }) == 130);
  BOOST_TEST(status_of([] {
    const StopSignals signals;
    ::raise(SIGTERM);
    ::raise(SIGTERM);
    return signals.signal() == SIGTERM ? 7 : 1;
  }) == 7);
}

BOOST_AUTO_TEST_CASE(the_handlers_before_are_restored) {
  BOOST_TEST(status_of([] {
    { const StopSignals signals; }
    ::raise(SIGTERM);
    return 7;
  }) == -SIGTERM);
  BOOST_TEST(status_of([] {
    ::signal(SIGINT, SIG_IGN);
    { const StopSignals signals; }
    ::raise(SIGINT);
    return 7;
  }) == 7);
  BOOST_TEST(status_of([] {
    { const StopSignals first; ::raise(SIGINT); }
    const StopSignals second;
    return second.stop_requested() ? 1 : 7;  // a new object starts unset
  }) == 7);
}

BOOST_AUTO_TEST_CASE(there_is_one_at_a_time) {
  const StopSignals signals;
  quire::test::check_error<StateError>([] { StopSignals second; }, {"[signals]", "one at a time"});
}

BOOST_AUTO_TEST_SUITE_END()
