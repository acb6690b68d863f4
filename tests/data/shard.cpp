#include "data/shard.h"

#include <nlohmann/json.hpp>

#include "data/data_helpers.h"

using namespace quire;
using test::TemporaryFolder;

BOOST_AUTO_TEST_SUITE(shard)

static ShardSummary write_shards(const std::string& path, const std::vector<test::PlainDocument>& documents,
                                 int64_t vocabulary = 100, int64_t shard_bytes = 1 << 20, FileSystem& fs = test::unsynced_disk()) {
  ShardWriter writer(path, {"byte", vocabulary, test::test_eos, std::nullopt, shard_bytes}, fs);
  for (const auto& d : documents) writer.add(d.tokens, d.mask, static_cast<int64_t>(d.tokens.size()) - 1, 0);
  return writer.finish();
}

static CorpusOptions verifying(CorpusOptions::Verify verify) {
  CorpusOptions options;
  options.verify = verify;
  return options;
}

/// Reads everything; DataError wherever something is wrong.
static std::vector<test::PlainDocument> read_all(const Corpus& corpus) {
  std::vector<test::PlainDocument> documents;
  for (int64_t d = 0; d < corpus.document_count(); ++d) {
    test::PlainDocument plain;
    plain.tokens.resize(static_cast<size_t>(corpus.length(d)));
    corpus.read(d, 0, plain.tokens);
    plain.mask.resize(plain.tokens.size());
    corpus.read_mask(d, 0, plain.mask);
    documents.push_back(std::move(plain));
  }
  return documents;
}

