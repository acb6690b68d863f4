// The machine's facts, as far as they can be checked without knowing the machine.
#include "run/machine.h"

#include <cstring>
#include <memory>

#include "check.h"
#include "ops/cpu/instruction_set.h"
#include "run/rank_options.h"

using namespace quire;
using quire::test::check_error;

BOOST_AUTO_TEST_SUITE(machine)

BOOST_AUTO_TEST_CASE(processors_respect_affinity_and_quota) {
  BOOST_TEST(usable_processors(8, "") == 8);
  BOOST_TEST(affine_processors() >= usable_processors());
  BOOST_TEST(usable_processors(8, "max 100000") == 8);
  BOOST_TEST(usable_processors(8, "200000 100000") == 2);
  BOOST_TEST(usable_processors(8, "150000 100000") == 2);
  BOOST_TEST(usable_processors(8, "1000 100000") == 1);
  BOOST_TEST(usable_processors(8, "10000000 100000") == 8);
  BOOST_TEST(usable_processors(0, "") == 1);
  for (const char* odd : {" ", "x y", "100000", "-1 100000", "100000 0", "100000 "}) BOOST_TEST(usable_processors(3, odd) == 3, odd);
  BOOST_TEST(usable_processors() >= 1);
}

BOOST_AUTO_TEST_CASE(resident_memory_follows_what_is_touched) {
  const int64_t before = resident_bytes(), size = int64_t{64} << 20;
  BOOST_TEST(before > 0);
  const std::unique_ptr<char[]> block(new char[static_cast<size_t>(size)]);
  volatile char* touched = block.get();  // a compiler may leave out what is only written
  for (int64_t i = 0; i < size; i += 4096) touched[i] = 1;
  BOOST_TEST(resident_bytes() - before > size / 2);
  BOOST_TEST(resident_bytes() < physical_bytes());
}

BOOST_AUTO_TEST_CASE(the_peak_is_measured_for_every_instruction_set_and_type) {
  for (const std::string& name : instruction_sets()) {
    Rank rank({.threads = 2, .instruction_set = name});
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const double peak = measure_peak_flops(rank, dtype);
      BOOST_TEST(peak > 1e7);   // far below any machine,
      BOOST_TEST(peak < 1e15);  // and far above: chains folded away by the compiler would exceed it
    }
  }
  Rank rank;
  check_error<DTypeError>([&] { measure_peak_flops(rank, DType::i32); }, {"i32"});
}

BOOST_AUTO_TEST_CASE(the_first_line_says_what_runs_where) {
  Rank rank({.threads = 2});
  const std::string line = machine_line(rank);
  BOOST_TEST(line.find("quire " + std::string(version())) == 0u);
  BOOST_TEST(line.find(std::string(instruction_set(rank))) != std::string::npos);
  BOOST_TEST(line.find("2 threads") != std::string::npos);
  BOOST_TEST(line.find(processor_name()) != std::string::npos);
  BOOST_TEST(line.find('\n') == std::string::npos);
}

BOOST_AUTO_TEST_CASE(threads_are_bound_where_a_run_has_the_machine) {
  BOOST_TEST(first_processor("auto", 8, 0, 1, 8) == 0);
  BOOST_TEST(first_processor("auto", 4, 1, 2, 8) == 4);
  BOOST_TEST(first_processor("auto", 4, 0, 1, 8) == -1);  // another run may be beside it
  BOOST_TEST(first_processor("auto", 8, 1, 2, 8) == -1);  // more threads than processors
  BOOST_TEST(first_processor("always", 4, 2, 3, 64) == 8);
  BOOST_TEST(first_processor("never", 8, 0, 1, 8) == -1);
}

BOOST_AUTO_TEST_SUITE_END()
