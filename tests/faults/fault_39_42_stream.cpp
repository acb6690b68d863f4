// FAULTS 39 to 42 and the loader's part of 43 and 51, through the real corpus files, packer and loader: what comes out of the stream.
#include "data/data_helpers.h"

using namespace quire;
using test::PlainDocument;

BOOST_AUTO_TEST_SUITE(fault_39_to_43)

struct Combination {
  PackingStrategy strategy;
  Overflow overflow;
  bool shards, masks;
};

static std::vector<Combination> combinations() {
  std::vector<Combination> all;
  for (const auto strategy : {PackingStrategy::concat, PackingStrategy::bfd, PackingStrategy::single})
    for (const auto overflow : {Overflow::split, Overflow::truncate, Overflow::refuse})
      for (const bool shards : {false, true})
        for (const bool masks : {false, true}) all.push_back({strategy, overflow, shards, masks});
  return all;
}

static LoaderSettings settings_of(const Combination& c, int64_t seq_len, int64_t global, int64_t micro) {
  LoaderSettings s;
  s.packing.strategy = c.strategy;
  s.packing.overflow = c.overflow;
  s.packing.seq_len = seq_len;
  s.packing.buffer = 13;
  s.packing.seed = 42;
  s.packing.epochs = 1;
  s.global_batch_size = global;
  s.microbatch_size = micro;
  return s;
}

static std::shared_ptr<const Corpus> corpus_of(const std::vector<PlainDocument>& documents, bool shards,
                                               const test::TemporaryFolder& folder) {
  if (!shards) return test::corpus_of(documents);
  ShardWriter writer(folder / "corpus", {"", 100, test::test_eos, std::nullopt, 1000}, test::unsynced_disk());
  for (const PlainDocument& d : documents) writer.add(d.tokens, d.mask);
  writer.finish();
  return Corpus::open(folder / "corpus");
}

static std::vector<LoadedStep> all_steps(Loader& loader) {
  std::vector<LoadedStep> steps;
  for (LoadedStep step = loader.next_step(); !step.empty(); step = loader.next_step()) steps.push_back(std::move(step));
  return steps;
}

BOOST_AUTO_TEST_CASE(fault_39_51_tokens_in_are_tokens_out_plus_reported_drops_in_every_combination) {
  std::mt19937_64 random(39);
  for (const Combination& c : combinations()) {
    test::TemporaryFolder folder;
    const auto documents = test::random_documents(random, test::random_lengths(random, 1500, 16), c.masks ? 0.4 : 0);
    const auto corpus = corpus_of(documents, c.shards, folder);
    const int64_t seq_len = c.overflow == Overflow::refuse ? corpus->info().longest : 23;
    const auto s = settings_of(c, seq_len, 7, 3);
    Loader loader(corpus, s);
    int64_t out = 0, batch_tokens = 0, valid = 0, dropped = 0, begun = 0, targets = 0;
    for (const LoadedStep& step : all_steps(loader)) {
      test::check_step(documents, step, s);
      out += step.plan.tokens;
      valid += step.plan.valid;
      dropped += step.plan.dropped_tokens;
      begun += step.plan.documents;
      for (const HostBatch& batch : step.microbatches) {
        batch_tokens += static_cast<int64_t>(batch.tokens.size());
        targets +=
            static_cast<int64_t>(batch.targets.size()) - std::count(batch.targets.begin(), batch.targets.end(), ignored_target);
      }
    }
    const CorpusTotals in = corpus->totals();
    BOOST_TEST(in.tokens == out + dropped);
    BOOST_TEST(batch_tokens == out);
    BOOST_TEST(targets == valid);
    BOOST_TEST(begun == in.documents);
    if (c.overflow == Overflow::truncate) BOOST_TEST(dropped > 0);  // the control: unreported, these would be missing
    else BOOST_TEST((dropped == 0 && valid == in.valid));
  }
}

