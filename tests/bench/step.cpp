// What `bench step` draws, asks of peers and reports; nothing here depends on how fast anything is.
#include "bench/step.h"

#include <nlohmann/json.hpp>

#include "bench/fake_peer.h"
#include "bench/made_step.h"
#include "bench/rows.h"
#include "check.h"

using namespace quire;
using namespace quire::bench;
using namespace quire::test;

namespace {

StepBenchOptions tiny(const std::vector<std::string>& documents) {
  StepBenchOptions options;
  options.lengths = QUIRE_SOURCE_ROOT "/bench/lengths";
  options.shapes = {"tiny"};
  options.documents = documents;
  options.pairs = 2;
  options.tries = 1;
  return options;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_AUTO_TEST_SUITE(step)

BOOST_AUTO_TEST_CASE(a_made_step_has_the_documents_of_its_rows) {
  const LoadedStep step = made_step({{3, 2}, {5}}, 7);
  const HostBatch& host = step.microbatches.at(0);
  BOOST_TEST(step.plan.tokens == 10);
  BOOST_TEST(step.plan.rows.size() == 2);
  BOOST_TEST(host.documents.runs().size() == 3);
  BOOST_TEST(host.tokens.size() == 10);
  for (const int32_t token : host.tokens) BOOST_TEST((token >= 0 && token < 7));
  BOOST_TEST(made_step({{10}}, 7).microbatches[0].tokens == host.tokens);  // drawn by place, not by document
}

BOOST_AUTO_TEST_CASE(the_same_documents_go_to_every_peer_and_its_quickest_variant_is_measured) {
  const FakePeers peers(good_peer, {"one", "two"});
  StepBenchOptions options = tiny({"packed"});
  options.peers = peers.folder();
  options.peer_script = peers.script();
  const StepBenchResult result = bench_step(options);
  const StepLine& line = result.lines.at(0);
  BOOST_TEST(line.tokens == 128);
  const std::vector<Lengths> corpora = read_lengths(options.lengths);
  const nlohmann::json rows = {draw_row(corpora[0], 64, 0), draw_row(corpora[0], 64, 1)};
  BOOST_TEST(corpora[0].name == "lognormal-128");
  BOOST_TEST(line.document_count == static_cast<int64_t>(rows[0].size() + rows[1].size()));
  BOOST_REQUIRE_EQUAL(line.sides.size(), 3);
  BOOST_TEST(line.sides[0].name == "quire");
  BOOST_TEST(line.sides[0].seconds.size() == 2);
  BOOST_TEST(line.sides[0].first_loss > 0);
  for (const size_t peer : {1, 2}) {
    BOOST_TEST(line.sides[peer].variant == "loop");
    BOOST_TEST(line.sides[peer].version == "fake 1.0");
    BOOST_TEST(line.sides[peer].first_loss == 4.5);
    BOOST_TEST(line.sides[peer].last_loss == 4.0);
    BOOST_TEST(line.sides[peer].memory == 1048576);
    for (size_t pair = 0; pair < 2; ++pair) {
      BOOST_TEST(line.sides[peer].seconds[pair] == 1000);
      BOOST_TEST(line.sides[peer].ratios[pair] == 1000 / line.sides[0].seconds[pair]);
    }
  }
  BOOST_REQUIRE(line.best_peer());
  BOOST_TEST(line.best_peer()->name == "one");
  BOOST_REQUIRE_EQUAL(line.trials.size(), 12);
  BOOST_TEST(line.trials[0].reason == "ValueError: nothing dense here");
  std::istringstream asked(peers.asked());
  int steps = 0;
  for (std::string text; std::getline(asked, text);) {
    const nlohmann::json request = nlohmann::json::parse(text);
    if (request["ask"] != "step") continue;
    ++steps;
    BOOST_TEST(request["lengths"] == rows);
    BOOST_TEST(request["dtype"] == "f32");
    BOOST_TEST(request["model"]["vocab"] == 64);
    BOOST_TEST(request["model"]["layers"] == 1);
  }
  BOOST_TEST(steps == 14);  // six trials and the chosen one, of two peers
  const std::string text = result.markdown();
  for (const char* part : {"| tiny | packed | quire f32 |", "| tiny | packed | one f32, loop |", "nothing dense here", "- one: fake 1.0, shell, one thread"}) BOOST_TEST(holds(text, part), text << " lacks " << part);
}

BOOST_AUTO_TEST_CASE(one_json_object_holds_what_was_measured) {
  StepBenchOptions options = tiny({"packed", "one"});
  options.dtypes = {"f32", "bf16"};
  options.profile = true;
  const StepBenchResult result = bench_step(options);
  const nlohmann::json object = nlohmann::json::parse(result.to_json());
  BOOST_TEST(object.at("lines").size() == 2);
  for (const nlohmann::json& line : object["lines"]) {
    BOOST_TEST(line.at("best_peer").is_null());
    BOOST_TEST(line.at("trials").empty());
    BOOST_TEST(line.at("flops").get<double>() > 0);
    BOOST_TEST(line.at("profile").at("step").at("calls") == 1);
    BOOST_TEST(line.at("profile").at("attention_forward").at("calls") == 1);
    BOOST_TEST(line.at("profile").at("matmul nt").at("calls").get<int>() > 0);
    BOOST_TEST(line.at("sides").size() == 2);
    for (const char* key : {"name", "version", "build", "variant", "dtype", "threads", "seconds", "median_seconds", "tokens_per_second", "share_of_probe", "ratios", "ratio", "first_loss", "last_loss", "memory"})
      BOOST_TEST(line["sides"][1].contains(key), key);
    BOOST_TEST(line["sides"][1]["dtype"] == "bf16");
    BOOST_TEST(line["sides"][1]["last_loss"].get<double>() < line["sides"][1]["first_loss"].get<double>());  // it learns
  }
  BOOST_TEST(object["lines"][1]["document_count"] == 2);
  BOOST_TEST(object["lines"][0]["flops"].get<double>() < object["lines"][1]["flops"].get<double>());  // fewer pairs are useful
  BOOST_TEST(holds(result.markdown(), "bf16 makes"));
  BOOST_TEST(holds(result.markdown(), "outside of kernels"));
}

BOOST_AUTO_TEST_CASE(more_threads_stand_beside_one) {
  StepBenchOptions options = tiny({"one"});
  options.threads = 2;
  const StepLine line = bench_step(options).lines.at(0);
  BOOST_REQUIRE_EQUAL(line.sides.size(), 2);
  BOOST_TEST(line.sides[0].threads == 2);
  BOOST_TEST(line.sides[1].threads == 1);
  BOOST_TEST(line.sides[0].last_loss == line.sides[1].last_loss);  // the same bits
}

BOOST_AUTO_TEST_CASE(a_peer_that_can_do_nothing_and_one_that_breaks_are_named) {
  const auto run = [](const std::string& script) {
    const FakePeers peers(script);
    StepBenchOptions options = tiny({"one"});
    options.peers = peers.folder();
    options.peer_script = peers.script();
    bench_step(options);
  };
  const std::string hello = "read -r line; echo '{\"ok\":true,\"version\":\"v\",\"build\":\"b\"}'\n";
  check_error<UnsupportedError>([&] { run(hello + "while read -r line; do echo '{\"ok\":false,\"reason\":\"no kernels\"}'; done"); }, {"[peer fake]", "no variant of shape tiny", "no kernels"});
  check_error<FileError>([&] { run(hello + "read -r line; echo Killed >&2; exit 9"); }, {"[peer fake]", "status 9", "Killed"});
}

BOOST_AUTO_TEST_CASE(options_are_checked) {
  const auto refuses = [](const std::function<void(StepBenchOptions&)>& change, std::initializer_list<std::string> parts) {
    StepBenchOptions options = tiny({"packed", "one"});
    change(options);
    check_error<ConfigError>([&] { check(options); }, parts);
  };
  refuses([](auto& options) { options.shapes = {"a", "d"}; }, {"--shapes", "'d'", "a, b, c"});
  refuses([](auto& options) { options.shapes = {}; }, {"--shapes is empty"});
  refuses([](auto& options) { options.documents = {"pakced"}; }, {"--documents", "nearest: packed"});
  refuses([](auto& options) { options.dtypes = {"f64"}; }, {"--dtype", "f32, bf16"});
  refuses([](auto& options) { options.pairs = 0; }, {"--pairs is 0"});
  refuses([](auto& options) { options.tries = 0; }, {"--tries 0"});
  refuses([](auto& options) { options.threads = 0; }, {"--threads is 0"});
  refuses([](auto& options) { options.patience_seconds = 0; }, {"--patience"});
  refuses([](auto& options) { options.threads = 2; options.peers = "somewhere"; }, {"--threads 2", "--no-peers"});
  refuses([](auto& options) { options.variant = "causal+compile"; }, {"--variant causal+compile", "--documents one"});
  check(tiny({"one"}));
}

BOOST_AUTO_TEST_SUITE_END()
