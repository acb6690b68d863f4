#include "data/prepare.h"

#include "data/data_helpers.h"

using namespace quire;
using test::TemporaryFolder;

BOOST_AUTO_TEST_SUITE(prepare_text)

static PrepareSettings settings_of(std::vector<std::string> inputs, std::string output) {
  PrepareSettings settings;
  settings.inputs = std::move(inputs);
  settings.output = std::move(output);
  return settings;
}

static std::vector<std::string> texts(const std::string& path) {
  const auto corpus = Corpus::open(path);
  const auto tokenizer = make_tokenizer(corpus->info().tokenizer, corpus->bos().has_value());
  std::vector<std::string> all;
  for (int64_t d = 0; d < corpus->document_count(); ++d) {
    std::vector<int32_t> tokens(static_cast<size_t>(corpus->length(d)));
    corpus->read(d, 0, tokens);
    all.push_back(tokenizer->decode(tokens));
    BOOST_REQUIRE_EQUAL(tokens.back(), corpus->eos());
    if (corpus->bos()) BOOST_REQUIRE_EQUAL(tokens.front(), *corpus->bos());
  }
  return all;
}

using Texts = std::vector<std::string>;

BOOST_AUTO_TEST_CASE(a_folder_gives_its_text_and_reports_the_rest) {
  TemporaryFolder folder;
  test::write_file(folder / "in/b.txt", "second");
  test::write_file(folder / "in/a/z.txt", "first");
  test::write_file(folder / "in/c.txt", "second");
  test::write_file(folder / "in/d.jsonl", "{\"text\": \"third\"}\n{\"text\": \"\"}\n");
  test::write_file(folder / "in/e.bin", std::string("x\0y", 3));
  test::write_file(folder / "in/latin.txt", "caf\xe9");
  test::write_file(folder / "in/.git/config", "hidden");
  test::write_file(folder / "in/f.log", "log");
  std::filesystem::create_symlink("b.txt", folder / "in/link");
  auto settings = settings_of({folder / "in"}, folder / "c");
  settings.exclude = {".git", "*.log"};
  const PrepareSummary summary = prepare(settings, test::unsynced_disk());
  BOOST_TEST(texts(folder / "c") == (Texts{"first", "second", "second", "third"}));
  BOOST_TEST(summary.files == 4);
  BOOST_TEST(summary.documents == 4);
  BOOST_TEST(summary.duplicates == 1);
  BOOST_TEST(summary.empty == 1);
  BOOST_TEST(summary.text_bytes == 5 + 6 + 6 + 5);
  BOOST_TEST(summary.tokens == summary.text_bytes + 4);
  std::map<std::string, std::string> skipped;
  for (const auto& [path, reason] : summary.skipped) skipped[path.substr(folder.path().size() + 4)] = reason;
  const std::map<std::string, std::string> expected{{".git", "excluded"},
                                                    {"e.bin", "no text (byte 1)"},
                                                    {"f.log", "excluded"},
                                                    {"latin.txt", "no text (byte 3)"},
                                                    {"link", "link"}};
  BOOST_TEST((skipped == expected));

  settings.deduplicate = true;
  settings.bos = true;
  settings.output = folder / "d/";
  BOOST_TEST(prepare(settings, test::unsynced_disk()).documents == 3);
  BOOST_TEST(texts(folder / "d") == (Texts{"first", "second", "third"}));
  BOOST_TEST(Corpus::open(folder / "d")->totals().unscored_bytes == 0);  // BOS predicts the first byte
}

BOOST_AUTO_TEST_CASE(the_same_inputs_give_the_same_corpus) {
  TemporaryFolder folder;
  for (const char* name : {"q", "a", "m/n", "m/b", "z"}) test::write_file(folder / ("in/" + std::string(name)), name);
  const uint64_t once = prepare(settings_of({folder / "in"}, folder / "c"), test::unsynced_disk()).digest;
  auto small = settings_of({folder / "in"}, folder / "d");
  small.shard_bytes = 4;
  BOOST_TEST(prepare(small, test::unsynced_disk()).digest == once);
  BOOST_TEST(Corpus::open(folder / "d")->digest() == once);
  test::write_file(folder / "in/q", "Q");
  BOOST_TEST(prepare(settings_of({folder / "in"}, folder / "e"), test::unsynced_disk()).digest != once);
}

