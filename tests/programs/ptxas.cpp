// The check of what ptxas says of kernels (tests/cuda/ptxas_check), on reports that are made up.
#include "programs/fixture.h"

using namespace quire;
using namespace quire::test;

namespace {

const std::string check = std::string(QUIRE_SOURCE_ROOT) + "/tests/cuda/ptxas_check";

std::string report(const std::string& kernel, const std::string& architecture, int stack, int stores, int loads, int registers) {
  return fmt::format("ptxas info    : Compiling entry function '{}' for '{}'\nptxas info    : Function properties for {}\n"
                     "    {} bytes stack frame, {} bytes spill stores, {} bytes spill loads\nptxas info    : Used {} registers, used 1 barriers, 380 bytes cmem[0]\n",
                     kernel, architecture, kernel, stack, stores, loads, registers);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(ptxas_reports)

BOOST_AUTO_TEST_CASE(kernels_without_local_memory_pass_and_show_their_registers) {
  Scratch scratch;
  store(scratch.path("a.ptxas"), "ptxas info    : 0 bytes gmem\n" + report("_Z5lightILi64EEvPf", "sm_80", 0, 0, 0, 132) + report("_Z5lightILi64EEvPf", "sm_90a", 0, 0, 0, 128));
  store(scratch.path("b.ptxas"), report("plain", "sm_80", 0, 0, 0, 40));
  const ProgramResult result = run_program({check, scratch.path("a.ptxas"), scratch.path("b.ptxas")});
  BOOST_TEST(result.status == 0, result.err);
  for (const char* part : {"sm_80   132 registers", "sm_90a  128 registers", "void light<64>(float*)", "plain", "3 kernels, 0 with values in local memory"})
    BOOST_TEST(result.out.find(part) != std::string::npos, result.out << " lacks " << part);
}

// Each kind of local memory alone, for one of two architectures, in the first, a middle or the last kernel of the reports.
BOOST_AUTO_TEST_CASE(local_memory_is_found) {
  Scratch scratch;
  for (const auto& [stack, stores, loads] : {std::tuple{16, 0, 0}, std::tuple{0, 4, 0}, std::tuple{0, 0, 8}})
    for (int place = 0; place < 3; ++place) {
      std::string text;
      for (int kernel = 0; kernel < 3; ++kernel)
        text += kernel == place ? report("culprit", "sm_90a", stack, stores, loads, 255) : report("clean", "sm_80", 0, 0, 0, 32);
      store(scratch.path("a.ptxas"), text);
      const ProgramResult result = run_program({check, scratch.path("a.ptxas")});
      BOOST_TEST(result.status == 1);
      BOOST_TEST(result.err == fmt::format("[ptxas_check] culprit for sm_90a: found: {} bytes of stack frame, {} of spill stores, {} of spill loads; allowed: none\n", stack, stores, loads));
    }
}

BOOST_AUTO_TEST_CASE(reports_that_say_nothing_are_refused) {
  Scratch scratch;
  store(scratch.path("empty.ptxas"), "");
  store(scratch.path("other.ptxas"), "ptxas info    : 0 bytes gmem\n");
  for (const std::string& path : {scratch.path("empty.ptxas"), scratch.path("other.ptxas"), scratch.path("none.ptxas")}) {
    const ProgramResult result = run_program({check, path});
    BOOST_TEST(result.status == 1);
    BOOST_TEST(result.err.find(path) != std::string::npos, result.err);
  }
  BOOST_TEST(run_program({check}).status == 1);
}

BOOST_AUTO_TEST_SUITE_END()
