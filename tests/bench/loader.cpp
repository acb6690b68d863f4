// What `bench loader` makes, reads and reports.
#include "bench/loader.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "check.h"
#include "data/corpus.h"
#include "run/scratch.h"

using namespace quire;
using namespace quire::bench;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(loader_bench)

BOOST_AUTO_TEST_CASE(prepares_a_text_and_reads_all_of_it) {
  Scratch scratch;
  std::ofstream(scratch.path("some.txt")) << std::string(40, 'x') << "\n%\n" << std::string(900, 'y') << "\n";
  LoaderBenchOptions options;
  options.text = scratch.path("some.txt");
  options.scratch = scratch.path("work");
  options.megabytes = 1;
  options.rounds = 2;
  const LoaderBenchResult result = bench_loader(options);
  const auto corpus = Corpus::open(scratch.path("work/corpus"));  // a folder that was named is kept
  BOOST_TEST(corpus->totals().tokens == result.tokens);
  BOOST_TEST(corpus->totals().documents == result.documents);
  BOOST_TEST(result.bytes > 900'000);
  const nlohmann::json object = nlohmann::json::parse(result.to_json());
  BOOST_REQUIRE_EQUAL(object.at("lines").size(), 3);
  for (const nlohmann::json& line : object["lines"]) {
    BOOST_TEST(line.at("processor_seconds").size() == 2);
    BOOST_TEST(line.at("per_second").get<double>() > 0);
  }
  // An epoch's inputs: every token but each document's last one, which has no target... in whichever way they are packed.
  BOOST_TEST(result.lines[1].amount == result.lines[2].amount);
  BOOST_TEST(result.lines[1].amount * 1e6 <= static_cast<double>(result.tokens));
  BOOST_TEST(result.lines[1].amount * 1e6 >= static_cast<double>(result.tokens - result.documents));
}

BOOST_AUTO_TEST_CASE(refuses_what_it_can_not_measure) {
  LoaderBenchOptions options;
  options.megabytes = 0;
  check_error<ConfigError>([&] { bench_loader(options); }, {"--megabytes is 0"});
  options.megabytes = 1;
  options.rounds = 0;
  check_error<ConfigError>([&] { bench_loader(options); }, {"--rounds 0"});
  options.rounds = 1;
  options.text = "/nowhere/text";
  check_error<FileError>([&] { bench_loader(options); }, {"/nowhere/text"});
}

BOOST_AUTO_TEST_SUITE_END()