BOOST_AUTO_TEST_CASE(prompts_are_read_but_not_learnt) {
  TemporaryFolder folder;
  test::write_file(folder / "a.txt", "plain");
  test::write_file(folder / "b.jsonl",
                   "{\"prompt\": \"ask\", \"completion\": \"tell\"}\n{\"prompt\": \"as\", \"completion\": \"ktell\"}\n");
  const PrepareSummary summary = prepare(settings_of({folder / "a.txt", folder / "b.jsonl"}, folder / "c"), test::unsynced_disk());
  BOOST_TEST(summary.duplicates == 0);  // equal text, another prompt
  const auto corpus = Corpus::open(folder / "c");
  BOOST_TEST(corpus->has_mask());
  BOOST_TEST((corpus->document(0) == DocumentInfo{6, 5, 5, 1}));
  BOOST_TEST((corpus->document(1) == DocumentInfo{8, 5, 7, 3}));
  std::vector<uint8_t> mask(8);
  corpus->read_mask(1, 0, mask);
  BOOST_TEST((mask == std::vector<uint8_t>{1, 0, 0, 1, 1, 1, 1, 1}));  // the first token is never a target
}

BOOST_AUTO_TEST_CASE(a_failed_prepare_leaves_nothing_that_opens) {
  TemporaryFolder folder;
  test::write_file(folder / "good.txt", "good\n%\ntext\n");
  test::write_file(folder / "bad.txt", "good\n%\nb\xff" "d\n");
  auto settings = settings_of({folder / "good.txt", folder / "bad.txt"}, folder / "c");
  settings.text.separator = "%";
  test::check_error<DataError>([&] { prepare(settings, test::unsynced_disk()); }, {"bad.txt', byte 8", "0xff"});
  BOOST_TEST(disk().list(folder.path()) == (Texts{"bad.txt", "good.txt"}));
  settings.inputs = {folder / "good.txt", folder / "absent"};
  test::check_error<FileError>([&] { prepare(settings, test::unsynced_disk()); }, {"absent", "does not exist"});
  int asked = 0;
  settings.inputs = {folder / "good.txt"};
  settings.stop = [&] { return ++asked == 2; };
  test::check_error<StateError>([&] { prepare(settings, test::unsynced_disk()); }, {"stopped", "was not written"});
  BOOST_TEST(disk().list(folder.path()) == (Texts{"bad.txt", "good.txt"}));
  settings.stop = nullptr;
  for (int64_t at = 0;; ++at) {  // a disk that fills up at any write
    test::FailingFileSystem failing(disk(), at, false);
    try {
      prepare(settings, failing);
      break;
    } catch (const FileError&) {
      if (disk().exists(folder / "c")) std::filesystem::remove_all(folder / "c");  // whole, only its rename was perhaps not durable
      BOOST_REQUIRE(disk().list(folder.path()) == (Texts{"bad.txt", "good.txt"}));
    }
    BOOST_REQUIRE_LT(at, 100);
  }
  BOOST_TEST(texts(folder / "c") == (Texts{"good", "text"}));  // the control: without a failure it is there
  test::check_error<FileError>([&] { prepare(settings, test::unsynced_disk()); }, {"is there already"});
  BOOST_TEST(texts(folder / "c") == (Texts{"good", "text"}));
}

BOOST_AUTO_TEST_CASE(settings_that_make_no_corpus_are_refused) {
  TemporaryFolder folder;
  test::write_file(folder / "empty.txt", "");
  test::write_file(folder / "in/x.bin", std::string(3, '\0'));
  std::filesystem::create_directories(folder / "nothing");
  test::check_error<DataError>([&] { prepare(settings_of({}, folder / "c")); }, {"no input"});
  test::check_error<DataError>([&] { prepare(settings_of({folder / "nothing"}, folder / "c")); }, {"nothing to read", "nothing"});
  test::check_error<DataError>([&] { prepare(settings_of({folder / "empty.txt"}, folder / "c")); }, {"no document"});
  test::check_error<DataError>([&] { prepare(settings_of({folder / "in"}, folder / "c")); }, {"no document"});
  test::check_error<ConfigError>([&] { prepare(settings_of({folder / "empty.txt"}, "")); }, {"no output"});
  auto settings = settings_of({folder / "empty.txt"}, folder / "c");
  settings.tokenizer = "bite";
  test::check_error<ConfigError>([&] { prepare(settings); }, {"did you mean 'byte'?"});
}

BOOST_AUTO_TEST_CASE(progress_ends_at_the_whole) {
  TemporaryFolder folder;
  for (int i = 0; i < 5; ++i) test::write_file(folder / ("in/" + std::to_string(i)), std::string(100, static_cast<char>('a' + i)));
  auto settings = settings_of({folder / "in"}, folder / "c");
  int64_t last = 0, all = 0;
  settings.progress = [&](int64_t done, int64_t total) {
    BOOST_REQUIRE_GE(done, last);
    last = done;
    all = total;
  };
  prepare(settings, test::unsynced_disk());
  BOOST_TEST(last == 500);
  BOOST_TEST(all == 500);
}

BOOST_AUTO_TEST_SUITE_END()
