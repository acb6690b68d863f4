#include "data/packing.h"

#include "data/data_helpers.h"

using namespace quire;

BOOST_AUTO_TEST_SUITE(packing)

static PackingSettings settings_of(PackingStrategy strategy, int64_t seq_len) {
  PackingSettings s;
  s.strategy = strategy;
  s.seq_len = seq_len;
  s.seed = 5;
  s.buffer = 7;
  s.epochs = 1;
  return s;
}

static std::vector<Row> all_rows(PackingPlan& plan, int64_t global_batch_size = 3) {
  std::vector<Row> rows;
  for (;;) {
    const StepPlan step = plan.next_step(global_batch_size);
    if (step.empty()) return rows;
    rows.insert(rows.end(), step.rows.begin(), step.rows.end());
  }
}

constexpr PackingStrategy strategies[] = {PackingStrategy::concat, PackingStrategy::bfd, PackingStrategy::single};

BOOST_AUTO_TEST_CASE(concat_cuts_the_stream_into_full_rows) {
  std::mt19937_64 random(1);
  auto s = settings_of(PackingStrategy::concat, 4);
  s.shuffle = false;
  PackingPlan plan(test::corpus_of(test::random_documents(random, {3, 1, 6, 2})), s);
  const std::vector<Row> expected{{{0, 0, 3, 2}, {1, 0, 1, 0}}, {{2, 0, 4, 4}}, {{2, 4, 2, 1}, {3, 0, 2, 1}}};
  BOOST_TEST((all_rows(plan) == expected));
}

BOOST_AUTO_TEST_CASE(bfd_packs_pieces_of_long_documents_like_any_other) {
  std::mt19937_64 random(1);
  auto s = settings_of(PackingStrategy::bfd, 4);
  s.shuffle = false;
  PackingPlan plan(test::corpus_of(test::random_documents(random, {3, 1, 6, 2})), s);
  const std::vector<Row> expected{{{2, 0, 4, 4}}, {{0, 0, 3, 2}, {1, 0, 1, 0}}, {{2, 4, 2, 1}, {3, 0, 2, 1}}};
  BOOST_TEST((all_rows(plan) == expected));
}

BOOST_AUTO_TEST_CASE(an_epoch_uses_every_token_once) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 60; ++round) {
    const auto documents = test::random_documents(random, test::random_lengths(random, 1 + static_cast<int64_t>(random() % 3000)),
                                                  round % 2 ? 0.5 : 0);
    for (const PackingStrategy strategy : strategies) {
      const int64_t seq_len = 1 + static_cast<int64_t>(random() % 150);
      PackingPlan plan(test::corpus_of(documents), settings_of(strategy, seq_len));
      const std::vector<Row> rows = all_rows(plan, 1 + static_cast<int64_t>(random() % 5));
      test::Uses uses;
      uses.add(documents, rows);
      BOOST_REQUIRE(uses.complete(documents, 1));
      if (strategy == PackingStrategy::concat)
        for (size_t r = 0; r + 1 < rows.size(); ++r) {
          int64_t inputs = 0;
          for (const Piece& piece : rows[r]) inputs += piece.length;
          BOOST_REQUIRE_EQUAL(inputs, seq_len);
        }
      // Control: a row given twice, or left out, is noticed.
      uses.add(documents, {rows.front()});
      BOOST_REQUIRE(!uses.complete(documents, 1));
      test::Uses fewer;
      fewer.add(documents, {rows.begin() + 1, rows.end()});
      BOOST_REQUIRE(!fewer.complete(documents, 1));
    }
  }
}

BOOST_AUTO_TEST_CASE(the_last_step_is_smaller_and_nothing_follows) {
  std::mt19937_64 random(3);
  const auto documents = test::random_documents(random, std::vector<int64_t>(10, 8));
  auto s = settings_of(PackingStrategy::concat, 8);
  s.epochs = 2;
  PackingPlan plan(test::corpus_of(documents), s);
  std::vector<int64_t> sizes, epochs;
  for (StepPlan step = plan.next_step(6); !step.empty(); step = plan.next_step(6)) {
    BOOST_TEST(step.step == static_cast<int64_t>(sizes.size()));
    sizes.push_back(static_cast<int64_t>(step.rows.size()));
    epochs.push_back(step.epoch);
  }
  BOOST_TEST(sizes == (std::vector<int64_t>{6, 6, 6, 2}));  // the second step goes across the epoch's end
  BOOST_TEST(epochs == (std::vector<int64_t>{0, 0, 1, 1}));
  BOOST_TEST(plan.next_step(6).empty());
  BOOST_TEST(plan.state().step == 4);
}

