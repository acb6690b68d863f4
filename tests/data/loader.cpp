#include "data/loader.h"

#include "data/data_helpers.h"

using namespace quire;

BOOST_AUTO_TEST_SUITE(loader)

static LoaderSettings settings_of(PackingStrategy strategy, int64_t seq_len, int64_t global, int64_t micro, int64_t prefetch = 2) {
  LoaderSettings s;
  s.packing.strategy = strategy;
  s.packing.seq_len = seq_len;
  s.packing.seed = 3;
  s.packing.buffer = 11;
  s.packing.epochs = 1;
  s.global_batch_size = global;
  s.microbatch_size = micro;
  s.prefetch = prefetch;
  return s;
}

static bool same(const HostBatch& a, const HostBatch& b) {
  return a.tokens == b.tokens && a.targets == b.targets && a.documents == b.documents && a.valid == b.valid && a.rows == b.rows &&
         a.plan == b.plan && a.index == b.index;
}

static bool same(const LoadedStep& a, const LoadedStep& b) {
  return a.plan.digest == b.plan.digest && a.plan.step == b.plan.step && a.plan.epoch == b.plan.epoch &&
         a.plan.rows == b.plan.rows &&
         std::equal(a.microbatches.begin(), a.microbatches.end(), b.microbatches.begin(), b.microbatches.end(),
                    [](const auto& x, const auto& y) { return same(x, y); });
}

BOOST_AUTO_TEST_CASE(reading_ahead_changes_nothing) {
  std::mt19937_64 random(1);
  const auto documents = test::random_documents(random, test::random_lengths(random, 2000), 0.2);
  const auto corpus = test::corpus_of(documents);
  for (const int64_t prefetch : {1, 2, 50}) {
    const auto s = settings_of(PackingStrategy::concat, 40, 5, 2, prefetch);
    auto direct_settings = s;
    direct_settings.prefetch = 0;
    Loader ahead(corpus, s), direct(corpus, direct_settings);
    for (;;) {
      const LoadedStep a = ahead.next_step(), b = direct.next_step();
      BOOST_REQUIRE(same(a, b));
      BOOST_REQUIRE((ahead.state() == direct.state()));
      if (a.empty()) break;
    }
    BOOST_TEST(ahead.next_step().empty());  // and stays so
  }
}

BOOST_AUTO_TEST_CASE(microbatches_are_cut_before_they_are_shared) {
  std::mt19937_64 random(2);
  const auto corpus = test::corpus_of(test::random_documents(random, std::vector<int64_t>(64, 10)));
  const auto s = settings_of(PackingStrategy::concat, 10, 11, 3);
  Loader whole(corpus, s);
  const LoadedStep all = whole.next_step();
  BOOST_REQUIRE_EQUAL(all.microbatches.size(), 4u);
  BOOST_TEST(all.microbatches[3].rows == 2);
  for (const int64_t count : {1, 2, 3, 4, 6}) {
    size_t next = 0;
    for (int64_t index = 0; index < count; ++index) {
      Loader part(corpus, s, {index, count});
      const LoadedStep step = part.next_step();
      BOOST_TEST(step.plan.digest == all.plan.digest);  // every rank knows the whole global batch
      BOOST_TEST(step.plan.valid == all.plan.valid);
      for (const HostBatch& batch : step.microbatches) BOOST_REQUIRE(same(batch, all.microbatches.at(next++)));
    }
    BOOST_TEST(next == 4u);
  }
  test::check_error<ConfigError>([&] { Loader(corpus, s, {2, 2}); }, {"share 2 of 2"});
}

