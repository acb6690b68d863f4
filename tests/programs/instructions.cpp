// A slow-down is seen without a clock: instructions of one training step, counted by valgrind's callgrind, against a recorded bound.
#include <algorithm>

#include "ops/cpu/instruction_set.h"
#include "program.h"

using namespace quire;
using namespace quire::test;

namespace {

/// The counts are of one compiler's optimised build and of AVX2.
bool can_count() {
  const bool possible = QUIRE_COUNTED_BUILD && std::ranges::count(instruction_sets(), "avx2") > 0;
  if (!possible) BOOST_TEST_MESSAGE("not counted: the recorded numbers are of g++'s optimised build and of AVX2");
  return possible;
}

/// Instructions of a program, in millions; of what happens inside one of its functions alone, where `options` say so.
double count_of(const std::vector<std::string>& program_and_arguments, const std::vector<std::string>& options = {}) {
  std::vector<std::string> command = {"/usr/bin/env", "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"};
  for (const auto* part : {&options, &program_and_arguments}) command.insert(command.end(), part->begin(), part->end());
  Program program(command);
  const ProgramResult result = program.wait();
  BOOST_REQUIRE_MESSAGE(result.status == 0, "valgrind ended with " << result.status << ": " << result.err);
  const size_t at = result.err.find("Collected : ");
  BOOST_REQUIRE_MESSAGE(at != std::string::npos, "no count in: " << result.err);
  return std::stod(result.err.substr(at + 12)) / 1e6;
}

/// Of the step.
double count(const std::string& precision, const std::string& instruction_set, const std::vector<std::string>& kernels = {}) {
  std::vector<std::string> command = {std::string(QUIRE_BUILD_ROOT) + "/tests/programs/counted_step", precision, instruction_set};
  command.insert(command.end(), kernels.begin(), kernels.end());
  return count_of(command, {"--toggle-collect=counted_step"});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(instructions)

// What a step took when it was recorded, in millions, with g++ 12. A twentieth above it is a slow-down to be explained; a fifth below it is a count to be
// recorded anew. Valgrind knows no AVX-512, whose kernels are the same source.
constexpr std::pair<const char*, double> recorded_counts[] = {{"f32", 22.2}, {"bf16", 25.1}};

BOOST_AUTO_TEST_CASE(a_step_takes_no_more_instructions_than_recorded) {
  if (!can_count()) return;
  for (const auto& [precision, recorded] : recorded_counts) {
    const double counted = count(precision, "avx2");
    BOOST_TEST_MESSAGE(precision << ": " << counted << " million instructions");
    BOOST_TEST(counted <= 1.05 * recorded, precision << ": " << counted << " million instructions, recorded were " << recorded);
    BOOST_TEST(counted >= 0.8 * recorded, precision << ": " << counted << " million instructions, recorded were " << recorded << ": record this");
  }
}

// Broken on purpose: the plain matrix product instead of the packed one.
BOOST_AUTO_TEST_CASE(a_slower_kernel_is_seen) {
  if (!can_count()) return;
  BOOST_TEST(count("f32", "avx2", {"matmul=reference"}) > 1.05 * recorded_counts[0].second);
}

// Twice the layers, twice the work: checking every name against every other one, or trying every end of every stage, took minutes where layers are many.
BOOST_AUTO_TEST_CASE(planning_goes_by_the_number_of_layers_and_not_by_its_square) {
  if (!can_count()) return;
  const auto planning = [](int layers, int stages) {
    return count_of({tool("plan"), QUIRE_SOURCE_ROOT "/tools/configs/tiny.toml", "run.threads=1", "model.n_layers=" + std::to_string(layers), "distributed.pp=" + std::to_string(stages), "--flops", "1T"});
  };
  for (const int stages : {1, 16}) {
    const double some = planning(1024, stages), twice = planning(2048, stages);
    BOOST_TEST(twice < 2.5 * some, twice << " million instructions for 2048 layers in " << stages << " stages, " << some << " for 1024");
  }
}

BOOST_AUTO_TEST_SUITE_END()
