#include "data/text_documents.h"

#include "data/data_helpers.h"

using namespace quire;
using test::TemporaryFolder;

BOOST_AUTO_TEST_SUITE(text_documents)

static std::vector<std::string> documents_of(const std::string& content, const TextSettings& settings,
                                             const std::string& name = "t.txt") {
  TemporaryFolder folder;
  test::write_file(folder / name, content);
  std::vector<std::string> documents;
  for_each_document(*disk().open(folder / name), name, text_format_of(name), settings, [&](const TextDocument& d) {
    documents.push_back((d.prompt ? std::string(*d.prompt) + "|" : "") + std::string(d.text));
  });
  return documents;
}

static TextSettings separated_by(const std::string& line) {
  TextSettings settings;
  settings.separator = line;
  return settings;
}

static std::string utf8(uint32_t c) {
  std::string s;
  if (c < 0x80) s = {static_cast<char>(c)};
  else if (c < 0x800) s = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  else if (c < 0x10000)
    s = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
  else
    s = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)), static_cast<char>(0x80 | (c >> 6 & 63)),
         static_cast<char>(0x80 | (c & 63))};
  return s;
}

BOOST_AUTO_TEST_CASE(utf8_is_valid_exactly_for_scalar_values) {
  for (uint32_t c = 0; c < 0x120000; c += c < 0x3000 ? 1 : 37) {
    const bool scalar = c < 0xD800 || (c > 0xDFFF && c <= 0x10FFFF);
    const std::string s = utf8(c);
    if ((valid_utf8_prefix(s) == s.size()) != scalar) BOOST_REQUIRE_EQUAL(c, 0xFFFFFFFFu);
  }
  for (const std::string bad : {"\x80", "\xC0\xAF", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                                "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xE2\x28\xA1"})
    for (const std::string before : {"", "1234567", "12345678", "é"})
      BOOST_TEST(valid_utf8_prefix(before + bad + "tail that follows") == before.size());
  const std::string cut = std::string("abcé").substr(0, 4);
  BOOST_TEST(valid_utf8_prefix(cut) == 3u);
}

BOOST_AUTO_TEST_CASE(a_separator_is_a_whole_line) {
  const auto split = [](const std::string& text) { return documents_of(text, separated_by("%")); };
  using Texts = std::vector<std::string>;
  BOOST_TEST(split("a\n%\nb\n") == (Texts{"a", "b"}));
  BOOST_TEST(split("a\n%\nb\n%\n") == (Texts{"a", "b"}));
  BOOST_TEST(split("a\n%\nb\n%") == (Texts{"a", "b"}));
  BOOST_TEST(split("%\na") == (Texts{"", "a"}));
  BOOST_TEST(split("a\n%\n%\nb") == (Texts{"a", "", "b"}));
  BOOST_TEST(split("50 %\n %\n%%\n% \na%\n") == (Texts{"50 %\n %\n%%\n% \na%"}));
  BOOST_TEST(split("a\r\n%\r\nb\r\n") == (Texts{"a", "b"}));
  BOOST_TEST(split("a\n\n%\n\nb") == (Texts{"a\n", "\nb"}));  // only the line break before the separator is not the document's
  BOOST_TEST(split("") == (Texts{""}));
  BOOST_TEST(documents_of("a\n%\nb\n", {}) == (Texts{"a\n%\nb\n"}));
  BOOST_TEST(documents_of("a\n<|end|>\nb\n", separated_by("<|end|>")) == (Texts{"a", "b"}));
  test::check_error<ConfigError>([] { documents_of("a", separated_by("")); }, {"separator"});
  test::check_error<ConfigError>([] { documents_of("a", separated_by("x\ny")); }, {"separator"});
}

BOOST_AUTO_TEST_CASE(documents_do_not_depend_on_how_the_file_is_read) {
  // Longer than the reader's chunks of 1 MiB, with separators, characters of several bytes and long lines across their edges.
  std::mt19937_64 random(3);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::string> expected;
    std::string content;
    while (content.size() < (size_t{5} << 19)) {
      std::string text;
      const size_t length = random() % 20 == 0 ? random() % 700000 : random() % 300;
      while (text.size() < length)
        text += random() % 40 == 0 && round > 0 ? std::string("\n")
                : random() % 3                  ? std::string(1, static_cast<char>('a' + random() % 26))
                                                : utf8(0x4E00 + random() % 1000);
      text += "x";
      expected.push_back(text);
      content += text + "\n%%\n";
    }
    BOOST_REQUIRE(documents_of(content, separated_by("%%")) == expected);
  }
}

