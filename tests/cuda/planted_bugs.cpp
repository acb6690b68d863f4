// Bugs planted on purpose (tests/cuda/planted), each in a process of its own: values or checks show every one of them in the plain build, and a sanitizer
// names the line where it is its kind of bug.
#include <fstream>

#include "check.h"
#include "cuda/run_program.h"
#include "emulation.h"

namespace quire::test {

namespace {

/// "bugs.cpp:LINE" of each line that is marked with the bug's name.
std::vector<std::string> marked_places(const std::string& bug) {
  std::ifstream source(QUIRE_SOURCE_ROOT "/tests/cuda/planted/bugs.cpp");
  std::vector<std::string> places;
  int number = 0;
  for (std::string line; std::getline(source, line);) {
    ++number;
    const size_t mark = line.find("// seen: ");
    if (mark != std::string::npos && line.find(bug, mark) != std::string::npos) places.push_back("bugs.cpp:" + std::to_string(number));
  }
  return places;
}

bool names_a_place(const std::string& output, const std::string& bug) {
  const std::vector<std::string> places = marked_places(bug);
  return std::any_of(places.begin(), places.end(), [&](const std::string& place) { return output.find(place) != std::string::npos; });
}

struct Bug {
  const char* name;
  const char* shows;    ///< in the plain build
  const char* address;  ///< AddressSanitizer's word, "" where it does not see it
  const char* thread;   ///< ThreadSanitizer's
};
constexpr Bug bugs[] = {
    {"missing_barrier", "the kernel's product is wrong", "", "data race"},
    {"buffer_reused_early", "the kernel's product is wrong", "", "data race"},
    {"wrong_fragment", "the kernel's product is wrong", "", ""},
    {"shared_buffer_short", "wrote behind the block's 240 bytes of shared memory", "buffer-overflow", ""},
    {"missing_event_wait", "product is wrong", "", "data race"},
    {"staging_reused_early", "product is wrong", "", "data race"},
    {"use_after_free", "what was freed reads otherwise", "use-after-poison", ""},
    {"host_pointer", "cublasLtMatmul returns 7", "", ""},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(planted_bugs)

BOOST_AUTO_TEST_CASE(nothing_shows_where_nothing_is_planted) { check_right("planted_bugs"); }

BOOST_AUTO_TEST_CASE(every_bug_is_caught_and_sanitizers_name_its_line) {
  for (const Bug& bug : bugs) {
    const ProgramOutcome outcome = run_program("planted_bugs", bug.name);
    BOOST_TEST(outcome.exit_code != 0, bug.name << ": " << outcome.output);
    const std::string word = emulation::address_sanitizer ? bug.address : emulation::thread_sanitizer ? bug.thread : "";
    if (word.empty()) {
      BOOST_TEST(outcome.output.find(bug.shows) != std::string::npos, bug.name << ": " << outcome.output);
    } else {
      BOOST_TEST(outcome.output.find(word) != std::string::npos, bug.name << ": " << outcome.output);
      BOOST_TEST(names_a_place(outcome.output, bug.name), bug.name << ": " << outcome.output);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
