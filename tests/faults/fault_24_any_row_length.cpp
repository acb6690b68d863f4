// FAULTS.md 24: rows whose length the ranks do not divide mismatched or hung. Rows of prime lengths train as in one process, in every layout.
#include "context_case.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(fault_24)

BOOST_AUTO_TEST_CASE(entry_24_rows_of_prime_lengths_train_as_one_process) {
  const auto corpus = layout_corpus();
  for (const int64_t length : {2, 3, 5, 11, 23, 37, 61}) {
    for (const int64_t rows : {1, 3}) {
      const auto config_of = [&](int64_t cp, const std::string& layout, const std::string& exchange) {
        Config config = context_config(cp, layout, exchange);
        config.train.seq_len = length;
        config.train.microbatch_size = rows;
        config.train.global_batch_size = 3;
        return resolved(config);
      };
      const LayoutRun one = run_layout(in_one_process(config_of(1, "balanced", "ring")), corpus, {.steps = 2});
      for (const int64_t cp : {2, 3, 8})
        for (const auto& [layout, exchange] : context_layouts) {
          if (cp > length) continue;  // refused at start
          if (!all_tier() && (length + rows + cp + static_cast<int64_t>(layout.size() + exchange.size())) % 3 != 0) continue;
          const Config config = config_of(cp, layout, exchange);
          const LayoutRun run = run_layout(config, corpus, {.steps = 2});
          const std::string what = fmt::format("rows of {}, {} in a microbatch, {}", length, rows, name_of(config));
          const double difference = largest_difference(run, one, 1e-3);  // documents of one token give their queries no gradient but rounding
          BOOST_TEST(difference < 1e-11, what << ": " << difference);
          BOOST_TEST(std::abs(run.evaluation - one.evaluation) <= 1e-11 * one.evaluation, what);
          BOOST_TEST(run.disagreements.empty(), what);
          BOOST_TEST(run.steps.back().tokens == one.steps.back().tokens, what);
        }
      // The comparison sees a row that lost its last token.
      Config shorter = config_of(1, "balanced", "ring");
      shorter.train.seq_len = length - 1;
      BOOST_TEST(largest_difference(run_layout(in_one_process(shorter), corpus, {.steps = 1}), run_layout(in_one_process(config_of(1, "balanced", "ring")), corpus, {.steps = 1})) > 1e-6);
    }
  }
}

BOOST_AUTO_TEST_CASE(entry_24_more_ranks_than_tokens_are_refused_by_name) {
  Config config = product_config();
  config.train.seq_len = 3;
  config.distributed.cp = 4;
  check_error<ConfigError>([&] { resolved(config); }, {"distributed.cp is 4", "train.seq_len = 3"});
}

BOOST_AUTO_TEST_SUITE_END()
