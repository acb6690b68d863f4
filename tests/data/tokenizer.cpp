#include "data/tokenizer.h"

#include "check.h"

using namespace quire;

BOOST_AUTO_TEST_SUITE(tokenizer)

BOOST_AUTO_TEST_CASE(bytes_come_back_whatever_they_are) {
  std::mt19937_64 random(1);
  const ByteTokenizer tokenizer;
  std::string text;
  for (int i = 0; i < 2000; ++i) text.push_back(static_cast<char>(random() % 256));
  std::vector<int32_t> ids{7};
  tokenizer.encode(text, ids);
  BOOST_REQUIRE_EQUAL(ids.size(), text.size() + 1);  // appended
  BOOST_TEST(ids[0] == 7);
  for (size_t i = 0; i < text.size(); ++i) BOOST_REQUIRE_EQUAL(ids[i + 1], static_cast<unsigned char>(text[i]));
  BOOST_TEST(tokenizer.decode(std::span(ids).subspan(1)) == text);
}

BOOST_AUTO_TEST_CASE(special_ids_are_outside_the_bytes_and_decode_to_nothing) {
  const auto plain = make_tokenizer("byte"), with_bos = make_tokenizer("byte", true);
  BOOST_TEST(plain->vocabulary_size() == 257);
  BOOST_TEST(*plain->eos() == 256);
  BOOST_TEST(!plain->bos().has_value());
  BOOST_TEST(with_bos->vocabulary_size() == 258);
  BOOST_TEST(*with_bos->bos() == 257);
  BOOST_TEST(with_bos->decode(std::vector<int32_t>{257, 'a', 256}) == "a");
  test::check_error<DataError>([&] { plain->decode(std::vector<int32_t>{257}); }, {"257", "[0, 257)"});
  test::check_error<DataError>([&] { plain->decode(std::vector<int32_t>{-1}); }, {"-1"});
}

BOOST_AUTO_TEST_CASE(unknown_names_are_refused_with_the_nearest) {
  test::check_error<ConfigError>([] { make_tokenizer("bytes"); }, {"'bytes'", "did you mean 'byte'?"});
  test::check_error<ConfigError>([] { make_tokenizer("sentencepiece"); }, {"known: byte"});
}

BOOST_AUTO_TEST_SUITE_END()
