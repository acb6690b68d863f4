#include "model/safetensors.h"

#include <cstring>
#include <limits>

#include "check.h"
#include "files.h"
#include "model/convert_elements.h"
#include "runtime/faulty_file_system.h"

using namespace quire;
using namespace quire::test;

namespace {

/// A file with this header text and data.
void put(FileSystem& fs, const std::string& path, const std::string& header, const std::string& data = "", int64_t length = -1) {
  const uint64_t bytes = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::string text(8, '\0');
  std::memcpy(text.data(), &bytes, 8);
  text += header + data;
  fs.create(path)->write(std::as_bytes(std::span(text)));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(safetensors)

BOOST_AUTO_TEST_CASE(what_is_written_is_read_back) {
  FaultyFileSystem fs;
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<double> b = {0.1, -0.2};
  const std::vector<int32_t> c = {7};
  const std::vector<int64_t> d = {int64_t{1} << 40, -3, 5};
  const std::vector<bf16> e = {bf16(1.5f), bf16(-2.f)};
  write_safetensors(fs, "all.safetensors",
                    {{"a.weight", DType::f32, {2, 3}, a.data()}, {"b", DType::f64, {2}, b.data()}, {"c", DType::i32, {}, c.data()},
                     {"d", DType::i64, {3, 1}, d.data()}, {"e \"é\"", DType::bf16, {1, 2}, e.data()}, {"none", DType::f32, {0, 5}, nullptr}},
                    {{"format", "pt"}});
  SafetensorsFile file(fs, "all.safetensors");
  BOOST_TEST(file.entries().size() == 6u);
  BOOST_TEST(file.entries()[0].offset % 8 == 0);
  BOOST_TEST(file.metadata().at("format") == "pt");
  const Safetensors all(fs, "all.safetensors");
  std::vector<float> a2(6);
  all.read("a.weight", DType::f32, a2.data());
  BOOST_TEST(a2 == a, boost::test_tools::per_element());
  std::vector<double> a3(6), b2(2);
  all.read("a.weight", DType::f64, a3.data());
  BOOST_TEST(a3 == std::vector<double>({1, 2, 3, 4, 5, 6}), boost::test_tools::per_element());
  all.read("b", DType::f64, b2.data());
  BOOST_TEST(b2 == b, boost::test_tools::per_element());
  int64_t c2 = 0;
  all.read("c", DType::i64, &c2);
  BOOST_TEST(c2 == 7);
  BOOST_TEST(all.at("c").elements() == 1);
  BOOST_TEST(all.at("none").elements() == 0);
  std::vector<float> e2(2);
  all.read("e \"é\"", DType::f32, e2.data());
  BOOST_TEST(e2 == std::vector<float>({1.5f, -2.f}), boost::test_tools::per_element());
  std::vector<int32_t> small(3);
  check_error<DataError>([&] { all.read("d", DType::i32, small.data()); }, {"all.safetensors", "'d'", "I64", "I32"});
  check_error<DTypeError>([&] { all.read("d", DType::f32, small.data()); }, {"'d'", "I64", "F32"});
  check_error<DTypeError>([&] { all.read("b", DType::i64, small.data()); }, {"'b'", "F64"});
  check_error<DataError>([&] { all.at("a.weigth"); }, {"a.weigth", "nearest is 'a.weight'"});
}

BOOST_AUTO_TEST_CASE(a_large_tensor_is_converted_in_pieces) {
  FaultyFileSystem fs;
  std::vector<float> values(700'001);
  std::mt19937_64 random(3);
  for (float& value : values) value = static_cast<float>(static_cast<int64_t>(random() % 2001) - 1000) * 0.37f;
  write_safetensors(fs, "large.safetensors", {{"x", DType::f32, {700'001}, values.data()}});
  std::vector<double> read(values.size());
  Safetensors(fs, "large.safetensors").read("x", DType::f64, read.data());
  BOOST_TEST(std::equal(values.begin(), values.end(), read.begin(), [](float a, double b) { return static_cast<double>(a) == b; }));
}

BOOST_AUTO_TEST_CASE(every_half_is_converted_exactly) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint32_t exponent = (bits >> 10) & 31, fraction = bits & 1023;
    double expected = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
    if (exponent == 31) expected = fraction ? std::nan("") : std::numeric_limits<double>::infinity();
    if (bits & 0x8000) expected = -expected;
    const float found = float_from_half(static_cast<uint16_t>(bits));
    const bool same = std::isnan(expected)
                          ? std::isnan(found)
                          : static_cast<double>(found) == expected && std::signbit(found) == std::signbit(expected);
    if (!same) BOOST_ERROR("half " << bits << " became " << found);
  }
}

BOOST_AUTO_TEST_CASE(doubles_are_rounded_to_bf16_once) {
  // Just above the middle between two bf16 values, but by less than a float shows: rounding twice goes down, rounding once goes up.
  const double above_middle = 1.0 + 0x1p-8 + 0x1p-40;
  BOOST_TEST(static_cast<float>(bf16_from_double(above_middle)) == 1.0f + 0x1p-7f);
  BOOST_TEST(static_cast<float>(bf16(static_cast<float>(above_middle))) == 1.0f);  // control: twice is wrong
  BOOST_TEST(static_cast<float>(bf16_from_double(1.0 + 0x1p-8)) == 1.0f);          // the middle itself goes to even
  BOOST_TEST(static_cast<float>(bf16_from_double(-above_middle)) == -(1.0f + 0x1p-7f));
  BOOST_TEST(std::isinf(static_cast<float>(bf16_from_double(1e300))));
  BOOST_TEST(std::isnan(static_cast<float>(bf16_from_double(std::nan("")))));
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; ++i) {
    const double value = std::ldexp(static_cast<double>(random() >> 11) - 0x1p52, static_cast<int>(random() % 60) - 90);
    const float got = static_cast<float>(bf16_from_double(value));
    const uint32_t bits = std::bit_cast<uint32_t>(got);
    for (const uint32_t other : {bits - 0x10000u, bits + 0x10000u})
      BOOST_TEST_REQUIRE(std::abs(got - value) <= std::abs(static_cast<double>(std::bit_cast<float>(other)) - value));
  }
}

BOOST_AUTO_TEST_CASE(lying_headers_are_refused) {
  FaultyFileSystem fs;
  const std::string four = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", data(8, 'x');
  const auto refuse = [&](const std::string& header, const std::string& bytes, std::initializer_list<std::string> parts,
                          int64_t length = -1) {
    put(fs, "x.safetensors", header, bytes, length);
    check_error<DataError>([&] { SafetensorsFile(fs, "x.safetensors"); }, parts);
  };
  put(fs, "x.safetensors", four, data);
  BOOST_TEST(SafetensorsFile(fs, "x.safetensors").find("a")->bytes == 8);  // the control: this one is right
  put(fs, "x.safetensors", four + "   ", data);
  BOOST_TEST(SafetensorsFile(fs, "x.safetensors").find("a")->bytes == 8);

  refuse(four, data.substr(1), {"x.safetensors", "truncated", "'a'"});
  refuse(four, data + "y", {"1 bytes after the last"});
  refuse(four, data, {"header", "truncated"}, 1000);
  refuse(four, data, {"header"}, std::numeric_limits<int64_t>::max());
  refuse(four, data, {"header"}, 0);
  refuse(four, data, {"JSON"}, 20);
  refuse("[" + four + "]", data, {"another format"});
  refuse(four + "garbage", data, {"JSON"});
  refuse(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", data, {"twice", "a"});
  refuse(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", data, {"twice", "dtype"});
  refuse(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", data, {"'a'", "contradict"});
  refuse(R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,8]}})", data, {"'a'", "contradict"});
  refuse(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", "", {"'a'", "contradict"});
  refuse(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", data, {"shape", "-2"});
  refuse(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", data, {"shape", "2.0"});
  refuse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", data, {"decrease"});
  refuse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})", data, {"data_offsets"});
  refuse(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", data, {"hole", "'a'"});
  refuse(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", data, {"'b'", "ends"});
  refuse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1}})", data, {"only dtype"});
  refuse(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", data, {"dtype"});
  refuse(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", data, {"shape"});
  refuse(R"({"a":{"dtype":"F32","shape":[2]}})", data, {"data_offsets"});
  refuse(R"({"a":7})", data, {"object"});
  refuse(R"({"__metadata__":{"a":1}})", "", {"__metadata__"});
  refuse("{\"a\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", data, {"JSON"});
  refuse("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", "", {"nested"});
  put_text(fs, "x.safetensors", "");
  check_error<DataError>([&] { SafetensorsFile(fs, "x.safetensors"); }, {"0 bytes"});
  check_error<FileError>([&] { SafetensorsFile(fs, "absent.safetensors"); }, {"absent.safetensors"});
}

BOOST_AUTO_TEST_CASE(unknown_dtypes_are_refused_when_asked_for) {
  FaultyFileSystem fs;
  put(fs, "x.safetensors",
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"q":{"dtype":"F4_NEW","shape":[3],"data_offsets":[4,6]},"u":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})",
      std::string(8, '\0'));
  const Safetensors file(fs, "x.safetensors");
  float a = 1;
  file.read("a", DType::f32, &a);
  BOOST_TEST(a == 0.f);
  check_error<DTypeError>([&] { file.read("q", DType::f32, &a); }, {"'q'", "F4_NEW"});
  check_error<DTypeError>([&] { file.read("u", DType::f32, &a); }, {"'u'", "U8"});
}

BOOST_AUTO_TEST_CASE(broken_headers_never_crash_nor_change_values) {
  FaultyFileSystem fs;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7};
  write_safetensors(fs, "good.safetensors",
                    {{"first", DType::f32, {2, 2}, values.data()}, {"second", DType::f32, {3}, values.data() + 4}},
                    {{"who", "me"}});
  const std::string good = read_text(fs, "good.safetensors");
  const size_t header = good.size() - 28;
  std::mt19937_64 random(11);
  int refused = 0, survived = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string bad = good;
    if (round % 4 == 0) bad.resize(random() % bad.size());
    else
      for (uint64_t flips = 1 + random() % 3; flips > 0; --flips) bad[random() % header] ^= static_cast<char>(1u << (random() % 8));
    put_text(fs, "bad.safetensors", bad);
    try {
      const SafetensorsFile file(fs, "bad.safetensors");
      ++survived;  // a name or a metadata letter changed
      for (const SafetensorsEntry& entry : file.entries()) {
        const size_t at = static_cast<size_t>(entry.offset) - header;
        BOOST_TEST_REQUIRE(at + static_cast<size_t>(entry.bytes) <= 28u);
        std::vector<double> read(static_cast<size_t>(entry.elements()));
        try {
          file.read(entry, DType::f64, read.data());
        } catch (const DTypeError&) {
          continue;
        }
        if (entry.dtype != "F32") continue;
        for (size_t i = 0; i < read.size(); ++i) BOOST_TEST_REQUIRE(read[i] == static_cast<double>(values[at / 4 + i]));
      }
    } catch (const DataError&) {
      ++refused;
    } catch (const FileError&) {
      ++refused;
    }
  }
  BOOST_TEST(refused > 3000);
  BOOST_TEST(survived > 100);
}

BOOST_AUTO_TEST_CASE(the_writer_refuses_what_it_can_not_keep) {
  FaultyFileSystem fs;
  const float one = 1;
  check_error<DataError>([&] { write_safetensors(fs, "w", {{"a", DType::f32, {1}, &one}, {"a", DType::f32, {1}, &one}}); }, {"'a'", "twice"});
  check_error<DataError>([&] { write_safetensors(fs, "w", {{"__metadata__", DType::f32, {1}, &one}}); }, {"__metadata__"});
  check_error<DataError>([&] { write_safetensors(fs, "w", {{"\xff", DType::f32, {1}, &one}}); }, {"UTF-8"});
  SafetensorsWriter writer(fs, "w", {{"a", DType::f32, {2}}});
  writer.write(std::as_bytes(std::span(&one, 1)));
  check_error<StateError>([&] { writer.finish(); }, {"'w'"});
  writer.write(std::as_bytes(std::span(&one, 1)));
  check_error<StateError>([&] { writer.write(std::as_bytes(std::span(&one, 1))); }, {"more bytes"});
  writer.finish();
  BOOST_TEST(writer.checksum() == digest_of(read_bytes(fs, "w")));
}

BOOST_AUTO_TEST_CASE(shards_must_agree_with_their_index) {
  FaultyFileSystem fs;
  const std::vector<float> values = {1, 2, 3};
  fs.make_directories("m");
  write_safetensors(fs, "m/a.safetensors", {{"x", DType::f32, {1}, values.data()}, {"y", DType::f32, {1}, values.data() + 1}});
  write_safetensors(fs, "m/b.safetensors", {{"z", DType::f32, {1}, values.data() + 2}});
  const std::string index = "m/model.safetensors.index.json";
  const auto map = [&](const std::string& text) {
    put_text(fs, index, "{\"metadata\":{\"total_size\":12},\"weight_map\":{" + text + "}}");
  };
  map(R"("x":"a.safetensors","y":"a.safetensors","z":"b.safetensors")");
  {
    const Safetensors shards(fs, "m");
    float z = 0;
    shards.read("z", DType::f32, &z);
    BOOST_TEST(z == 3.f);
    BOOST_TEST(shards.names() == std::vector<std::string>({"x", "y", "z"}), boost::test_tools::per_element());
    BOOST_TEST(shards.path_of("y") == "m/a.safetensors");
  }
  const auto refuse = [&](std::initializer_list<std::string> parts) { check_error<DataError>([&] { Safetensors(fs, "m"); }, parts); };
  map(R"("x":"a.safetensors","y":"a.safetensors","z":"c.safetensors")");
  refuse({"c.safetensors", "missing"});
  map(R"("x":"a.safetensors","y":"b.safetensors","z":"b.safetensors")");
  refuse({"'y'", "m/a.safetensors", "b.safetensors"});
  map(R"("x":"a.safetensors","z":"b.safetensors")");
  refuse({"'y'", "does not name"});
  map(R"("x":"a.safetensors","y":"a.safetensors","z":"b.safetensors","w":"b.safetensors")");
  refuse({"'w'", "lacks it"});
  map(R"("x":"../m/a.safetensors")");
  refuse({"'x'", "same folder"});
  map(R"("x":"a.safetensors","x":"b.safetensors")");
  refuse({"twice"});
  map("");
  refuse({"weight_map"});
  put_text(fs, index, "{");
  refuse({"index.json", "JSON"});
  fs.rename("m/a.safetensors", "m/model.safetensors");
  refuse({"both"});
  check_error<FileError>([&] { Safetensors(fs, "nowhere"); }, {"nowhere", "neither"});
}

BOOST_AUTO_TEST_SUITE_END()
