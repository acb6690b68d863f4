#include "data/corpus.h"

#include <set>

#include "data/data_helpers.h"

using namespace quire;

BOOST_AUTO_TEST_SUITE(corpus)

BOOST_AUTO_TEST_CASE(memory_corpus_gives_back_what_it_got) {
  std::mt19937_64 random(1);
  const auto documents = test::random_documents(random, test::random_lengths(random, 2000), 0.3);
  const auto corpus = test::corpus_of(documents);
  BOOST_TEST(corpus->has_mask());
  CorpusTotals totals;
  for (int64_t d = 0; d < corpus->document_count(); ++d) {
    const test::PlainDocument& plain = documents[static_cast<size_t>(d)];
    const int64_t length = corpus->length(d);
    BOOST_REQUIRE_EQUAL(length, static_cast<int64_t>(plain.tokens.size()));
    BOOST_REQUIRE_EQUAL(corpus->valid(d), test::valid_of(plain));
    const int64_t offset = static_cast<int64_t>(random() % static_cast<uint64_t>(length)),
                  count = static_cast<int64_t>(random() % static_cast<uint64_t>(length - offset + 1));
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    std::vector<uint8_t> mask(static_cast<size_t>(count));
    corpus->read(d, offset, tokens);
    corpus->read_mask(d, offset, mask);
    int64_t valid = 0;
    for (int64_t i = 0; i < count; ++i) {
      BOOST_REQUIRE_EQUAL(tokens[static_cast<size_t>(i)], plain.tokens[static_cast<size_t>(offset + i)]);
      if (offset + i > 0)
        BOOST_REQUIRE_EQUAL(mask[static_cast<size_t>(i)] != 0, test::counts(plain, static_cast<size_t>(offset + i)));
    }
    for (int64_t i = offset + 1; i <= std::min(offset + count, length - 1); ++i) valid += test::counts(plain, static_cast<size_t>(i));
    BOOST_REQUIRE_EQUAL(corpus->valid_in(d, corpus->document(d), offset, count), valid);
    totals.tokens += length;
    totals.valid += corpus->valid(d);
  }
  BOOST_TEST(corpus->totals().tokens == totals.tokens);
  BOOST_TEST(corpus->totals().valid == totals.valid);
  BOOST_TEST(corpus->totals().text_bytes == -1);
  std::vector<int32_t> one(1);
  test::check_error<Error>([&] { corpus->read(corpus->document_count(), 0, one); }, {"document"});
  test::check_error<Error>([&] { corpus->read(0, corpus->length(0), one); }, {"document 0"});
  test::check_error<Error>([&] { corpus->read(0, -1, one); }, {"document 0"});
}

BOOST_AUTO_TEST_CASE(documents_that_break_the_rules_are_refused) {
  MemoryCorpus corpus(test::test_info());
  const std::vector<int32_t> good{1, 2, 99}, no_eos{1, 2, 3}, large{1, 100, 99}, negative{-1, 99};
  test::check_error<DataError>([&] { corpus.add({}); }, {"no tokens"});
  test::check_error<DataError>([&] { corpus.add(no_eos); }, {"EOS 99", "id 3"});
  test::check_error<DataError>([&] { corpus.add(large); }, {"token 1: id 100", "[0, 100)"});
  test::check_error<DataError>([&] { corpus.add(negative); }, {"token 0: id -1"});
  test::check_error<DataError>([&] { corpus.add(good, std::vector<uint8_t>{1}); }, {"3 tokens", "mask of 1"});
  BOOST_TEST(corpus.document_count() == 0);
  CorpusInfo info = test::test_info();
  info.eos = 100;
  test::check_error<DataError>([&] { MemoryCorpus bad(info); }, {"EOS id 100"});
}

BOOST_AUTO_TEST_CASE(digests_see_tokens_boundaries_and_masks) {
  using Documents = std::vector<test::PlainDocument>;
  const uint64_t digest = test::corpus_of(Documents{{{1, 2, 99}, {}}, {{3, 99}, {}}})->digest();
  BOOST_TEST(test::corpus_of(Documents{{{1, 2, 99}, {}}, {{3, 99}, {}}})->digest() == digest);
  BOOST_TEST(test::corpus_of(Documents{{{1, 2, 99}, {0, 1, 1}}, {{3, 99}, {1, 1}}})->digest() == digest);  // masks that mask nothing
  for (const Documents& other :
       {Documents{{{1, 4, 99}, {}}, {{3, 99}, {}}}, Documents{{{3, 99}, {}}, {{1, 2, 99}, {}}}, Documents{{{1, 2, 99}, {}}},
        Documents{{{1, 2, 99}, {1, 0, 1}}, {{3, 99}, {}}}, Documents{{{1, 2, 99, 3, 99}, {}}}})
    BOOST_TEST(test::corpus_of(other)->digest() != digest);
}

static std::vector<std::vector<int32_t>> contents(const Corpus& corpus) {
  std::vector<std::vector<int32_t>> all;
  for (int64_t d = 0; d < corpus.document_count(); ++d) {
    all.emplace_back(static_cast<size_t>(corpus.length(d)));
    corpus.read(d, 0, all.back());
  }
  return all;
}