BOOST_AUTO_TEST_CASE(fault_40_boundaries_are_the_packers_whatever_the_ids_say) {
  // EOS inside documents, documents that are nothing but EOS, two EOS in a row: boundaries and ignored targets follow the index.
  std::mt19937_64 random(40);
  std::vector<PlainDocument> documents;
  for (int i = 0; i < 60; ++i) {
    PlainDocument d;
    for (uint64_t n = random() % 30; n > 0; --n)
      d.tokens.push_back(random() % 4 ? static_cast<int32_t>(random() % 99) : test::test_eos);
    d.tokens.push_back(test::test_eos);
    documents.push_back(d);
  }
  for (const auto strategy : {PackingStrategy::concat, PackingStrategy::bfd}) {
    const auto s = settings_of({strategy, Overflow::split, false, false}, 40, 4, 2);
    Loader loader(test::corpus_of(documents), s);
    bool inferred_differ = false;
    std::vector<int64_t> last_inputs(documents.size(), 0);
    for (const LoadedStep& step : all_steps(loader)) {
      test::check_step(documents, step, s);
      for (const HostBatch& batch : step.microbatches) {
        size_t at = 0;
        for (const Row& row : batch.plan)
          for (const Piece& piece : row) {
            at += static_cast<size_t>(piece.length);
            const PlainDocument& d = documents[static_cast<size_t>(piece.document)];
            const bool last = piece.offset + piece.length == static_cast<int64_t>(d.tokens.size());
            // Exactly a document's last token has no target; EOS is an input there, never dropped.
            BOOST_REQUIRE_EQUAL(batch.targets[at - 1] == ignored_target, last);
            if (last) BOOST_REQUIRE_EQUAL(batch.tokens[at - 1], test::test_eos);
            last_inputs[static_cast<size_t>(piece.document)] += last;
          }
        std::vector<int32_t> inferred(batch.tokens.size(), 0);  // the control: boundaries taken from EOS are others
        for (size_t i = 1; i < inferred.size(); ++i)
          inferred[i] = batch.tokens[i - 1] == test::test_eos ? static_cast<int32_t>(i) : inferred[i - 1];
        inferred_differ |= Documents::from_starts(inferred) != batch.documents;
      }
    }
    BOOST_TEST(inferred_differ);
    BOOST_TEST((last_inputs == std::vector<int64_t>(documents.size(), 1)));
  }
}

BOOST_AUTO_TEST_CASE(fault_40_raw_files_with_two_eos_or_none) {
  test::TemporaryFolder folder;
  CorpusOptions options;
  options.token_type = "u16";
  options.eos = 9;
  test::write_file(folder / "t.bin", test::bytes_of(std::vector<uint16_t>{1, 9, 9, 2, 9}));
  const auto corpus = Corpus::open(folder / "t.bin", options);
  BOOST_TEST(corpus->document_count() == 3);
  BOOST_TEST(corpus->length(1) == 1);
  BOOST_TEST(corpus->valid(1) == 0);
  test::write_file(folder / "t.bin", test::bytes_of(std::vector<uint16_t>{1, 2, 3}));
  test::check_error<DataError>([&] { Corpus::open(folder / "t.bin", options); }, {"no EOS"});
}

/// What a run sees: tokens, targets, boundaries and positions of each step.
struct Seen {
  std::vector<int32_t> tokens, targets, starts, positions;
  int64_t epoch;
  bool operator==(const Seen&) const = default;
};

static Seen seen_of(const LoadedStep& step) {
  Seen seen;
  for (const HostBatch& batch : step.microbatches) {
    seen.tokens.insert(seen.tokens.end(), batch.tokens.begin(), batch.tokens.end());
    seen.targets.insert(seen.targets.end(), batch.targets.begin(), batch.targets.end());
    seen.starts.insert(seen.starts.end(), batch.documents.starts().begin(), batch.documents.starts().end());
    const auto positions = batch.documents.positions();
    seen.positions.insert(seen.positions.end(), positions.begin(), positions.end());
  }
  seen.epoch = step.plan.epoch;
  return seen;
}

BOOST_AUTO_TEST_CASE(fault_41_resuming_after_any_step_gives_the_identical_stream) {
  std::mt19937_64 random(41);
  for (const auto strategy : {PackingStrategy::concat, PackingStrategy::bfd, PackingStrategy::single})
    for (const auto overflow : {Overflow::split, Overflow::truncate}) {
      const auto documents = test::random_documents(random, test::random_lengths(random, 900, 16), 0.2);
      const auto corpus = test::corpus_of(documents);
      auto s = settings_of({strategy, overflow, false, false}, 29, 5, 2);
      s.packing.epochs = 3;
      Loader whole(corpus, s);
      std::vector<Seen> stream;
      std::vector<std::string> states{whole.state().to_json()};
      int64_t last_epoch = 0;
      for (LoadedStep step = whole.next_step(); !step.empty(); step = whole.next_step()) {
        stream.push_back(seen_of(step));
        states.push_back(whole.state().to_json());
        last_epoch = step.plan.epoch;
      }
      BOOST_REQUIRE_EQUAL(last_epoch, 2);  // the stream crosses ends of epochs
      for (size_t stop = 0; stop < states.size(); ++stop) {
        // Two steps more than were used have been read ahead when the state is taken: it must not matter.
        Loader resumed(corpus, s);
        resumed.restore(PackingState::from_json(states[stop]));
        const size_t until = std::min(stop + 6, stream.size());
        for (size_t i = stop; i < until; ++i) BOOST_REQUIRE(seen_of(resumed.next_step()) == stream[i]);
        if (until == stream.size()) BOOST_REQUIRE(resumed.next_step().empty());
        else BOOST_REQUIRE(resumed.state().to_json() == states[until]);
      }
      // The control: a state one step old replays data, and that is noticed.
      Loader stale(corpus, s);
      stale.restore(PackingState::from_json(states[1]));
      BOOST_TEST(!(seen_of(stale.next_step()) == stream[2]));
    }
}