BOOST_AUTO_TEST_CASE(rows_do_not_depend_on_the_batch_size) {
  std::mt19937_64 random(4);
  const auto corpus = test::corpus_of(test::random_documents(random, test::random_lengths(random, 2000)));
  for (const PackingStrategy strategy : strategies) {
    PackingPlan one(corpus, settings_of(strategy, 37)), many(corpus, settings_of(strategy, 37));
    BOOST_TEST((all_rows(one, 1) == all_rows(many, 13)));
  }
}

BOOST_AUTO_TEST_CASE(the_order_is_the_seeds_and_the_epochs) {
  std::mt19937_64 random(5);
  const auto corpus = test::corpus_of(test::random_documents(random, test::random_lengths(random, 4000)));
  for (const PackingStrategy strategy : strategies) {
    auto s = settings_of(strategy, 40);
    PackingPlan a(corpus, s), b(corpus, s);
    const auto rows = all_rows(a);
    BOOST_TEST((rows == all_rows(b)));
    s.seed = 6;
    PackingPlan c(corpus, s);
    BOOST_TEST((rows != all_rows(c)));
    s.seed = 5;
    s.epochs = 2;
    PackingPlan two(corpus, s);
    const auto both = all_rows(two);
    BOOST_TEST((std::vector<Row>(both.begin(), both.begin() + static_cast<ptrdiff_t>(rows.size())) == rows));
    BOOST_TEST((std::vector<Row>(both.begin() + static_cast<ptrdiff_t>(rows.size()), both.end()) != rows));
  }
}

BOOST_AUTO_TEST_CASE(bfd_does_not_give_long_documents_first) {
  std::mt19937_64 random(6);
  std::vector<int64_t> lengths;
  for (int i = 0; i < 2000; ++i) lengths.push_back(1 + static_cast<int64_t>(random() % 100));
  auto s = settings_of(PackingStrategy::bfd, 100);
  s.buffer = 2000;
  PackingPlan plan(test::corpus_of(test::random_documents(random, lengths)), s);
  const auto rows = all_rows(plan);
  const auto pieces_of_half = [&](size_t begin, size_t end) {
    double pieces = 0;
    for (size_t r = begin; r < end; ++r) pieces += static_cast<double>(rows[r].size());
    return pieces / static_cast<double>(end - begin);
  };
  const double first = pieces_of_half(0, rows.size() / 2), second = pieces_of_half(rows.size() / 2, rows.size());
  BOOST_TEST(std::abs(first - second) < 0.15 * first);
}

BOOST_AUTO_TEST_CASE(truncation_keeps_the_beginning_and_reports_the_rest) {
  std::mt19937_64 random(7);
  const auto documents = test::random_documents(random, {3, 10, 4, 5});
  for (const PackingStrategy strategy : strategies) {
    auto s = settings_of(strategy, 4);
    s.overflow = Overflow::truncate;
    PackingPlan plan(test::corpus_of(documents), s);
    int64_t tokens = 0, dropped = 0, begun = 0;
    for (StepPlan step = plan.next_step(1); !step.empty(); step = plan.next_step(1)) {
      tokens += step.tokens;
      dropped += step.dropped_tokens;
      begun += step.documents;
    }
    BOOST_TEST(tokens == 3 + 4 + 4 + 4);
    BOOST_TEST(dropped == 6 + 1);
    BOOST_TEST(begun == 4);
  }
}