BOOST_AUTO_TEST_CASE(shards_give_back_what_was_written) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 30; ++round) {
    TemporaryFolder folder;
    const auto documents = test::random_documents(random, test::random_lengths(random, 3000), round % 3 == 0 ? 0.2 : 0);
    const int64_t vocabulary = round % 2 ? 100 : 70000;
    const ShardSummary summary =
        write_shards(folder / "c", documents, vocabulary, round % 4 < 2 ? 1 << 20 : 500 + static_cast<int64_t>(random() % 3000));
    const auto corpus = Corpus::open(folder / "c");
    const auto memory = test::corpus_of(documents);
    BOOST_REQUIRE_EQUAL(corpus->document_count(), static_cast<int64_t>(documents.size()));
    BOOST_REQUIRE_EQUAL(corpus->digest(), memory->digest());  // whatever the files
    BOOST_REQUIRE_EQUAL(corpus->digest(), summary.digest);
    BOOST_REQUIRE_EQUAL(corpus->vocabulary_size(), vocabulary);
    BOOST_REQUIRE_EQUAL(corpus->eos(), test::test_eos);
    BOOST_REQUIRE_EQUAL(corpus->has_mask(), memory->has_mask());
    BOOST_REQUIRE_EQUAL(corpus->info().longest, memory->info().longest);
    BOOST_REQUIRE(corpus->totals().valid == memory->totals().valid && corpus->totals().tokens == summary.tokens &&
                  corpus->totals().text_bytes == summary.text_bytes);
    const auto back = read_all(*corpus);
    for (size_t d = 0; d < documents.size(); ++d) {
      BOOST_REQUIRE(back[d].tokens == documents[d].tokens);
      for (size_t i = 1; i < documents[d].tokens.size(); ++i)
        BOOST_REQUIRE_EQUAL(back[d].mask[i] != 0, test::counts(documents[d], i));
      const size_t offset = random() % documents[d].tokens.size();
      std::vector<int32_t> part(random() % (documents[d].tokens.size() - offset + 1));
      corpus->read(static_cast<int64_t>(d), static_cast<int64_t>(offset), part);
      BOOST_REQUIRE(std::equal(part.begin(), part.end(), documents[d].tokens.begin() + static_cast<ptrdiff_t>(offset)));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_long_document_is_a_shard_of_its_own) {
  TemporaryFolder folder;
  std::mt19937_64 random(2);
  write_shards(folder / "c", test::random_documents(random, {40, 900, 40, 40}), 100, 200);
  const auto json = nlohmann::json::parse(test::read_file(folder / "c/index.json"));
  BOOST_TEST(json["shards"].size() == 3u);
  BOOST_TEST(Corpus::open(folder / "c")->length(1) == 900);
}

BOOST_AUTO_TEST_CASE(a_writer_refuses_what_can_not_be_trained_on) {
  TemporaryFolder folder;
  const std::vector<int32_t> good{1, 99}, no_eos{1, 2}, large{100, 99};
  {
    ShardWriter writer(folder / "c", {"byte", 100, 99, std::nullopt});
    test::check_error<DataError>([&] { writer.add({}); }, {"no tokens"});
    test::check_error<DataError>([&] { writer.add(no_eos); }, {"EOS 99"});
    test::check_error<DataError>([&] { writer.add(large); }, {"id 100"});
    test::check_error<DataError>([&] { writer.finish(); }, {"no document"});
  }
  BOOST_TEST(disk().list(folder.path()).empty());  // nothing is left
  test::check_error<DataError>([&] { ShardWriter(folder / "c", {"byte", 100, 100, std::nullopt}); }, {"EOS id 100", "[0, 100)"});
  test::check_error<DataError>([&] { ShardWriter(folder / "c", {"byte", 0, 0, std::nullopt}); }, {"vocabulary_size 0"});
  write_shards(folder / "c", {{good, {}}});
  test::check_error<FileError>([&] { ShardWriter(folder / "c", {"byte", 100, 99, std::nullopt}); }, {"is there already"});
  BOOST_TEST(Corpus::open(folder / "c")->document_count() == 1);
}

BOOST_AUTO_TEST_CASE(a_full_disk_or_a_kill_leaves_no_half_corpus) {
  std::mt19937_64 random(3);
  const auto documents = test::random_documents(random, test::random_lengths(random, 1500), 0.2);
  for (const bool dead : {false, true}) {
    int failures = 0;
    for (int64_t at = 0;; ++at) {
      TemporaryFolder folder;
      test::FailingFileSystem failing(disk(), at, dead);
      bool wrote = false;
      try {
        write_shards(folder / "c", documents, 100, 700, failing);
        wrote = true;
      } catch (const FileError&) {
      }
      BOOST_REQUIRE(wrote != failing.failed());
      if (wrote) {  // the control: without a failure it opens
        BOOST_TEST(Corpus::open(folder / "c")->document_count() == static_cast<int64_t>(documents.size()));
        break;
      }
      ++failures;
      if (disk().exists(folder / "c"))
        BOOST_REQUIRE_EQUAL(Corpus::open(folder / "c", verifying(CorpusOptions::Verify::always))->document_count(),
                            static_cast<int64_t>(documents.size()));  // all of it, after the rename
      else if (!dead) BOOST_REQUIRE(disk().list(folder.path()).empty());
      if (disk().exists(folder / "c")) continue;
      write_shards(folder / "c", documents);  // the next one succeeds
      BOOST_REQUIRE(disk().list(folder.path()) == std::vector<std::string>{"c"});
    }
    BOOST_TEST(failures > 20);
  }
}

static void damage(const std::string& path, int64_t at, const std::string& bytes) {
  std::string content = test::read_file(path);
  content.replace(static_cast<size_t>(at), bytes.size(), bytes);
  test::write_file(path, content);
}

BOOST_AUTO_TEST_CASE(each_kind_of_damage_is_named) {
  TemporaryFolder folder;
  std::mt19937_64 random(4);
  const auto documents = test::random_documents(random, {20, 1, 30, 5}, 1.0);
  const std::string c = folder / "c";
  const auto fresh = [&] {
    std::filesystem::remove_all(c);
    write_shards(c, documents);
  };
  const auto refused = [&](std::initializer_list<std::string> parts, CorpusOptions::Verify verify = CorpusOptions::Verify::always) {
    test::check_error<DataError>([&] { Corpus::open(c, verifying(verify)); }, parts);
    fresh();
  };
  fresh();
  BOOST_TEST(Corpus::open(c, verifying(CorpusOptions::Verify::always))->document_count() == 4);

  for (const std::string name : {"index.bin", "tokens-00000.bin", "mask-00000.bin"}) {
    test::write_file(c + "/" + name, "");
    refused({name, "is empty"});
    const std::string content = test::read_file(c + "/" + name);
    test::write_file(c + "/" + name, content.substr(0, content.size() - 1));
    refused({name, "truncated"});
    test::write_file(c + "/" + name, content.substr(0, 10));
    refused({name, "truncated"});
    test::write_file(c + "/" + name, content + "x");
    refused({name, "another corpus"});
    damage(c + "/" + name, 0, "X");
    refused({name, "does not begin with QUIRE"});
    damage(c + "/" + name, 8, "\x02");
    refused({name, "version"});
    std::filesystem::remove(c + "/" + name);
    test::check_error<FileError>([&] { Corpus::open(c); }, {name});
    fresh();
  }
  test::write_file(c + "/index.json", "");
  refused({"index.json", "is empty"});
  test::write_file(c + "/index.json", "{\"magic\": \"quire-tok");
  refused({"index.json", "truncated"});
  test::write_file(c + "/index.json", "[]");
  refused({"index.json", "magic"});
  std::filesystem::remove(c + "/index.json");
  refused({"index.json", "did not finish"}, CorpusOptions::Verify::always);

  const auto edit = [&](const std::string& key, const nlohmann::json& value) {
    auto json = nlohmann::json::parse(test::read_file(c + "/index.json"));
    if (value.is_null() && key != "bos") json.erase(key);
    else json[key] = value;
    test::write_file(c + "/index.json", json.dump());
  };
  for (const char* key : {"version", "tokenizer", "vocabulary_size", "eos", "bos", "token_type", "has_mask", "documents", "tokens",
                          "valid", "text_bytes", "longest", "digest", "index_digest", "shards"}) {
    edit(key, "wrong");
    std::string text = test::read_file(c + "/index.json");
    if (key != std::string("tokenizer")) test::check_error<DataError>([&] { Corpus::open(c); }, {});
    fresh();
    if (key == std::string("bos")) continue;
    edit(key, nullptr);
    refused({"lacks the key", key});
  }
  edit("version", 2);
  refused({"version 2", "version 1"});
  edit("eos", 100);
  refused({"'eos'", "[0, 99]"});
  edit("documents", 5);
  refused({"56 tokens in 4 documents", "56 in 5"});
  edit("tokens", 18446744073709551615u);
  refused({"'tokens'"});
  edit("shards", nlohmann::json::array(
                     {{{"tokens", 9223372036854775807}, {"documents", 1}}, {{"tokens", 9223372036854775807}, {"documents", 1}}}));
  refused({"'tokens'"});
}

BOOST_AUTO_TEST_CASE(ids_and_document_ends_are_checked_at_every_read) {
  TemporaryFolder folder;
  std::mt19937_64 random(5);
  const std::string c = folder / "c";
  write_shards(c, test::random_documents(random, {20, 30}));
  damage(c + "/tokens-00000.bin", 64 + 2 * 25, "\x64");  // id 100
  test::check_error<DataError>([&] { Corpus::open(c); }, {"token 25", "id 100", "[0, 100)"});
  const auto unverified = Corpus::open(c, verifying(CorpusOptions::Verify::never));
  std::vector<int32_t> part(4);
  unverified->read(1, 0, part);
  test::check_error<DataError>([&] { unverified->read(1, 4, part); }, {"token 25", "id 100"});

  std::filesystem::remove_all(c);
  write_shards(c, test::random_documents(random, {20, 30}));
  damage(c + "/tokens-00000.bin", 64 + 2 * 19, "\x07");
  test::check_error<DataError>([&] { Corpus::open(c); }, {"document 0 ends with id 7", "EOS 99"});
  const auto open = Corpus::open(c, verifying(CorpusOptions::Verify::never));
  open->read(0, 15, part);
  test::check_error<DataError>([&] { open->read(0, 16, part); }, {"document 0", "EOS 99"});

  std::filesystem::remove_all(c);
  write_shards(c, test::random_documents(random, {20, 30}));
  damage(c + "/tokens-00000.bin", 64 + 2 * 3,
         std::string(1, static_cast<char>(1 + test::read_file(c + "/tokens-00000.bin")[64 + 6] % 90)));
  test::check_error<DataError>([&] { Corpus::open(c); }, {"digest", "damaged"});  // a plausible id is found by the digest only
}

BOOST_AUTO_TEST_CASE(settings_that_contradict_the_shards_are_refused) {
  TemporaryFolder folder;
  std::mt19937_64 random(6);
  write_shards(folder / "c", test::random_documents(random, {20, 30}));
  CorpusOptions options;
  options.eos = 98;
  test::check_error<ConfigError>([&] { Corpus::open(folder / "c", options); }, {"EOS id 99", "98"});
  options.eos = 99;
  options.vocabulary_size = 90;
  test::check_error<DataError>([&] { Corpus::open(folder / "c", options); }, {"100", "90"});
  options.vocabulary_size = 128;
  BOOST_TEST(Corpus::open(folder / "c", options)->vocabulary_size() == 100);
}

BOOST_AUTO_TEST_CASE(damaged_files_never_crash) {
  // Truncations of every length and random damage of all small files: an error of the two kinds, or a corpus whose every read is
  // checked.
  std::mt19937_64 random(7);
  TemporaryFolder folder;
  const std::string c = folder / "c";
  write_shards(c, test::random_documents(random, {20, 1, 30, 5, 70}, 0.6), 100, 100);
  int refused = 0, tried = 0;
  const auto attempt = [&] {
    for (const auto verify : {CorpusOptions::Verify::always, CorpusOptions::Verify::never}) {
      ++tried;
      try {
        read_all(*Corpus::open(c, verifying(verify)));
      } catch (const DataError&) {
        ++refused;
      } catch (const FileError&) {
        ++refused;
      }
    }
  };
  for (const std::string& name : disk().list(c)) {
    const std::string content = test::read_file(c + "/" + name);
    for (size_t size = 0; size < content.size(); ++size) {
      test::write_file(c + "/" + name, content.substr(0, size));
      const int before = refused;
      attempt();
      const bool only_blanks_lost = content.find_first_not_of(" \n", size) == std::string::npos;
      BOOST_REQUIRE(refused == before + 2 || only_blanks_lost);
    }
    for (int round = 0; round < 400; ++round) {
      std::string bad = content;
      for (uint64_t n = 1 + random() % 3; n > 0; --n)
        bad[random() % bad.size()] = static_cast<char>(random() % 3 ? random() % 256 : "0123456789-{}[],:\""[random() % 18]);
      test::write_file(c + "/" + name, bad);
      attempt();
    }
    test::write_file(c + "/" + name, content);
  }
  const int before = refused;
  attempt();
  BOOST_TEST(refused == before);  // the control: whole again, it opens
  BOOST_TEST(refused > tried / 2);
}

BOOST_AUTO_TEST_SUITE_END()
