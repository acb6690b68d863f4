#include "data/raw_corpus.h"

#include "data/data_helpers.h"

using namespace quire;
using test::TemporaryFolder;

BOOST_AUTO_TEST_SUITE(raw_corpus)

template <class T>
static std::string flat(const std::vector<int64_t>& ids) {
  return test::bytes_of(std::vector<T>(ids.begin(), ids.end()));
}

static std::string flat_of(const std::string& type, const std::vector<int64_t>& ids) {
  return type == "u16"   ? flat<uint16_t>(ids)
         : type == "u32" ? flat<uint32_t>(ids)
         : type == "i32" ? flat<int32_t>(ids)
                         : flat<int64_t>(ids);
}

static std::string npy(const std::string& descr, const std::string& shape, const std::string& data, int version = 1) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  const size_t before = version == 1 ? 10 : 12;
  while ((before + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string size(1, static_cast<char>(header.size() & 255));
  size += static_cast<char>(header.size() >> 8);
  if (version > 1) size += std::string(2, '\0');
  return std::string("\x93NUMPY") + static_cast<char>(version) + std::string(1, '\0') + size + header + data;
}

static CorpusOptions options_of(const std::string& type, std::optional<int64_t> eos) {
  CorpusOptions options;
  options.token_type = type;
  options.eos = eos;
  return options;
}

static std::vector<std::vector<int32_t>> contents(const Corpus& corpus) {
  std::vector<std::vector<int32_t>> all;
  for (int64_t d = 0; d < corpus.document_count(); ++d) {
    all.emplace_back(static_cast<size_t>(corpus.length(d)));
    corpus.read(d, 0, all.back());
  }
  return all;
}

using Contents = std::vector<std::vector<int32_t>>;

BOOST_AUTO_TEST_CASE(documents_end_at_eos_in_every_token_type) {
  TemporaryFolder folder;
  const std::vector<int64_t> ids{5, 6, 9, 9, 7, 9, 8, 3};
  const Contents expected{{5, 6, 9}, {9}, {7, 9}, {8, 3}};
  for (const std::string type : {"u16", "u32", "i32", "i64"}) {
    test::write_file(folder / "t.bin", flat_of(type, ids));
    const auto corpus = Corpus::open(folder / "t.bin", options_of(type, 9));
    BOOST_TEST((contents(*corpus) == expected));
    BOOST_TEST(corpus->vocabulary_size() == 10);
    BOOST_TEST(corpus->info().longest == 3);
    BOOST_TEST(corpus->info().notes.size() == 1u);  // the last document lacks EOS
    BOOST_TEST(corpus->totals().valid == 8 - 4);
    const std::string descr = "<" + std::string(type == "u16" ? "u2" : type == "u32" ? "u4" : type == "i32" ? "i4" : "i8");
    for (const int version : {1, 2}) {
      test::write_file(folder / "t.npy", npy(descr, "(8,)", flat_of(type, ids), version));
      const auto numpy = Corpus::open(folder / "t.npy", options_of("", 9));
      BOOST_TEST((contents(*numpy) == expected));
      BOOST_TEST(numpy->digest() == corpus->digest());
    }
  }
}

BOOST_AUTO_TEST_CASE(random_streams_equal_a_literal_cut) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 10; ++round) {
    TemporaryFolder folder;
    Contents expected;
    for (int f = 0; f < 3; ++f) {  // no document spans two files
      std::vector<int64_t> ids(1 + random() % 30000);
      bool open = false;
      for (int64_t& id : ids) {
        id = static_cast<int64_t>(random() % (round % 2 ? 5 : 500));
        if (!open) expected.emplace_back();
        expected.back().push_back(static_cast<int32_t>(id));
        open = id != 0;
      }
      test::write_file(folder / ("part" + std::to_string(f) + ".bin"), flat<uint16_t>(ids));
    }
    const auto corpus = Corpus::open(folder.path(), options_of("u16", 0));
    BOOST_REQUIRE((contents(*corpus) == expected));
    std::vector<int32_t> part(1);
    const size_t last = expected.size() - 1;
    corpus->read(static_cast<int64_t>(last), static_cast<int64_t>(expected[last].size()) - 1, part);
    BOOST_REQUIRE_EQUAL(part[0], expected[last].back());
  }
}

static std::string llmc(int32_t magic, int32_t version, int32_t count, const std::string& data) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return test::bytes_of(header) + data;
}

