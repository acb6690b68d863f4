// FAULTS.md 14: under context parallelism the mask was replaced by "causal", and documents read their neighbours (50 % -> 100 % of rows changed at two ranks).
#include "context_case.h"
#include "run/selfcheck.h"
#include "run/shared_documents.h"

using namespace quire;
using namespace quire::test;

namespace {

Config float_config(int64_t cp, const std::string& layout, const std::string& exchange) {
  Config config = context_config(cp, layout, exchange);
  config.train.mixed_precision = "f32";
  return config;
}

ProbeRow row_of(const std::vector<int64_t>& lengths, bool equal) {
  std::mt19937_64 random(3);
  ProbeInput input;
  for (const int64_t length : lengths)
    for (int64_t i = 0; i < length; ++i) input.tokens.push_back(equal && static_cast<int64_t>(input.tokens.size()) >= length ? input.tokens[static_cast<size_t>(i)] : static_cast<int32_t>(random() % product_eos));
  size_t begin = 0;
  for (const int64_t length : lengths) {
    begin += static_cast<size_t>(length);
    while (input.targets.size() + 1 < begin) input.targets.push_back(input.tokens[input.targets.size() + 1]);
    input.targets.push_back(ignored_target);
  }
  input.documents = Documents::from_lengths(lengths);
  return {equal ? "two equal documents" : "documents", std::move(input)};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_14)

BOOST_AUTO_TEST_CASE(entry_14_half_of_the_rows_of_two_equal_documents_change_and_all_of_one_document) {
  const ProbeRow two = row_of({28, 28}, true);
  ProbeRow one = two;  // the control: one document in the row, so that a causal mask is right
  one.input.documents = Documents::from_lengths(std::vector<int64_t>{56});
  const std::vector<int64_t> first{0}, second{1};
  for (const int64_t cp : {2, 3, 8})
    for (const auto& [layout, exchange] : context_layouts) {
      Probing probing(float_config(cp, layout, exchange));
      const std::string what = name_of(probing.config);
      for (const AttentionBackend backend : {AttentionBackend::block, AttentionBackend::dense}) {
        const CheckResult leak = leak_probe(probing.ranks, two, {backend, ""}, first, 23), gradient = gradient_probe(probing.ranks, two, {backend, ""}, second);
        BOOST_TEST(leak.passed, what << ": " << leak.words);
        BOOST_TEST(leak.changed_fraction == 0.5, what << ": " << leak.words);
        BOOST_TEST(gradient.passed, what << ": " << gradient.words);
        BOOST_TEST(alone_probe(probing.ranks, probing.single, two, {backend, ""}).passed, what);
        BOOST_TEST(leak_probe(probing.ranks, one, {backend, ""}, first, 23).changed_fraction == 1.0, what);
        BOOST_TEST(leak_probe(probing.ranks, two, {backend, "dropped"}, first, 23).changed_fraction == 1.0, what);
        if (exchange == "heads") continue;
        const CheckResult causal = leak_probe(probing.ranks, two, {backend, "ring_step"}, first, 23);
        BOOST_TEST(causal.leaked_rows > 0, what << ": received keys as one document");
        BOOST_TEST(causal.changed_fraction > 0.5, what);
        BOOST_TEST(gradient_probe(probing.ranks, two, {backend, "ring_step"}, second).leaked_rows > 0, what);
      }
      BOOST_TEST(probing.ranks.take_mismatches() == 0, what);
    }
}

BOOST_AUTO_TEST_CASE(entry_14_no_document_of_random_rows_reaches_another) {
  std::mt19937_64 random(14);
  int64_t travelled = 0;
  for (int row = 0; row < (all_tier() ? 60 : 3); ++row)
    for (const auto& [layout, exchange] : context_layouts) {
      const int64_t cp = std::vector<int64_t>{2, 3, 4, 8}[random() % 4];
      Config config = float_config(cp, layout, exchange);
      if (row % 3 == 1) config.model.sliding_window = {3};
      if (row % 3 == 2) config.model.sliding_window = {0, 5};
      Probing probing(resolved(config));
      std::vector<int64_t> lengths = random_lengths(random, 17 + static_cast<int64_t>(random() % 60), 8);
      if (lengths.size() == 1) lengths.push_back(1);
      const ProbeRow documents = row_of(lengths, false);
      travelled += keys_travel(*probing.ranks.planner()->plan(documents.input.documents));
      for (const CheckResult& check : check_layout(probing.ranks, probing.single, probing.config.model, {documents}))
        BOOST_TEST(check.passed, name_of(probing.config) << ": " << check.name << ": " << check.words);
    }
  BOOST_TEST(travelled > 10);  // most rows have something to mask that came from another rank
}

BOOST_AUTO_TEST_SUITE_END()