BOOST_AUTO_TEST_CASE(fault_41_a_loader_that_has_read_on_can_go_back) {
  std::mt19937_64 random(411);
  const auto corpus = test::corpus_of(test::random_documents(random, test::random_lengths(random, 900, 16)));
  auto s = settings_of({PackingStrategy::bfd, Overflow::split, false, false}, 29, 5, 2);
  s.packing.epochs = 0;
  s.prefetch = 4;
  Loader loader(corpus, s);
  for (int i = 0; i < 3; ++i) loader.next_step();
  const PackingState state = loader.state();
  const Seen expected = seen_of(loader.next_step());
  for (int i = 0; i < 60; ++i) loader.next_step();
  loader.restore(state);
  BOOST_TEST((loader.state() == state));
  BOOST_TEST((seen_of(loader.next_step()) == expected));
}

BOOST_AUTO_TEST_CASE(fault_42_an_epoch_shows_each_document_once_for_any_number_of_shares) {
  std::mt19937_64 random(42);
  const auto documents = test::random_documents(random, test::random_lengths(random, 700, 16), 0.2);
  const auto corpus = test::corpus_of(documents);
  const int64_t global = 6;
  for (const auto strategy : {PackingStrategy::concat, PackingStrategy::bfd, PackingStrategy::single})
    for (const int64_t count : {1, 2, 3, 4, 5})
      for (int64_t micro = 1; micro <= global + 1; ++micro) {
        const int epochs = 1 + static_cast<int>((count + micro) % 2);
        auto s = settings_of({strategy, Overflow::split, false, false}, 31, global, micro);
        s.packing.epochs = epochs;
        s.prefetch = 0;
        test::Uses uses;
        size_t steps = 0;
        for (int64_t index = 0; index < count; ++index) {
          Loader loader(corpus, s, {index, count});
          const auto mine = all_steps(loader);
          if (index > 0)
            BOOST_REQUIRE_EQUAL(mine.size(), steps);  // every share makes the same number of steps, even with nothing to do
          steps = mine.size();
          for (const LoadedStep& step : mine)
            for (const HostBatch& batch : step.microbatches) uses.add(documents, batch.plan);
        }
        BOOST_REQUIRE(uses.complete(documents, epochs));
        BOOST_REQUIRE(!uses.complete(documents, epochs + 1));
      }
  // The control: shares that believe in another count show documents twice or not at all.
  test::Uses wrong;
  for (int64_t index = 0; index < 2; ++index) {
    Loader loader(corpus, settings_of({PackingStrategy::concat, Overflow::split, false, false}, 31, 6, 2),
                  {index, index == 0 ? 2 : 3});
    for (const LoadedStep& step : all_steps(loader))
      for (const HostBatch& batch : step.microbatches) wrong.add(documents, batch.plan);
  }
  BOOST_TEST(!wrong.complete(documents, 1));
}

BOOST_AUTO_TEST_CASE(fault_43_eos_is_a_target_because_masking_is_by_position) {
  // EOS shares its id with what others pad with (0), and with ordinary tokens too.
  std::mt19937_64 random(43);
  CorpusInfo info;
  info.vocabulary_size = 10;
  info.eos = 0;
  auto corpus = std::make_shared<MemoryCorpus>(info);
  int64_t longer_than_one = 0, eos_in_text = 0;
  for (int i = 0; i < 80; ++i) {
    std::vector<int32_t> tokens;
    for (uint64_t n = random() % 20; n > 0; --n) tokens.push_back(static_cast<int32_t>(random() % 10));
    for (size_t j = 1; j < tokens.size(); ++j) eos_in_text += tokens[j] == 0;
    tokens.push_back(0);
    longer_than_one += tokens.size() > 1;
    corpus->add(tokens);
  }
  for (const auto strategy : {PackingStrategy::concat, PackingStrategy::bfd}) {
    Loader loader(corpus, settings_of({strategy, Overflow::split, false, false}, 16, 4, 2));
    int64_t eos_targets = 0, ignored = 0, masked_by_id = 0;
    for (const LoadedStep& step : all_steps(loader))
      for (const HostBatch& batch : step.microbatches) {
        eos_targets += std::count(batch.targets.begin(), batch.targets.end(), 0);
        ignored += std::count(batch.targets.begin(), batch.targets.end(), ignored_target);
        std::vector<int32_t> by_id = batch.targets;  // the control: masking by id leaves no EOS to learn
        std::replace(by_id.begin(), by_id.end(), 0, ignored_target);
        masked_by_id += std::count(by_id.begin(), by_id.end(), 0);
      }
    BOOST_TEST(eos_targets == longer_than_one + eos_in_text);
    BOOST_TEST(ignored == corpus->document_count());
    BOOST_TEST(masked_by_id == 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()
