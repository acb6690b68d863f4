// FAULTS 44: token width guessed from the file size; EOS falling back to 0.
#include "data/data_helpers.h"

using namespace quire;

BOOST_AUTO_TEST_SUITE(fault_44)

BOOST_AUTO_TEST_CASE(token_width_and_eos_are_given_or_refused) {
  test::TemporaryFolder folder;
  const std::string path = folder / "t.bin";
  for (const size_t count : {size_t{4}, size_t{6}, size_t{1024}}) {  // sizes that suit every width
    std::vector<uint32_t> ids(count, 7);
    ids.back() = 0;
    test::write_file(path, test::bytes_of(ids));
    CorpusOptions none, only_type, only_eos, both;
    only_type.token_type = both.token_type = "u32";
    only_eos.eos = both.eos = 0;
    test::check_error<ConfigError>([&] { Corpus::open(path, none); }, {"t.bin", "EOS"});
    test::check_error<ConfigError>([&] { Corpus::open(path, only_type); },
                                   {"t.bin", "does not say which id ends a document", "EOS id"});
    test::check_error<ConfigError>([&] { Corpus::open(path, only_eos); }, {"t.bin", "how wide", "u16, u32, i32 or i64"});
    BOOST_TEST(Corpus::open(path, both)->document_count() == 1);
    both.token_type = "u16";  // what is said is done: the same bytes are twice the ids
    BOOST_TEST(Corpus::open(path, both)->totals().tokens == static_cast<int64_t>(2 * count));
  }
}

BOOST_AUTO_TEST_CASE(prepared_shards_say_their_width) {
  for (const int64_t vocabulary : {65536, 65537}) {
    test::TemporaryFolder folder;
    ShardWriter writer(folder / "c", {"", vocabulary, 0, std::nullopt}, test::unsynced_disk());
    const std::vector<int32_t> tokens{static_cast<int32_t>(vocabulary - 1), 3, 0};
    writer.add(tokens);
    writer.finish();
    const auto corpus = Corpus::open(folder / "c");  // no options: nothing is left to say
    std::vector<int32_t> back(3);
    corpus->read(0, 0, back);
    BOOST_TEST(back == tokens);
    BOOST_TEST(read_bytes(disk(), folder / "c/tokens-00000.bin").size() == (vocabulary == 65536 ? 64u + 6 : 64u + 12));
    std::string index = test::read_file(folder / "c/index.json");
    index.replace(index.find("\"token_type\""), 12, "\"token_tape\"");
    test::write_file(folder / "c/index.json", index);
    test::check_error<DataError>([&] { Corpus::open(folder / "c"); }, {"lacks the key 'token_type'"});
  }
}

BOOST_AUTO_TEST_SUITE_END()
