#include "parallel/schedule_csv.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "check.h"
#include "schedules.h"

using namespace quire;
using namespace quire::test;

namespace {

void refused(const std::string& text, std::initializer_list<std::string> parts) {
  BOOST_TEST_CONTEXT(text) {
    check_error<ScheduleError>([&] { parse_schedule(text, "my.csv"); }, parts);
    check_error<ScheduleError>([&] { parse_schedule(text, "my.csv"); }, {"'my.csv'"});
  }
}

bool equal(const PipelineSchedule& a, const PipelineSchedule& b) {
  return a.ranks == b.ranks && a.stages == b.stages && a.microbatches == b.microbatches && a.rank_of_stage == b.rank_of_stage && a.actions == b.actions;
}

/// The text with something done to it somewhere: characters changed, dropped or put in, or fields exchanged, doubled or dropped.
std::string mutated(std::string text, std::mt19937_64& random) {
  constexpr std::string_view letters = "0123456789FBIW,, \n\r-.x\t";
  const auto place = [&] { return static_cast<std::ptrdiff_t>(random() % (text.size() + 1)); };
  const auto fields = [](const std::string& whole) {  // begins and lengths of actions
    std::vector<std::pair<size_t, size_t>> all;
    for (size_t at = 0; at < whole.size();) {
      const size_t end = std::min(whole.find_first_of(",\n", at), whole.size());
      if (end > at) all.emplace_back(at, end - at);
      at = end + 1;
    }
    return all;
  };
  for (uint64_t count = 1 + random() % 3; count > 0; --count) {
    const uint64_t kind = random() % 7;
    const auto all = fields(text);
    if (kind == 0) text.insert(text.begin() + place(), letters[random() % letters.size()]);
    if (kind == 1 && !text.empty()) text.erase(static_cast<size_t>(random() % text.size()), 1);
    if (kind == 2 && !text.empty()) text[random() % text.size()] = letters[random() % letters.size()];
    if (kind == 3) text.insert(text.begin() + place(), static_cast<char>(random() % 256));
    if (all.empty()) continue;
    const auto [at, length] = all[random() % all.size()];
    if (kind == 4) text.erase(at, length);
    if (kind == 5) text.insert(all[random() % all.size()].first, text.substr(at, length) + ",");
    if (kind == 6) {
      const auto [other, other_length] = all[random() % all.size()];
      const std::string a = text.substr(at, length), b = text.substr(other, other_length);
      if (at < other) text.replace(other, other_length, a).replace(at, length, b);
      if (other < at) text.replace(at, length, b).replace(other, other_length, a);
    }
  }
  return text;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(schedule_csv)

BOOST_AUTO_TEST_CASE(every_generator_is_read_as_it_was_written) {
  for_built_in_schedules([](const PipelineSchedule& made, int64_t) {
    if (made.microbatches == 0) return;
    for (const PipelineSchedule& schedule : {made, split_backward(made, 2)}) {
      const std::string text = describe(schedule);
      const PipelineSchedule read = parse_schedule(text, "my.csv");
      BOOST_TEST(equal(read, schedule));
      BOOST_TEST(describe(read) == text);
      BOOST_TEST(read.name == "my.csv");
    }
  });
}

BOOST_AUTO_TEST_CASE(any_valid_order_and_placement_is_read_as_it_was_written) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t ranks = 1 + static_cast<int64_t>(random() % 4), stages = ranks * (1 + static_cast<int64_t>(random() % 3));
    const PipelineSchedule schedule = random_schedule(random, v_placement(ranks, stages), ranks, 1 + static_cast<int64_t>(random() % 6));
    BOOST_TEST(equal(parse_schedule(describe(schedule), "my.csv"), schedule));
  }
}

BOOST_AUTO_TEST_CASE(blanks_idle_times_and_line_ends_are_read) {
  const PipelineSchedule plain = parse_schedule("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1", "my.csv");
  BOOST_TEST(equal(plain, make_schedule("1f1b", 2, 1, 2)));
  for (const char* text : {"0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n",
                           "0F0, 0F1 ,,\t0B0,,0B1,\n,1F0,1B0,1F1,1B1\n\n",
                           "0F0,0F1,,,0B0,0B1\n,1F0,1B0,1F1,1B1,,\n\r\n\n"})
    BOOST_TEST(equal(parse_schedule(text, "my.csv"), plain));
}

