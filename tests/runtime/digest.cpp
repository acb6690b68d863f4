// XXH64 against its published answers, and its independence of how bytes are divided.
#include "runtime/digest.h"

#include "check.h"

using namespace quire;
using namespace quire::test;

namespace {

uint64_t digest_of_text(std::string_view text, uint64_t seed = 0) {
  Digest digest(seed);
  digest.update(std::as_bytes(std::span(text)));
  return digest.value();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(digest)

BOOST_AUTO_TEST_CASE(known_answers) {
  BOOST_TEST(digest_of_text("") == 0xef46db3751d8e999u);
  BOOST_TEST(digest_of_text("a") == 0xd24ec4f1a98c6e5bu);
  BOOST_TEST(digest_of_text("abc") == 0x44bc2cf5ad770999u);
  BOOST_TEST(digest_of_text("Nobody inspects the spammish repetition") == 0xfbcea83c8a378bf1u);  // over 32 bytes
}

BOOST_AUTO_TEST_CASE(division_into_updates_does_not_matter) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::byte> bytes(random() % 200);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    Digest digest;
    for (size_t at = 0; at < bytes.size();) {
      const size_t count = std::min<size_t>(bytes.size() - at, random() % 70);
      digest.update(std::span(bytes).subspan(at, count));
      at += count;
    }
    BOOST_REQUIRE_EQUAL(digest.value(), digest_of(bytes));
    BOOST_REQUIRE_EQUAL(digest.value(), digest.value());  // reading changes nothing
    if (bytes.empty()) continue;
    std::vector<std::byte> changed = bytes;
    changed[random() % changed.size()] ^= std::byte{1};
    BOOST_REQUIRE_NE(digest_of(changed), digest_of(bytes));
    changed = bytes;
    changed.push_back(std::byte{0});
    BOOST_REQUIRE_NE(digest_of(changed), digest_of(bytes));
  }
  BOOST_TEST(digest_of_text("abc", 1) != digest_of_text("abc"));
}

BOOST_AUTO_TEST_CASE(hexadecimal_there_and_back) {
  for (const uint64_t value : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{0x0123456789abcdef}}) {
    BOOST_TEST(to_hex(value).size() == 16u);
    BOOST_TEST(from_hex(to_hex(value)) == value);
  }
  BOOST_TEST(to_hex(0xabc) == "0000000000000abc");
  for (const char* wrong : {"", "0123", "0123456789abcdeg", "0123456789ABCDEF", "0123456789abcdef0"})
    check_error<DataError>([&] { from_hex(wrong); }, {"[digest]", "16 hexadecimal digits"});
}

BOOST_AUTO_TEST_SUITE_END()
