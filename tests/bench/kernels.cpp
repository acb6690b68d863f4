// What `bench kernels` measures and reports, and that its peers compute what Quire computes.
#include "bench/kernels.h"

#include <nlohmann/json.hpp>

#include "bench/blas_peers.h"
#include "bench/fake_peer.h"
#include "check.h"

using namespace quire;
using namespace quire::bench;
using namespace quire::test;

namespace {

KernelsOptions small(const std::string& part) {
  KernelsOptions options;
  options.lengths = QUIRE_SOURCE_ROOT "/bench/lengths";
  options.parts = {part};
  options.pairs = options.draws = options.tries = 1;
  return options;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(kernels)

BOOST_AUTO_TEST_CASE(every_peer_multiplies_in_every_form) {
  constexpr int64_t m = 5, n = 7, k = 11;
  std::mt19937_64 random(1);
  std::vector<float> a(m * k), b(k * n);
  for (std::vector<float>* each : {&a, &b})
    for (float& x : *each) x = static_cast<float>(random() % 17) - 8;
  int computed = 0;
  for (const std::optional<BlasPeer>& peer : {load_openblas(""), eigen_peer()}) {
    if (!peer) continue;
    BOOST_TEST(!peer->build.empty());
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        std::vector<float> c(m * n, 99);
        peer->product(ta, tb, m, n, k, a.data(), b.data(), c.data());
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            float expected = 0;
            for (int64_t p = 0; p < k; ++p) expected += a[static_cast<size_t>(ta ? p * m + i : i * k + p)] * b[static_cast<size_t>(tb ? j * k + p : p * n + j)];
            BOOST_REQUIRE_EQUAL(c[static_cast<size_t>(i * n + j)], expected);  // small integers: exact in any order
          }
        ++computed;
      }
  }
  BOOST_TEST(computed % 4 == 0);  // where neither is installed nothing is compared
  check_error<FileError>([] { load_openblas("/nowhere/libopenblas.so"); }, {"--openblas", "/nowhere/libopenblas.so"});
  check_error<FileError>([] { load_openblas("libm.so.6"); }, {"--openblas is libm.so.6", "no OpenBLAS"});
  BOOST_TEST(!load_openblas("none"));
}

BOOST_AUTO_TEST_CASE(operations_bound_by_memory_stand_beside_a_copy) {
  const nlohmann::json object = nlohmann::json::parse(bench_kernels(small("memory")).to_json());
  BOOST_TEST(object.at("products").empty());
  BOOST_TEST(object.at("attention").empty());
  std::vector<std::string> names;
  for (const nlohmann::json& line : object.at("memory")) {
    names.push_back(line.at("operation"));
    for (const char* key : {"bytes", "seconds", "copy_seconds"}) BOOST_TEST(line.at(key).get<double>() > 0, key);
  }
  for (const char* name : {"rmsnorm_forward", "swiglu_backward", "cross_entropy_forward", "adamw"}) BOOST_TEST(std::count(names.begin(), names.end(), name) == 1, name);
}

BOOST_AUTO_TEST_CASE(attention_takes_the_quickest_variant_of_each_peer) {
  const FakePeers peers(good_peer);
  KernelsOptions options = small("attention");
  options.peers = peers.folder();
  options.peer_script = peers.script();
  const KernelsResult result = bench_kernels(options);
  BOOST_REQUIRE_EQUAL(result.attention.size(), 3);
  BOOST_TEST(result.attention[0].document_count == 1);
  BOOST_TEST(result.attention[0].pairs == 2048.0 * 2049 / 2);
  BOOST_TEST(result.attention[0].times.at(1).name == "fake, causal");
  for (const size_t line : {1, 2}) {
    BOOST_TEST(result.attention[line].document_count > 1);
    BOOST_TEST(result.attention[line].times.at(1).name == "fake, loop");
    BOOST_TEST(result.attention[line].times[1].seconds.at(0) == 1000);
  }
  const nlohmann::json object = nlohmann::json::parse(result.to_json());
  for (const char* key : {"documents", "row", "document_count", "pairs", "probe", "forward", "backward", "both", "times"}) BOOST_TEST(object.at("attention").at(0).contains(key), key);
  BOOST_TEST(result.markdown().find("lognormal-128, median of 1") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(options_are_checked) {
  KernelsOptions options = small("atention");
  check_error<ConfigError>([&] { check(options); }, {"--parts", "nearest: attention"});
  options = small("memory");
  options.dtypes = {"i8"};
  check_error<ConfigError>([&] { check(options); }, {"--dtype"});
  options = small("memory");
  options.tries = 0;
  check_error<ConfigError>([&] { check(options); }, {"--tries 0"});
  options.draws = 0;
  check_error<ConfigError>([&] { check(options); }, {"--draws 0"});
}

BOOST_AUTO_TEST_SUITE_END()