BOOST_AUTO_TEST_CASE(a_split_gives_every_document_to_one_side) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 40; ++round) {
    std::vector<int64_t> lengths(2 + random() % 300, 12);  // long enough to be distinct
    const auto whole = test::corpus_of(test::random_documents(random, lengths, 0.2));
    const double fraction = static_cast<double>(1 + random() % 50) / 100;
    const CorpusSplit split = split_corpus(whole, fraction, random());
    const int64_t expected = std::max<int64_t>(1, std::llround(fraction * static_cast<double>(whole->document_count())));
    BOOST_REQUIRE_EQUAL(split.held_out->document_count(), expected);
    auto together = contents(*split.train);
    const auto held_out = contents(*split.held_out);
    together.insert(together.end(), held_out.begin(), held_out.end());
    auto all = contents(*whole);
    std::sort(together.begin(), together.end());
    std::sort(all.begin(), all.end());
    BOOST_REQUIRE((together == all));
    BOOST_REQUIRE_EQUAL(split.train->totals().valid + split.held_out->totals().valid, whole->totals().valid);
    BOOST_REQUIRE(split.train->digest() != split.held_out->digest());
    BOOST_REQUIRE(split.train->digest() != whole->digest());
  }
}

BOOST_AUTO_TEST_CASE(a_split_is_the_seeds) {
  std::mt19937_64 random(3);
  const auto whole = test::corpus_of(test::random_documents(random, std::vector<int64_t>(200, 12)));
  const auto held_out = [&](uint64_t seed) { return contents(*split_corpus(whole, 0.1, seed).held_out); };
  BOOST_TEST((held_out(1) == held_out(1)));
  BOOST_TEST((held_out(1) != held_out(2)));
  // It is no prefix: documents of one source lie together in a corpus.
  const auto all = contents(*whole);
  int early = 0;
  for (const auto& document : held_out(1)) early += std::find(all.begin(), all.begin() + 20, document) != all.begin() + 20;
  BOOST_TEST(early < 10);
}

BOOST_AUTO_TEST_CASE(splits_that_leave_nothing_are_refused) {
  std::mt19937_64 random(4);
  const auto two = test::corpus_of(test::random_documents(random, {3, 4})),
             one = test::corpus_of(test::random_documents(random, {3}));
  BOOST_TEST(!split_corpus(two, 0, 1).held_out);
  BOOST_TEST(split_corpus(two, 0, 1).train == two);
  BOOST_TEST(split_corpus(two, 0.001, 1).held_out->document_count() == 1);
  test::check_error<DataError>([&] { split_corpus(one, 0.1, 1); }, {"none to train on"});
  test::check_error<DataError>([&] { split_corpus(two, 0.9, 1); }, {"none to train on"});
  for (const double wrong : {-0.1, 1.0, 2.0, std::nan("")})
    test::check_error<ConfigError>([&] { split_corpus(two, wrong, 1); }, {"[0, 1)"});
}

BOOST_AUTO_TEST_CASE(a_text_file_is_a_corpus) {
  test::TemporaryFolder folder;
  test::write_file(folder / "a.txt", "one\n%\n\n%\ntwo\n");
  CorpusOptions options;
  options.separator = "%";
  const auto corpus = Corpus::open(folder / "a.txt", options);
  BOOST_TEST(corpus->document_count() == 2);
  BOOST_TEST((contents(*corpus) == std::vector<std::vector<int32_t>>{{'o', 'n', 'e', 256}, {'t', 'w', 'o', 256}}));
  BOOST_TEST((corpus->totals() == CorpusTotals{2, 8, 6, 6, 2}));
  options.add_bos = true;
  BOOST_TEST(Corpus::open(folder / "a.txt", options)->totals().unscored_bytes == 0);
  options.vocabulary_size = 200;
  test::check_error<DataError>([&] { Corpus::open(folder / "a.txt", options); }, {"258", "200"});
  test::write_file(folder / "b.jsonl", "{\"prompt\": \"p\", \"completion\": \"c\"}\n");
  BOOST_TEST(Corpus::open(folder / "b.jsonl")->totals().valid == 2);
  test::write_file(folder / "empty.txt", "");
  test::check_error<DataError>([&] { Corpus::open(folder / "empty.txt"); }, {"empty.txt", "no text"});
}

BOOST_AUTO_TEST_CASE(paths_that_are_no_corpus_are_refused_by_name) {
  test::TemporaryFolder folder;
  test::check_error<FileError>([&] { Corpus::open(folder / "absent"); }, {"absent", "does not exist", "prepare"});
  test::write_file(folder / "empty/x.pdf", "x");
  test::check_error<DataError>([&] { Corpus::open(folder / "empty"); }, {"no corpus", "index.json"});
  test::check_error<DataError>([&] { Corpus::open(folder / "empty/x.pdf"); }, {"no known ending"});
  CorpusOptions options;
  options.format = "raww";
  test::check_error<ConfigError>([&] { Corpus::open(folder / "empty/x.pdf", options); }, {"'raww'", "did you mean 'raw'?"});
  options.format = "shards";
  test::check_error<DataError>([&] { Corpus::open(folder / "empty", options); }, {"no index.json"});
  test::check_error<ConfigError>([] { token_type_from("uint61"); }, {"did you mean 'uint16'?"});
}

BOOST_AUTO_TEST_SUITE_END()
