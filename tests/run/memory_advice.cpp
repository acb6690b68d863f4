// Too little memory: the error says what would fit, and it does.
#include "run/memory_advice.h"

#include "run/memory_case.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(memory_advice)

BOOST_AUTO_TEST_CASE(what_is_said_to_fit_fits) {
  Scratch scratch;
  const Config config = memory_config(scratch, "measured");
  int64_t needed = 1 << 16;
  while (!fits_memory(config, 64, needed)) needed += needed / 16;
  std::vector<int64_t> limits;
  for (int64_t limit = 2 * needed; limit > needed / 16; limit -= limit / 6) limits.push_back(limit);
  const std::set<std::string> said = advice_under(limits, [](int64_t limit) { return std::vector<std::string>{fmt::format("run.memory_limit={}", limit)}; });
  const auto some = [&](const char* part) { return std::any_of(said.begin(), said.end(), [&](const std::string& text) { return text.find(part) != std::string::npos; }); };
  BOOST_TEST(some("train.activation_checkpointing="));
  BOOST_TEST(some("train.microbatch_size="));
  BOOST_TEST(said.contains(""));  // in the end the model itself is too much
}

BOOST_AUTO_TEST_CASE(control_less_than_what_fits_does_not) {
  Scratch scratch;
  const Config config = memory_config(scratch, "run");
  int64_t needed = 1 << 16;
  while (!fits_memory(config, 64, needed)) needed += needed / 16;
  BOOST_TEST(!fits_memory(config, 64, needed - needed / 16 - needed / 64));
  Config less = config;
  less.train.activation_checkpointing = "full";
  BOOST_TEST(fits_memory(less, 64, needed - needed / 16 - needed / 64));
  less.train.microbatch_size = 1;
  BOOST_TEST(fits_memory(less, 64, needed / 2));
  BOOST_TEST(!what_would_fit(config, 64, 1 << 12).has_value());
}

BOOST_AUTO_TEST_SUITE_END()