BOOST_AUTO_TEST_CASE(text_that_is_no_action_is_refused) {
  refused("", {"no action", "a line per rank"});
  refused("\n\n\r\n", {"no action"});
  refused("0F0,0B0\n\n2F0,2B0\n", {"line 2", "no action"});
  refused("0F0,0B0\n , ,\n", {"line 2", "no action"});
  for (const char* field : {"0X0", "F0", "0F", "00", "0f0", "-1F0", "0F-1", "0F+1", "0F1.0", "0FF0", "0 F0", "0F0;0B0", "1F0 1B0", "\"0F0\"",
                            "0xF0", "0F0x", "0F99999999999999999999", "99999999999999999999F0", "0RECV_F1", "UNSHARD"})
    refused(fmt::format("0F0,0B0\n1F0,{},1B0\n", field), {"line 2: action 2", field});
  refused(std::string("0F0,0\0F1,0B0\n", 13), {"line 1", "action 2", "0\\x00F1"});
  refused("\xef\xbb\xbf" "0F0,0B0\n", {"line 1", "\\xef\\xbb\\xbf" "0F0"});
  refused("0F0,0B0\n" + std::string(100000, 'x'), {"line 2", "xxx..."});
}

BOOST_AUTO_TEST_CASE(numbers_that_no_schedule_of_the_size_has_are_refused_at_once) {
  refused("0F0,0B0,0F999999999,0B999999999\n", {"line 1", "0F999999999", "2 forward passes in all"});
  refused("0F0,0B0\n999999999F0,999999999B0\n", {"line 2", "999999999F0", "2 forward passes in all"});
  refused("0F0,0B9223372036854775807\n", {"line 1", "0B9223372036854775807"});
  // Many forwards, with numbers that would need a table of billions.
  std::string text = "0F0";
  for (int i = 1; i < 60000; ++i) text += fmt::format(",0F{}", i);
  text += "\n1F0";
  for (int i = 1; i < 60000; ++i) text += fmt::format(",{}F0", 1 + i);
  refused(text, {"line 2", "1F1 is missing", "60001 stages and 60000 microbatches"});
}

BOOST_AUTO_TEST_CASE(broken_schedules_are_refused_with_line_and_action) {
  const std::string good = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n";
  BOOST_CHECK_NO_THROW(parse_schedule(good, "my.csv"));
  refused("0B0,0F0,0F1,0B1\n1F0,1B0,1F1,1B1\n", {"line 1", "0B0 comes before 0F0"});
  refused("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1W1,1I1\n", {"line 2", "1W1 comes before 1I1"});
  refused("0F0,0F1,0B0,0B1\n1F0,1B0,1B1\n", {"line 2", "1F1 is missing"});
  refused("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", {"line 1", "0B1 is missing"});
  refused("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1\n", {"line 2", "1W1 is missing"});
  refused("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1W1\n", {"line 2", "1I1 is missing"});
  refused("0F0,0F1,0F0,0B0,0B1\n1F0,1B0,1F1,1B1\n", {"line 1", "action 3 (0F0)", "action 1 (0F0)"});
  refused("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1,1I1\n", {"line 2", "action 5 (1I1)", "action 4 (1B1)"});
  refused("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1,1W1\n", {"line 2", "1W1", "part of 1B1"});
  refused("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", {"line 1", "wait forever", "rank 0 with 0B0 for 1B0 of rank 1", "rank 1 with 1F1 for 0F1 of rank 0"});
  refused("0F0,0F1,0B0,0B1,1F0\n1F0,1B0,1F1,1B1\n", {"line 2", "1F0", "stage 1 is on line 1 already"});
  refused("0F0,0F1,0B0,0B1\n2F0,2B0,2F1,2B1\n", {"line 2", "stage 2 is here", "stage 1 is on no line"});
  refused("1F0,1F1,1B0,1B1\n", {"line 1", "stage 0 is on no line"});
  refused("0F0,0F2,0B0,0B2\n", {"line 1", "0F2", "2 forward passes"});
  refused("0F0,0F1\n1F0,1F1\n", {"line 1", "no backward pass"});
  refused("0B0\n", {"line 1", "0B0", "0 forward passes"});
}

