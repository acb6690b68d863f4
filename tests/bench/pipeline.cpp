// The simulations of `bench pipeline`: every schedule within one limit of memory, and rows arranged by cost.
#include "bench/pipeline.h"

#include <nlohmann/json.hpp>
#include <set>

#include "check.h"

using namespace quire;

BOOST_AUTO_TEST_SUITE(pipeline_bench)

BOOST_AUTO_TEST_CASE(simulations_keep_the_limit_and_arranging_evens_microbatches) {
  bench::PipelineBenchOptions options;
  options.lengths = std::string(QUIRE_SOURCE_ROOT) + "/bench/lengths";
  options.simulated = true;
  options.corpora = {"lognormal-2048"};
  options.ranks = 4;
  options.microbatches = 12;
  options.steps = 2;
  const bench::PipelineBenchResult result = bench_pipeline(options);
  BOOST_REQUIRE_EQUAL(result.simulated.size(), 12u);
  std::set<std::string> schedules;
  for (const bench::SimulatedPipeline& line : result.simulated) {
    schedules.insert(line.schedule);
    BOOST_TEST((line.memory <= line.limit) == line.fits);
    BOOST_TEST(line.packed_seconds > 0);
    BOOST_TEST(line.arranged_spread <= line.packed_spread + 1e-12);
    if (line.schedule == "1f1b") BOOST_TEST((line.recomputation == "none" && line.fits));
    if (line.rows_per_microbatch == 2) BOOST_TEST(line.arranged_spread < line.packed_spread);
  }
  BOOST_TEST(schedules.size() == 6u);
  const nlohmann::json json = nlohmann::json::parse(result.to_json());
  BOOST_TEST(json["simulated"].size() == 12u);
  BOOST_TEST(result.markdown().find("| zb_v |") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