BOOST_AUTO_TEST_CASE(bytes_that_are_no_text_are_named_with_their_offset) {
  test::check_error<DataError>([] { documents_of("abc\n%\nd\xff" "e\n", separated_by("%")); }, {"'t.txt', byte 7", "0xff", "UTF-8"});
  test::check_error<DataError>([] { documents_of("abc\xff", {}); }, {"byte 3", "0xff"});
  test::check_error<DataError>([] { documents_of(std::string("ab\0c", 4), {}); }, {"byte 2", "no text"});
  const std::string far = std::string((1 << 20) + 11, 'a') + "\n" + std::string(1000, 'b') + "\xC3";
  test::check_error<DataError>([&] { documents_of(far, separated_by("%")); },
                               {fmt::format("byte {}", (1 << 20) + 12 + 1000), "0xc3"});
  test::check_error<DataError>([] { documents_of("{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n", {}, "t.jsonl"); }, {"byte 24", "0xff"});
}

BOOST_AUTO_TEST_CASE(json_lines) {
  using Texts = std::vector<std::string>;
  BOOST_TEST(documents_of("{\"text\": \"a\\nb\"}\n\n{\"id\": 3, \"text\": \"\\u00e9\"}", {}, "t.jsonl") == (Texts{"a\nb", "é"}));
  BOOST_TEST(documents_of("{\"prompt\": \"q\", \"completion\": \"a\"}\n", {}, "t.jsonl") == (Texts{"q|a"}));
  TextSettings named;
  named.text_key = "content";
  BOOST_TEST(documents_of("{\"content\": \"a\"}\r\n", named, "t.jsonl") == (Texts{"a"}));
  test::check_error<DataError>([] { documents_of("{\"text\": \"a\"}\n{\"txet\": \"b\"}\n", {}, "t.jsonl"); },
                               {"'t.jsonl', line 2", "did you mean 'txet'?"});
  test::check_error<DataError>([] { documents_of("{\"text\": \"a\"}\n{\"text\": 3}\n", {}, "t.jsonl"); },
                               {"line 2", "'text'", "number"});
  test::check_error<DataError>([] { documents_of("{\"text\": \"a\n", {}, "t.jsonl"); }, {"line 1", "no JSON"});
  test::check_error<DataError>([] { documents_of("\n[1]\n", {}, "t.jsonl"); }, {"line 2", "array is no object"});
  test::check_error<DataError>([] { documents_of("{\"text\": \"\\ud800\"}\n", {}, "t.jsonl"); }, {"line 1"});
}

BOOST_AUTO_TEST_CASE(binary_files_are_found_wherever_the_byte_is) {
  TemporaryFolder folder;
  std::mt19937_64 random(4);
  std::string text;
  while (text.size() < (size_t{3} << 20)) text += utf8(1 + static_cast<uint32_t>(random() % 0xD000));
  const auto first_bad = [&](const std::string& content) {
    test::write_file(folder / "f", content);
    return first_binary_byte(*disk().open(folder / "f"));
  };
  BOOST_TEST(first_bad(text) == -1);
  BOOST_TEST(first_bad("") == -1);
  for (const size_t near : {size_t{0}, size_t{1} << 20, (size_t{1} << 20) - 1, (size_t{2} << 20) + 1, text.size()}) {
    size_t at = valid_utf8_prefix(std::string_view(text).substr(0, near));
    BOOST_TEST(first_bad(std::string(text).insert(at, 1, '\xff')) == static_cast<int64_t>(at));
    BOOST_TEST(first_bad(std::string(text).insert(at, 1, '\0')) == static_cast<int64_t>(at));
  }
  BOOST_TEST(first_bad(text + "\xE2\x82") == static_cast<int64_t>(text.size()));
}

BOOST_AUTO_TEST_CASE(prompts_are_masked_and_their_bytes_unscored) {
  for (const bool bos : {false, true}) {
    CorpusInfo info = test::test_info();
    info.vocabulary_size = 258;
    info.eos = 256;
    MemoryCorpus corpus(info);
    DocumentEncoder encoder(make_tokenizer("byte", bos));
    encoder.encode({"abc", std::nullopt}, corpus);
    encoder.encode({"abc", "pq"}, corpus);
    encoder.encode({"abc", ""}, corpus);
    const int64_t b = bos ? 1 : 0;
    BOOST_TEST((corpus.document(0) == DocumentInfo{4 + b, 3 + b, 3, bos ? 0 : 1}));
    BOOST_TEST((corpus.document(1) == DocumentInfo{6 + b, 4, 5, 2}));
    BOOST_TEST((corpus.document(2) == DocumentInfo{4 + b, 3 + b, 3, bos ? 0 : 1}));
  }
}

BOOST_AUTO_TEST_SUITE_END()
