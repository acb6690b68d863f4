// The protocol of peers: what is asked and answered, and what becomes of a peer that does not keep to it.
#include "bench/peer.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "bench/fake_peer.h"
#include "check.h"

using namespace quire;
using namespace quire::bench;
using namespace quire::test;

namespace {

/// A peer that says hello and answers everything else with `rest`, lines of shell.
std::string after_hello(const std::string& rest) {
  return R"(read -r line; echo '{"ok":true,"version":"fake 1.0","build":"shell"}'
read -r line
)" + rest;
}

template <class E>
void fails(const std::string& script, std::initializer_list<std::string> parts, double patience = 20) {
  const FakePeers peers(script);
  check_error<E>(
      [&] {
        Peer peer(peers.place(), patience);
        peer.ask({{"ask", "iterate"}});
      },
      parts);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(peer)

BOOST_AUTO_TEST_CASE(says_who_it_is_and_answers_one_request_after_the_other) {
  const FakePeers peers(good_peer);
  Peer peer(peers.place(), 20);
  BOOST_TEST(peer.name() == "fake");
  BOOST_TEST(peer.version() == "fake 1.0");
  BOOST_TEST(peer.build() == "shell, one thread");
  const nlohmann::json refused = peer.ask({{"ask", "step"}, {"variant", "dense"}});  // a refusal is an answer
  BOOST_TEST(!refused.at("ok").get<bool>());
  BOOST_TEST(peer.number(peer.ask({{"ask", "step"}, {"variant", "loop"}}), "seconds") == 0.25);
  BOOST_TEST(peer.number(peer.ask({{"ask", "iterate"}}), "loss") == 4.0);
  check_error<DataError>([&] { peer.number(refused, "seconds"); }, {"peer fake", "lacks the number seconds", "nothing dense"});
  BOOST_TEST(peers.asked() == "{\"ask\":\"hello\"}\n{\"ask\":\"step\",\"variant\":\"dense\"}\n{\"ask\":\"step\",\"variant\":\"loop\"}\n{\"ask\":\"iterate\"}\n");
}

BOOST_AUTO_TEST_CASE(is_started_with_one_thread) {
  const FakePeers peers(R"(read -r line; echo "{\"ok\":true,\"version\":\"$OMP_NUM_THREADS $MKL_NUM_THREADS $OPENBLAS_NUM_THREADS\",\"build\":\"$HOME\"}"
read -r line)");
  ::setenv("OMP_NUM_THREADS", "7", 1);  // what was set before does not reach it
  const Peer peer(peers.place(), 20);
  ::unsetenv("OMP_NUM_THREADS");
  BOOST_TEST(peer.version() == "1 1 1");
  BOOST_TEST(peer.build() == std::string(::getenv("HOME") ? ::getenv("HOME") : ""));
}

BOOST_AUTO_TEST_CASE(that_dies_is_named_with_its_last_words) {
  fails<FileError>("echo first >&2; echo ModuleNotFoundError: no torch here >&2; exit 3", {"[peer fake]", "ended with status 3", "its last words: ModuleNotFoundError: no torch here"});
  fails<FileError>(after_hello("echo out of luck >&2; exit 4"), {"[peer fake]", "status 4", "out of luck"});
  fails<FileError>(after_hello("kill -9 $$"), {"[peer fake]", "killed by signal 9", "it said nothing"});
  fails<FileError>(after_hello("exec >&-; sleep 30"), {"[peer fake]", "closed its output"});
}

BOOST_AUTO_TEST_CASE(that_says_nonsense_is_not_believed) {
  fails<DataError>("read -r line; echo good morning", {"[peer fake]", "'good morning'", "JSON object"});
  fails<DataError>("read -r line; echo '{\"ok\":true,\"version\":\"1\"}'", {"[peer fake]", "version and build"});
  fails<DataError>(after_hello("echo '[1, 2]'"), {"[peer fake]", "'[1, 2]'"});
  fails<DataError>(after_hello("echo '{\"seconds\":1}'"), {"[peer fake]", "\"ok\" is needed"});
  fails<DataError>(after_hello("echo '{\"ok\":false}'"), {"[peer fake]", "without a reason"});
}

BOOST_AUTO_TEST_CASE(that_hangs_is_not_waited_for) {
  const auto start = std::chrono::steady_clock::now();
  fails<FileError>(after_hello("sleep 100"), {"[peer fake]", "no answer within 0.3 s", "--patience"}, 0.3);
  BOOST_TEST(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 50);
}

BOOST_AUTO_TEST_CASE(that_has_ended_stays_ended) {
  const FakePeers peers(after_hello("exit 0"));
  Peer peer(peers.place(), 20);
  check_error<FileError>([&] { peer.ask({{"ask", "iterate"}}); }, {"ended with status 0"});
  check_error<FileError>([&] { peer.ask({{"ask", "iterate"}}); }, {"it has ended"});
}

BOOST_AUTO_TEST_CASE(places_are_found_by_name_and_what_is_missing_is_said) {
  const FakePeers peers(good_peer, {"torch-2.6", "torch-current"});
  std::filesystem::create_directories(peers.path("peers/none/lib"));  // no environment
  const std::vector<PeerPlace> places = find_peers(peers.folder(), peers.script());
  BOOST_REQUIRE_EQUAL(places.size(), 2);
  BOOST_TEST(places[0].name == "torch-2.6");
  BOOST_TEST(places[1].name == "torch-current");
  check_error<ConfigError>([&] { find_peers(peers.path("nowhere"), peers.script()); }, {"--peers", "nowhere", "no folder", "tests/peers/setup"});
  check_error<ConfigError>([&] { find_peers(peers.folder() + "/none", peers.script()); }, {"--peers", "bin/python"});
  check_error<ConfigError>([&] { find_peers(peers.folder(), peers.path("nothing.py")); }, {"nothing.py", "--peer-script"});
}

BOOST_AUTO_TEST_CASE(that_can_not_be_started_is_named) {
  const FakePeers peers(good_peer);
  std::filesystem::remove(peers.path("peers/fake/bin/python"));
  std::ofstream(peers.path("peers/fake/bin/python")) << "no program";
  check_error<FileError>([&] { Peer(peers.place(), 20); }, {"[peer fake]", "does not start", "bin/python"});
}

BOOST_AUTO_TEST_SUITE_END()
