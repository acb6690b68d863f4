// What tools/gpu_report needs no device for: its tables and files, golden outputs, times, cards.
#include <bit>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/gpu/goldens.h"
#include "bench/gpu/report.h"
#include "bench/gpu/timing.h"
#include "check.h"

using namespace quire;
using namespace quire::gpu_report;
using namespace quire::test;

namespace {

/// A folder that goes away.
struct Folder {
  std::string path;
  Folder() {
    std::string made = (std::filesystem::temp_directory_path() / "gpu_report.XXXXXX").string();
    BOOST_TEST_REQUIRE(::mkdtemp(made.data()) != nullptr);
    path = made;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string read(const std::string& name) const {
    std::ifstream file(path + "/" + name, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
};

Goldens some_goldens() {
  Goldens goldens{"a device, 2026-11-30", {}};
  goldens.outputs.push_back({"exact", 0, {1, 0xffffffff, 3}});
  Golden rounded{"rounded", 1e-5, {}};
  for (int i = 0; i < 17; ++i) rounded.words.push_back(std::bit_cast<uint32_t>(1.5f * static_cast<float>(i) - 8));
  goldens.outputs.push_back(rounded);
  goldens.outputs.push_back({"empty", 0, {}});
  return goldens;
}

/// `text` with its `line` (the first is 1) replaced; none where `by` is null.
std::string with_line(const std::string& text, int line, const char* by) {
  std::istringstream in(text);
  std::string result;
  for (auto [number, each] = std::pair(1, std::string()); std::getline(in, each); ++number) {
    if (number != line) result += each + "\n";
    else if (by != nullptr) result += std::string(by) + "\n";
  }
  return result;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gpu_report_parts)

BOOST_AUTO_TEST_CASE(every_line_of_a_phase_is_on_disk_at_once) {
  const Folder folder;
  PhaseReport report(folder.path, "kernels", "Kernels, timed");
  BOOST_TEST(folder.read("kernels.md").find("Not complete") != std::string::npos);
  report.table("products", "Products", {{"form", "form"}, {"ms", "time"}});
  report.row({"nt", {1.23456, 2}});
  report.row({"a|b\n\"c\"\\\x01", {std::numeric_limits<double>::quiet_NaN(), 2}});
  report.note("half way");
  BOOST_TEST(report.markdown() == folder.read("kernels.md"));
  BOOST_TEST(report.json() == folder.read("kernels.json"));
  for (const char* part : {"| form | time |\n|---|---|\n| nt | 1.23 |\n", "a\\|b \"c\"", " - |", "half way", "Not complete"})
    BOOST_TEST(report.markdown().find(part) != std::string::npos, report.markdown() << " lacks " << part);
  const nlohmann::json found = nlohmann::json::parse(folder.read("kernels.json"));
  BOOST_TEST(found["complete"] == false);
  BOOST_TEST(found["tables"]["products"][0]["ms"].get<double>() == 1.23456);
  BOOST_TEST(found["tables"]["products"][1]["form"].get<std::string>() == "a|b\n\"c\"\\\x01");
  BOOST_TEST(found["tables"]["products"][1]["ms"].is_null());
  BOOST_TEST(found["notes"][0] == "half way");
  report.failure("two words differ");
  report.complete();
  BOOST_TEST(report.failures() == 1);
  BOOST_TEST(folder.read("kernels.md").find("**Failed:** two words differ") != std::string::npos);
  BOOST_TEST(folder.read("kernels.md").find("Not complete") == std::string::npos);
  BOOST_TEST(nlohmann::json::parse(folder.read("kernels.json"))["complete"] == true);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) BOOST_TEST(entry.path().extension() != ".new", entry.path());
}

BOOST_AUTO_TEST_CASE(rows_must_fit_their_table) {
  PhaseReport report("", "steps", "Steps");
  check_error<StateError>([&] { report.row({"x"}); }, {"gpu_report", "no table"});
  report.table("small", "Small", {{"a", "a"}, {"b", "b"}});
  check_error<StateError>([&] { report.row({"x"}); }, {"'small' has 2 columns", "row of 1"});
  check_error<StateError>([&] { report.table("small", "Again", {}); }, {"'small'", "there already"});
  check_error<FileError>([] { PhaseReport("/nonexistent/folder", "steps", "Steps"); }, {"gpu_report", "/nonexistent/folder/steps.md"});
}

BOOST_AUTO_TEST_CASE(golden_files_come_back_as_they_were_written) {
  const Goldens goldens = some_goldens();
  BOOST_TEST((parse_goldens("file", goldens_text(goldens)) == goldens));
  BOOST_TEST(differences(goldens, goldens).empty());
  check_error<FileError>([] { read_goldens("/nonexistent/goldens.txt"); }, {"goldens", "/nonexistent/goldens.txt", "--write"});
}

BOOST_AUTO_TEST_CASE(golden_files_cut_short_anywhere_are_refused) {
  const std::string text = goldens_text(some_goldens());
  for (size_t length = 0; length < text.size(); ++length) {
    if (length + 1 == text.size()) continue;  // only the last line's end is gone: all is there
    check_error<DataError>([&] { parse_goldens("cut", text.substr(0, length)); }, {"[goldens] cut line ", "found: ", "needed: "});
  }
  check_error<DataError>([&] { parse_goldens("long", text + "x\n"); }, {"more after 'end'"});
}

BOOST_AUTO_TEST_CASE(golden_files_that_contradict_themselves_are_refused_with_their_line) {
  const std::string text = goldens_text(some_goldens());
  const auto refused = [&](int line, const char* by, std::initializer_list<std::string> parts) {
    BOOST_TEST_CONTEXT("line " << line << " is " << (by == nullptr ? "gone" : by)) check_error<DataError>([&] { parse_goldens("file", with_line(text, line, by)); }, parts);
  };
  refused(1, "quire-goldens 2", {"file line 1", "version '2'", "version 1"});
  refused(1, "safetensors 1", {"file line 1", "'quire-goldens 1'"});
  refused(2, "made on ", {"file line 2", "made on DEVICE"});
  refused(3, "outputs 4", {"file line 11", "found: 'end'", "NAME TOLERANCE WORDS"});
  refused(3, "outputs 2", {"'end' after 2 outputs"});
  refused(3, "outputs many", {"file line 3", "outputs N"});
  refused(4, "output exact 0 4", {"file line 6", "found: 'output'", "eight hexadecimal digits"});
  refused(4, "output exact 0 2", {"3 words of 'exact' so far", "needed: 2"});
  refused(4, "output exact -1 3", {"file line 4", "a tolerance of 0 or more"});
  refused(4, "output exact 0 99999999999", {"file line 4", "words at most"});
  refused(4, "output exact 0", {"file line 4", "NAME TOLERANCE WORDS"});
  refused(5, "00000001 0000zzzz 00000003", {"file line 5", "'0000zzzz'", "eight hexadecimal digits"});
  refused(5, "00000001 ffffffff 3", {"file line 5", "'3'"});
  refused(5, nullptr, {"file line 5"});
  refused(6, "output exact 0 17", {"file line 6", "a second 'exact'"});
}

BOOST_AUTO_TEST_CASE(what_differs_is_named_with_its_first_word) {
  const Goldens expected = some_goldens();
  Goldens found = expected;
  found.outputs[0].words[1] = 7;
  BOOST_TEST((differences(found, expected) == std::vector<std::string>{"exact: 1 of 3 words differ, the first is word 1: 00000007; expected: ffffffff"}));
  found = expected;
  // Within 1e-5 of the largest magnitude, 16; then beyond it; then NaN.
  for (const auto& [change, right] : {std::pair{1.5e-4f, true}, {1.7e-4f, false}, {std::numeric_limits<float>::quiet_NaN(), false}}) {
    found.outputs[1].words[6] = std::bit_cast<uint32_t>(std::bit_cast<float>(expected.outputs[1].words[6]) + change);
    BOOST_TEST(differences(found, expected).empty() == right, "changed by " << change);
  }
  found = expected;
  found.outputs[2].name = "other";
  BOOST_TEST((differences(found, expected) == std::vector<std::string>{"other: is not among the golden outputs", "empty: was not computed"}));
  found = expected;
  found.outputs[0].words.pop_back();
  BOOST_TEST((differences(found, expected) == std::vector<std::string>{"exact: 2 words; expected: 3"}));
}

BOOST_AUTO_TEST_CASE(long_outputs_are_kept_as_digests_of_their_parts) {
  Golden whole{"long", 0, std::vector<uint32_t>(1000)};
  for (uint32_t i = 0; i < 1000; ++i) whole.words[i] = i * i;
  const Golden kept = condensed(whole);
  BOOST_TEST(kept.words.size() == digests_of_long_output);
  for (const size_t at : {size_t{0}, size_t{499}, size_t{999}}) {
    Golden other = whole;
    other.words[at] ^= 1;
    BOOST_TEST(difference(condensed(other), kept).find("1 of 16 words differ, the first is word " + std::to_string(at * 16 / 1000)) != std::string::npos, difference(condensed(other), kept));
    BOOST_TEST(differences({"", {other}}, {"", {kept}}).size() == 1);
  }
  std::swap(whole.words[3], whole.words[4]);  // order counts
  BOOST_TEST(!difference(condensed(whole), kept).empty());
  whole.tolerance = 0.1;
  check_error<StateError>([&] { condensed(whole); }, {"'long'", "tolerance"});
}

BOOST_AUTO_TEST_CASE(cards_and_times) {
  BOOST_TEST(peak_of("NVIDIA H200, compute capability 9.0, 139.8 GiB").flops == 989.4e12);
  BOOST_TEST(peak_of("NVIDIA H100 PCIe").flops == 756.5e12);
  BOOST_TEST(peak_of("NVIDIA A100-SXM4-80GB").flops == 311.9e12);
  BOOST_TEST(peak_of("NVIDIA GeForce RTX 2080").flops == 0);
  std::vector<Cell> cells;
  std::vector<Column> columns;
  add_times(cells, {4e-3, 1e-3, 2e-3, 3e-3, 5e-3});
  add_time_columns(columns);
  BOOST_TEST_REQUIRE((cells.size() == 3 && columns.size() == 3));
  BOOST_TEST(cells[0].shown() == "3.000");
  BOOST_TEST(cells[1].shown() == "2.000");
  BOOST_TEST(cells[2].shown() == "4.000");
  BOOST_TEST(columns[0].key == "milliseconds");
}

BOOST_AUTO_TEST_SUITE_END()