BOOST_AUTO_TEST_CASE(only_the_circle_of_those_that_wait_for_each_other_is_named) {
  // Ranks 0 and 1 wait for each other, rank 2 and 3 for them.
  const char* text = "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n2F0,2F1,2B0,2B1\n3F0,3F1,3B0,3B1\n";
  refused(text, {"line 1", "rank 0 with 0B0 for 1B0 of rank 1, rank 1 with 1F1 for 0F1 of rank 0"});
  try {
    parse_schedule(text, "my.csv");
  } catch (const ScheduleError& error) {
    BOOST_TEST(std::string(error.what()).find("rank 3") == std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(a_user_may_order_weight_gradients_otherwise_but_it_is_told) {
  BOOST_TEST(keeps_gradient_order(parse_schedule("0F0,0F1,0B0,0B1\n", "my.csv")));
  BOOST_TEST(!keeps_gradient_order(parse_schedule("0F0,0F1,0B1,0B0\n", "my.csv")));
}

BOOST_AUTO_TEST_CASE(random_changes_are_read_or_refused_with_a_line) {
  std::mt19937_64 random(2);
  int valid = 0, broken = 0, without_line = 0;
  std::vector<std::string> texts;
  for (const char* name : {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v"})
    texts.push_back(describe(make_schedule(name, 3, has_chunks(name, 2) ? 2 : 1, 4)));
  for (int round = 0; round < 20000; ++round) {
    const std::string text = mutated(texts[random() % texts.size()], random);
    try {
      const PipelineSchedule schedule = parse_schedule(text, "my.csv");
      BOOST_REQUIRE_NO_THROW(check_schedule(schedule));
      if (round % 20 == 0) BOOST_REQUIRE_NO_THROW(check_program(lower(schedule)));
      ++valid;
    } catch (const ScheduleError& error) {
      ++broken;
      const std::string message = error.what();
      if (message.find("'my.csv', line ") == std::string::npos) {
        ++without_line;
        BOOST_TEST((message.find("is on no line") != std::string::npos || message.find("holds no action") != std::string::npos), message);
      }
      for (const char c : message) BOOST_REQUIRE((static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f));
    }
  }
  BOOST_TEST(valid > 100);  // else the texts tell nothing about what is read
  BOOST_TEST(broken > 5000);
  BOOST_TEST(without_line < broken / 20);
}

// Texts of every length up to a few characters, of the characters that matter.
BOOST_AUTO_TEST_CASE(short_texts_are_read_or_refused) {
  constexpr std::string_view letters = "01FB,\n";
  int valid = 0;
  for (size_t length = 0; length <= 7; ++length) {
    size_t count = 1;
    for (size_t i = 0; i < length; ++i) count *= letters.size();
    for (size_t code = 0; code < count; ++code) {
      std::string text;
      for (size_t i = 0, rest = code; i < length; ++i, rest /= letters.size()) text += letters[rest % letters.size()];
      try {
        const PipelineSchedule schedule = parse_schedule(text, "my.csv");
        BOOST_REQUIRE_EQUAL(schedule.stages, 1);
        BOOST_REQUIRE_EQUAL(schedule.microbatches, 1);
        ++valid;
      } catch (const ScheduleError&) {
      }
    }
  }
  BOOST_TEST(valid == 1);  // 0F0,0B0
}

BOOST_AUTO_TEST_CASE(files_are_read_and_named) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / fmt::format("quire-schedule-csv-{}", std::random_device{}());
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "a.csv").string();
  std::ofstream(path) << describe(make_schedule("zb_v", 3, 2, 5));
  BOOST_TEST(equal(read_schedule(path), make_schedule("zb_v", 3, 2, 5)));
  std::ofstream(path) << "0F0\n";
  check_error<ScheduleError>([&] { read_schedule(path); }, {"a.csv", "line 1", "no backward"});
  check_error<FileError>([&] { read_schedule((folder / "b.csv").string()); }, {"b.csv"});
  check_error<Error>([&] { read_schedule(folder.string()); }, {folder.string()});
  const std::string pipe = (folder / "pipe.csv").string();
  BOOST_REQUIRE_EQUAL(::mkfifo(pipe.c_str(), 0600), 0);
  check_error<ScheduleError>([&] { read_schedule(pipe); }, {"pipe.csv", "no regular file"});  // nobody ever writes to it
  std::ofstream(path).close();
  std::filesystem::resize_file(path, (uintmax_t{64} << 20) + 1);  // a hole
  check_error<ScheduleError>([&] { read_schedule(path); }, {"a.csv", "67108865 bytes", "67108864"});
  std::filesystem::remove_all(folder);
}

BOOST_AUTO_TEST_SUITE_END()