BOOST_AUTO_TEST_CASE(the_header_of_llm_c_is_known_by_its_magic_number) {
  TemporaryFolder folder;
  const std::string path = folder / "t.bin";
  test::write_file(path, llmc(20240520, 1, 4, flat<uint16_t>({9, 5, 9, 6})));
  BOOST_TEST((contents(*Corpus::open(path, options_of("u16", 9))) == Contents{{9}, {5, 9}, {6}}));
  test::check_error<ConfigError>([&] { Corpus::open(path, options_of("u32", 9)); }, {"means u16", "given is u32"});
  test::write_file(path, llmc(20240801, 7, 3, flat<uint32_t>({128000, 5, 9})));
  BOOST_TEST((contents(*Corpus::open(path, options_of("u32", 9))) == Contents{{128000, 5, 9}}));
  test::write_file(path, llmc(20240520, 2, 4, flat<uint16_t>({9, 5, 9, 6})));
  test::check_error<DataError>([&] { Corpus::open(path, options_of("u16", 9)); }, {"version 2"});
  for (const int32_t count : {3, 5, -1, 1 << 30}) {
    test::write_file(path, llmc(20240520, 1, count, flat<uint16_t>({9, 5, 9, 6})));
    test::check_error<DataError>([&] { Corpus::open(path, options_of("u16", 9)); }, {"truncated or damaged"});
  }
}

BOOST_AUTO_TEST_CASE(bad_files_are_named) {
  TemporaryFolder folder;
  const std::string bin = folder / "t.bin", numpy = folder / "t.npy";
  test::write_file(bin, "");
  test::check_error<DataError>([&] { Corpus::open(bin, options_of("u16", 9)); }, {"t.bin", "is empty"});
  test::write_file(bin, "abc");
  test::check_error<DataError>([&] { Corpus::open(bin, options_of("u16", 9)); }, {"3 bytes", "not a multiple of the 2"});
  test::write_file(bin, flat<uint16_t>({1, 2, 3}));
  test::check_error<DataError>([&] { Corpus::open(bin, options_of("u16", 9)); }, {"no EOS", "id 9", "3 tokens"});
  CorpusOptions small = options_of("u16", 3);
  small.vocabulary_size = 4;
  test::write_file(bin, flat<uint16_t>({1, 4, 3}));
  test::check_error<DataError>([&] { Corpus::open(bin, small); }, {"token 1: id 4", "[0, 4)"});
  small.eos = 4;
  test::check_error<ConfigError>([&] { Corpus::open(bin, small); }, {"EOS id 4", "[0, 4)"});
  test::write_file(bin, flat<int64_t>({1, int64_t{1} << 40, 3}));
  test::check_error<DataError>([&] { Corpus::open(bin, options_of("i64", 3)); }, {"token 1: id 1099511627776"});
  test::write_file(bin, flat<int32_t>({1, -2, 3}));
  test::check_error<DataError>([&] { Corpus::open(bin, options_of("i32", 3)); }, {"token 1: id -2"});
  test::check_error<DataError>([&] { Corpus::open(bin, options_of("u32", 3)); }, {"token 1"});
  test::check_error<ConfigError>([&] { Corpus::open(bin, options_of("u15", 3)); }, {"did you mean 'u16'?"});

  const std::string good = npy("<u2", "(3,)", flat<uint16_t>({1, 2, 3}));
  const auto refused = [&](const std::string& content, std::initializer_list<std::string> parts) {
    test::write_file(numpy, content);
    test::check_error<DataError>([&] { Corpus::open(numpy, options_of("", 3)); }, parts);
  };
  refused(flat<uint16_t>({1, 2, 3, 4, 5, 6, 7, 3}), {"NumPy's magic", "format = \"raw\""});
  refused(good.substr(0, good.size() - 1), {"truncated"});
  refused(good.substr(0, 50), {"truncated"});
  refused(npy("<f4", "(3,)", std::string(12, 'x')), {"'<f4'", "known"});
  refused(npy(">u2", "(3,)", std::string(6, 'x')), {"'>u2'"});
  refused(npy("<u2", "(3, 1)", std::string(6, 'x')), {"one-dimensional"});
  refused(npy("<u2", "()", std::string(2, 'x')), {"one-dimensional"});
  refused(npy("<u2", "(99999999999999999999,)", std::string(2, 'x')), {"one-dimensional"});
  refused(npy("<u2", "(9223372036854775807,)", std::string(2, 'x')), {"truncated"});
  refused(npy("<u2", "(0,)", ""), {"no tokens"});
  for (size_t size = 0; size < good.size(); ++size) refused(good.substr(0, size), {"t.npy"});
  std::mt19937_64 random(2);
  for (int round = 0; round < 500; ++round) {
    std::string bad = good;
    bad[random() % bad.size()] = static_cast<char>(random() % 256);
    test::write_file(numpy, bad);
    try {
      contents(*Corpus::open(numpy, options_of("", 3)));
    } catch (const DataError&) {  // any other error is a failure
    }
  }
  // OLMo's files carry the ending without the header.
  test::write_file(numpy, flat<uint16_t>({1, 2, 3}));
  CorpusOptions raw = options_of("u16", 3);
  raw.format = "raw";
  BOOST_TEST((contents(*Corpus::open(numpy, raw)) == Contents{{1, 2, 3}}));
}

BOOST_AUTO_TEST_SUITE_END()