/// A corpus whose reads fail from some number on.
class BreakingCorpus final : public Corpus {
 public:
  BreakingCorpus(std::shared_ptr<const Corpus> below, int64_t document) : below_(std::move(below)), document_(document) {
    info_ = below_->info();
  }
  int64_t document_count() const override { return below_->document_count(); }
  DocumentInfo document(int64_t d) const override { return below_->document(d); }
  void read(int64_t d, int64_t offset, std::span<int32_t> tokens) const override {
    if (d == document_) fail<DataError>("test", "document {} is broken", d);
    below_->read(d, offset, tokens);
  }
  void read_mask(int64_t d, int64_t offset, std::span<uint8_t> mask) const override { below_->read_mask(d, offset, mask); }

 private:
  std::shared_ptr<const Corpus> below_;
  int64_t document_;
};

BOOST_AUTO_TEST_CASE(errors_come_in_their_place_in_the_stream) {
  std::mt19937_64 random(3);
  const auto good = test::corpus_of(test::random_documents(random, std::vector<int64_t>(10, 8)));
  for (const int64_t prefetch : {0, 1, 8}) {
    auto s = settings_of(PackingStrategy::single, 8, 2, 2, prefetch);
    s.packing.shuffle = false;
    Loader loader(std::make_shared<BreakingCorpus>(good, 5), s);
    loader.next_step();
    loader.next_step();
    const PackingState before = loader.state();
    for (int i = 0; i < 2; ++i) test::check_error<DataError>([&] { loader.next_step(); }, {"document 5 is broken"});
    BOOST_TEST((loader.state() == before));
    loader.restore({});  // from the beginning it works again
    BOOST_TEST(loader.next_step().plan.step == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_loader_may_end_at_any_moment) {
  std::mt19937_64 random(4);
  const auto corpus = test::corpus_of(test::random_documents(random, test::random_lengths(random, 3000)));
  for (int steps = 0; steps < 6; ++steps) {
    Loader loader(corpus, settings_of(PackingStrategy::bfd, 30, 4, 2, 1 + steps));
    for (int i = 0; i < steps; ++i) loader.next_step();
  }
}

BOOST_AUTO_TEST_CASE(a_refused_state_leaves_the_stream_where_it_was) {
  std::mt19937_64 random(5);
  const auto corpus = test::corpus_of(test::random_documents(random, test::random_lengths(random, 3000)));
  const auto s = settings_of(PackingStrategy::bfd, 30, 4, 2);
  Loader loader(corpus, s), undisturbed(corpus, s);
  for (int i = 0; i < 3; ++i) BOOST_REQUIRE(same(loader.next_step(), undisturbed.next_step()));
  PackingState other = loader.state();
  other.fingerprint ^= 1;
  test::check_error<ConfigError>([&] { loader.restore(other); }, {"other data"});
  for (int i = 0; i < 3; ++i) BOOST_REQUIRE(same(loader.next_step(), undisturbed.next_step()));
}

BOOST_AUTO_TEST_CASE(an_index_that_lies_about_valid_targets_is_caught) {
  class Lying final : public Corpus {
   public:
    explicit Lying(std::shared_ptr<const Corpus> below) : below_(std::move(below)) { info_ = below_->info(); }
    int64_t document_count() const override { return below_->document_count(); }
    DocumentInfo document(int64_t d) const override {
      DocumentInfo info = below_->document(d);
      info.valid -= d == 2;
      return info;
    }
    void read(int64_t d, int64_t offset, std::span<int32_t> tokens) const override { below_->read(d, offset, tokens); }
    void read_mask(int64_t d, int64_t offset, std::span<uint8_t> mask) const override { below_->read_mask(d, offset, mask); }
    std::shared_ptr<const Corpus> below_;
  };
  std::vector<test::PlainDocument> documents(4, {{1, 2, 3, 4, 99}, {1, 0, 1, 1, 1}});
  const auto s = settings_of(PackingStrategy::single, 8, 4, 4, 0);
  Loader honest(test::corpus_of(documents), s);
  BOOST_TEST(honest.next_step().plan.valid == 12);
  Loader loader(std::make_shared<Lying>(test::corpus_of(documents)), s);
  test::check_error<DataError>([&] { loader.next_step(); }, {"document 2", "3 counted targets", "says 2"});
}

BOOST_AUTO_TEST_CASE(evaluation_sees_every_held_out_document_once_in_order) {
  std::mt19937_64 random(6);
  const auto documents = test::random_documents(random, test::random_lengths(random, 1500), 0.3);
  const auto corpus = test::corpus_of(documents);
  for (const PackingStrategy strategy : {PackingStrategy::concat, PackingStrategy::bfd}) {
    auto training = settings_of(strategy, 33, 3, 2);
    training.packing.epochs = 0;
    const auto s = evaluation_settings(training);
    Loader first(corpus, s), second(corpus, s);
    test::Uses uses;
    int64_t valid = 0;
    for (LoadedStep step = first.next_step(); !step.empty(); step = first.next_step()) {
      test::check_step(documents, step, s);
      BOOST_REQUIRE(same(step, second.next_step()));
      uses.add(documents, step.plan.rows);
      valid += step.plan.valid;
    }
    BOOST_TEST(uses.complete(documents, 1));
    BOOST_TEST(valid == corpus->totals().valid);
  }
}

/// Counts what is read of a corpus; `broken`: no token of it can be read.
class CountingCorpus final : public Corpus {
 public:
  CountingCorpus(std::shared_ptr<const Corpus> below, bool broken) : below_(std::move(below)), broken_(broken) {
    info_ = below_->info();
  }
  int64_t document_count() const override { return below_->document_count(); }
  DocumentInfo document(int64_t d) const override { return below_->document(d); }
  void read(int64_t d, int64_t offset, std::span<int32_t> tokens) const override {
    tokens_read += static_cast<int64_t>(tokens.size());
    if (broken_) fail<DataError>("test", "the tokens are damaged");
    below_->read(d, offset, tokens);
  }
  void read_mask(int64_t d, int64_t offset, std::span<uint8_t> mask) const override {
    masks_read += static_cast<int64_t>(mask.size());
    below_->read_mask(d, offset, mask);
  }
  mutable std::atomic<int64_t> tokens_read = 0, masks_read = 0;

 private:
  std::shared_ptr<const Corpus> below_;
  bool broken_;
};

BOOST_AUTO_TEST_CASE(a_stage_reads_only_what_it_needs) {
  std::mt19937_64 random(7);
  const auto documents = test::random_documents(random, test::random_lengths(random, 1500), 0.3);
  const auto corpus = test::corpus_of(documents);
  for (const PackingStrategy strategy : {PackingStrategy::concat, PackingStrategy::bfd, PackingStrategy::single})
    for (const int64_t prefetch : {0, 2}) {
      auto s = settings_of(strategy, 17, 5, 2, prefetch);
      Loader whole(corpus, s);
      std::vector<LoadedStep> expected;
      int64_t tokens = 0, targets = 0;
      for (LoadedStep step = whole.next_step(); !step.empty(); step = whole.next_step()) {
        for (const HostBatch& batch : step.microbatches) {
          tokens += batch.documents.tokens();
          for (const Row& row : batch.plan)
            for (const Piece& piece : row)
              targets += piece.length - (piece.offset + piece.length == corpus->length(piece.document));
        }
        expected.push_back(std::move(step));
      }
      const auto planned = std::make_shared<CountingCorpus>(corpus, true);
      PackingPlan plan(planned, s.packing);
      while (!plan.next_step(s.global_batch_size).empty()) {}
      BOOST_REQUIRE_EQUAL(planned->tokens_read, 0);
      for (const Content content : {Content::tokens, Content::targets, Content::documents}) {
        s.content = content;
        const auto counted = std::make_shared<CountingCorpus>(corpus, content == Content::documents);
        Loader loader(counted, s);
        for (const LoadedStep& all : expected) {
          const LoadedStep step = loader.next_step();
          BOOST_REQUIRE_EQUAL(step.microbatches.size(), all.microbatches.size());
          BOOST_REQUIRE(step.plan.rows == all.plan.rows && step.plan.digest == all.plan.digest);
          for (size_t m = 0; m < all.microbatches.size(); ++m) {
            HostBatch wanted = all.microbatches[m];
            if (content != Content::tokens) wanted.tokens.clear();
            if (content != Content::targets) wanted.targets.clear();
            BOOST_REQUIRE(same(step.microbatches[m], wanted));
          }
        }
        BOOST_TEST(loader.next_step().empty());
        BOOST_TEST(counted->tokens_read == (content == Content::tokens ? tokens : content == Content::targets ? targets : 0));
        // Masks of cut documents are what the plan needs; only targets need more.
        if (content == Content::targets) BOOST_TEST(counted->masks_read > planned->masks_read);
        else BOOST_TEST(counted->masks_read == planned->masks_read);
      }
    }
}

BOOST_AUTO_TEST_CASE(damaged_tokens_disturb_only_who_reads_them) {
  std::mt19937_64 random(8);
  const auto documents = test::random_documents(random, test::random_lengths(random, 600), 0.3);
  test::TemporaryFolder folder;
  ShardWriter writer(folder / "corpus", {"", 100, test::test_eos, std::nullopt, 1000}, test::unsynced_disk());
  for (const auto& d : documents) writer.add(d.tokens, d.mask);
  writer.finish();
  CorpusOptions options;
  options.verify = CorpusOptions::Verify::never;
  auto s = settings_of(PackingStrategy::bfd, 17, 5, 2, 0);
  std::vector<LoadedStep> expected;
  Loader whole(Corpus::open(folder / "corpus", options), s);
  for (LoadedStep step = whole.next_step(); !step.empty(); step = whole.next_step()) expected.push_back(std::move(step));
  for (const auto& entry : std::filesystem::directory_iterator(folder / "corpus"))
    if (entry.path().filename().string().starts_with("tokens-")) {  // everything behind the header becomes ids that can not be
      const std::string content = test::read_file(entry.path().string());
      test::write_file(entry.path().string(), content.substr(0, 64) + std::string(content.size() - 64, '\xff'));
    }
  const auto damaged = Corpus::open(folder / "corpus", options);
  s.content = Content::documents;
  Loader between(damaged, s);
  for (const LoadedStep& all : expected) {
    const LoadedStep step = between.next_step();
    for (size_t m = 0; m < all.microbatches.size(); ++m) {
      BOOST_REQUIRE(step.microbatches.at(m).documents == all.microbatches[m].documents);
      BOOST_REQUIRE_EQUAL(step.microbatches[m].valid, all.microbatches[m].valid);
    }
  }
  for (const Content content : {Content::all, Content::tokens, Content::targets}) {  // the control: who reads them is told
    s.content = content;
    Loader loader(damaged, s);
    test::check_error<DataError>([&] { loader.next_step(); }, {"id 65535", "outside the vocabulary"});
  }
}

BOOST_AUTO_TEST_CASE(impossible_settings_are_refused) {
  const auto corpus = test::corpus_of({{{1, 99}, {}}});
  test::check_error<ConfigError>([&] { Loader(corpus, settings_of(PackingStrategy::concat, 4, 0, 1)); }, {"global_batch_size 0"});
  test::check_error<ConfigError>([&] { Loader(corpus, settings_of(PackingStrategy::concat, 4, 1, 0)); }, {"microbatch_size 0"});
  test::check_error<ConfigError>([&] { Loader(corpus, settings_of(PackingStrategy::concat, 4, 1, 1, -1)); }, {"prefetch -1"});
  test::check_error<ConfigError>([&] { Loader(corpus, settings_of(PackingStrategy::concat, 0, 1, 1)); }, {"seq_len 0"});
}

BOOST_AUTO_TEST_SUITE_END()