BOOST_AUTO_TEST_CASE(impossible_settings_are_refused) {
  std::mt19937_64 random(8);
  const auto corpus = test::corpus_of(test::random_documents(random, {3, 10}));
  auto s = settings_of(PackingStrategy::bfd, 9);
  s.overflow = Overflow::refuse;
  test::check_error<DataError>([&] { PackingPlan(corpus, s); }, {"document 1", "10 tokens", "9", "split or truncate"});
  s.seq_len = 10;
  PackingPlan fits(corpus, s);
  s.seq_len = 0;
  test::check_error<ConfigError>([&] { PackingPlan(corpus, s); }, {"seq_len 0"});
  s = settings_of(PackingStrategy::bfd, 4);
  s.buffer = 0;
  test::check_error<ConfigError>([&] { PackingPlan(corpus, s); }, {"buffer 0"});
  s = settings_of(PackingStrategy::bfd, 4);
  s.epochs = -1;
  test::check_error<ConfigError>([&] { PackingPlan(corpus, s); }, {"epochs -1"});
  test::check_error<DataError>([&] { PackingPlan(test::corpus_of({}), settings_of(PackingStrategy::concat, 4)); }, {"no documents"});
  test::check_error<ConfigError>([&] { fits.next_step(0); }, {"global_batch_size 0"});
  test::check_error<ConfigError>([] { packing_strategy_from("concta"); }, {"did you mean 'concat'?"});
  test::check_error<ConfigError>([] { overflow_from("splt"); }, {"did you mean 'split'?"});
  BOOST_TEST((packing_strategy_from("bfd") == PackingStrategy::bfd));
  BOOST_TEST((overflow_from("truncate") == Overflow::truncate));
}

BOOST_AUTO_TEST_CASE(a_state_is_small_exact_and_checked) {
  std::mt19937_64 random(9);
  const auto corpus = test::corpus_of(test::random_documents(random, {30, 10, 4, 5, 60, 2}));
  for (const PackingStrategy strategy : strategies) {
    auto s = settings_of(strategy, 8);
    s.epochs = 0;
    PackingPlan plan(corpus, s);
    for (int i = 0; i < 40; ++i) plan.next_step(1);
    const PackingState state = plan.state();
    const std::string json = state.to_json();
    BOOST_TEST(json.size() < 200u);
    BOOST_TEST((PackingState::from_json(json) == state));
    // Other data or settings are refused, and the plan stays where it was.
    PackingState other = state;
    other.fingerprint += 1;
    test::check_error<ConfigError>([&] { plan.restore(other); }, {"other data or packing settings"});
    auto changed = s;
    changed.seq_len = 9;
    test::check_error<ConfigError>([&] { PackingPlan(corpus, changed).restore(state); }, {"seq_len"});
    for (const auto member :
         {&PackingState::position, &PackingState::offset, &PackingState::row, &PackingState::epoch, &PackingState::step})
      for (const int64_t value : {int64_t{-1}, int64_t{1} << 40}) {
        if (value > 0 && (member == &PackingState::epoch || member == &PackingState::step)) continue;
        PackingState impossible = state;
        impossible.*member = value;
        test::check_error<DataError>([&] { plan.restore(impossible); }, {"impossible"});
      }
    BOOST_TEST((plan.state() == state));
    PackingPlan again(corpus, s);
    again.restore(state);
    BOOST_TEST(again.next_step(5).digest == plan.next_step(5).digest);
    // More epochs may be asked for later.
    s.epochs = 100;
    PackingPlan longer(corpus, s);
    longer.restore(state);
  }
  test::check_error<DataError>([] { PackingState::from_json("{"); }, {"state"});
  test::check_error<DataError>([] { PackingState::from_json("{}"); }, {"fingerprint"});
  test::check_error<DataError>([] { PackingState::from_json(R"({"fingerprint":"0000000000000001","step":1.5})"); }, {"'step'"});
}

BOOST_AUTO_TEST_CASE(digests_tell_plans_apart) {
  std::mt19937_64 random(10);
  const auto corpus = test::corpus_of(test::random_documents(random, test::random_lengths(random, 1000)));
  PackingPlan plan(corpus, settings_of(PackingStrategy::concat, 30));
  std::vector<uint64_t> digests;
  for (StepPlan step = plan.next_step(2); !step.empty(); step = plan.next_step(2)) digests.push_back(step.digest);
  std::sort(digests.begin(), digests.end());
  BOOST_TEST((std::adjacent_find(digests.begin(), digests.end()) == digests.end()));
}

BOOST_AUTO_TEST_SUITE_END()
