// tools/bench as a user starts it.
#include <nlohmann/json.hpp>

#include "bench/fake_peer.h"
#include "programs/program.h"

using namespace quire::test;

namespace {

ProgramResult run_bench(std::vector<std::string> args) {
  args.insert(args.begin(), tool("bench"));
  return run_program(args, {.folder = QUIRE_SOURCE_ROOT});
}

void refused(const std::vector<std::string>& args, const std::vector<std::string>& parts) {
  const ProgramResult result = run_bench(args);
  BOOST_TEST(result.status == 1, args[0]);
  BOOST_TEST(result.out.empty(), result.out);
  BOOST_TEST(std::count(result.err.begin(), result.err.end(), '\n') == 1, result.err);
  for (const std::string& part : parts) BOOST_TEST(result.err.find(part) != std::string::npos, result.err << " lacks " << part);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(bench_program)

BOOST_AUTO_TEST_CASE(what_is_wrong_is_one_line_and_status_1) {
  refused({"nonsense"}, {"[bench]", "--help"});
  refused({"step", "--shapes", "z", "--no-peers"}, {"[bench] --shapes has 'z'"});
  refused({"step", "--peers", "/nowhere", "--no-peers"}, {"[bench]", "--no-peers"});
  refused({"step", "--peers", "/nowhere"}, {"[bench] --peers is /nowhere", "tests/peers/setup"});
  refused({"step", "--lengths", "/nowhere", "--no-peers"}, {"/nowhere", "--lengths"});
  refused({"kernels", "--parts", "walls"}, {"[bench] --parts has 'walls'"});
  refused({"loader", "--megabytes", "0"}, {"[bench] --megabytes is 0"});
  const FakePeers peers("echo no module named torch >&2; exit 1");
  refused({"step", "--shapes", "tiny", "--peers", peers.folder(), "--peer-script", peers.script()}, {"[peer fake]", "status 1", "no module named torch"});
}

BOOST_AUTO_TEST_CASE(json_is_one_line_and_progress_goes_to_standard_error) {
  const FakePeers peers(good_peer);
  const ProgramResult result = run_bench({"step", "--shapes", "tiny", "--documents", "one", "--pairs", "1", "--tries", "1", "--json", "--peers", peers.folder(), "--peer-script", peers.script()});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(std::count(result.out.begin(), result.out.end(), '\n') == 1);
  BOOST_TEST(nlohmann::json::parse(result.out).at("lines").at(0).at("best_peer") == "fake");
  BOOST_TEST(result.err.find("tiny one, pair 1 of 1, fake") != std::string::npos, result.err);
  BOOST_TEST(run_bench({"step", "--shapes", "tiny", "--pairs", "1", "--tries", "1", "--no-peers"}).out.find("| tiny | packed | quire f32 |") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
