// A run folder: one process at a time, a record that a resumed run continues to the byte.
#include "run/run_folder.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "check.h"
#include "run/scratch.h"
#include "runtime/faulty_file_system.h"

using namespace quire;
using quire::test::check_error;
using quire::test::Scratch;

namespace {

Config some_config(const std::vector<std::string>& overrides = {}) {
  return parse_config("[data]\ndataset_path = \"text.txt\"\n[train]\nseq_len = 64\n", "some.toml", "/folder", overrides);
}

StepMetrics numbered_metrics(int64_t step) {
  std::mt19937_64 random(static_cast<uint64_t>(step));
  StepMetrics m;
  m.step = step;
  m.loss = static_cast<double>(random()) * 1e-19;
  m.tokens = 64;
  return m;
}

std::string record_of(const Scratch& scratch, const std::string& run) { return read_text(disk(), scratch.path(run + "/metrics.jsonl")); }

}  // namespace

BOOST_AUTO_TEST_SUITE(run_folder)

BOOST_AUTO_TEST_CASE(a_folder_in_use_is_refused_with_the_process_named) {
  const Scratch scratch;
  const std::string path = scratch.path("deep/run");
  {
    const RunFolder folder(path);
    check_error<StateError>([&] { RunFolder second(path); }, {"[run folder]", "'" + path + "' is in use by process " + std::to_string(::getpid()) + " on "});
    const RunFolder other(scratch.path("another"));  // control: it is this folder that is refused
  }
  const RunFolder again(path);
}

BOOST_AUTO_TEST_CASE(the_lock_of_a_killed_process_is_free) {
  const Scratch scratch;
  int ready[2];
  BOOST_REQUIRE_EQUAL(::pipe(ready), 0);
  const pid_t child = ::fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    const RunFolder folder(scratch.path("run"));
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char byte;
  BOOST_REQUIRE_EQUAL(::read(ready[0], &byte, 1), 1);
  check_error<StateError>([&] { RunFolder second(scratch.path("run")); }, {"process " + std::to_string(child) + " on "});
  ::kill(child, SIGKILL);
  BOOST_REQUIRE_EQUAL(::waitpid(child, nullptr, 0), child);
  BOOST_CHECK_NO_THROW(RunFolder(scratch.path("run")));
  ::close(ready[0]);
  ::close(ready[1]);
}

BOOST_AUTO_TEST_CASE(a_folder_that_can_not_be_made_is_refused) {
  const Scratch scratch;
  std::ofstream(scratch.path("file")) << "x";
  check_error<FileError>([&] { RunFolder folder(scratch.path("file/run")); }, {"file/run"});
}

BOOST_AUTO_TEST_CASE(the_config_is_kept_and_guards_the_run) {
  const Scratch scratch;
  RunFolder folder(scratch.path("run"));
  BOOST_TEST(!stored_config(folder.path()).has_value());
  BOOST_TEST(!folder.store_config(some_config()));
  BOOST_TEST((stored_config(folder.path()).value() == some_config()));
  BOOST_TEST(folder.store_config(some_config({"train.max_steps=7", "run.threads=2"})));
  BOOST_TEST(stored_config(folder.path())->train.max_steps == 7);
  check_error<ConfigError>([&] { folder.store_config(some_config({"train.seq_len=32"})); }, {"train.seq_len is 32", "has 64"});
  BOOST_TEST(stored_config(folder.path())->train.seq_len == 64);
}

BOOST_AUTO_TEST_CASE(a_damaged_config_names_the_file) {
  const Scratch scratch;
  RunFolder folder(scratch.path("run"));
  for (const std::string text : {"[tra", "[train]\nseq_len = 0\n", ""}) {
    write_atomically(disk(), folder.file("config.toml"), text);
    check_error<ConfigError>([&] { folder.store_config(some_config()); }, {"run/config.toml"});
  }
}

BOOST_AUTO_TEST_CASE(choices_are_kept) {
  const Scratch scratch;
  RunFolder folder(scratch.path("run"));
  BOOST_TEST(folder.choices().empty());
  const std::map<std::string, std::string> choices = {{"kernel.matmul", "packed"}, {"instruction_set", "avx2"}, {"odd \"name\"", "\n"}};
  folder.store_choices(choices);
  BOOST_TEST((folder.choices() == choices));
  for (const std::string text : {"", "[]", "{\"a\": 1}", "{\"a\""}) {
    write_atomically(disk(), folder.file("choices.json"), text);
    check_error<DataError>([&] { folder.choices(); }, {"choices.json"});
  }
}

BOOST_AUTO_TEST_CASE(a_resumed_record_equals_that_of_a_run_that_never_stopped) {
  const Scratch scratch;
  RunFolder whole(scratch.path("whole"));
  for (int64_t step = 1; step <= 20; ++step) whole.append_metrics(numbered_metrics(step));
  for (int64_t checkpoint = 0; checkpoint <= 12; ++checkpoint) {
    const std::string name = "stopped" + std::to_string(checkpoint);
    {
      RunFolder first(scratch.path(name));
      BOOST_TEST(first.truncate_metrics_after(0) == 0);
      for (int64_t step = 1; step <= 12; ++step) first.append_metrics(numbered_metrics(step));
    }
    const std::string torn = to_json(numbered_metrics(13)).substr(0, static_cast<size_t>(checkpoint) * 3);
    std::ofstream(scratch.path(name + "/metrics.jsonl"), std::ios::app) << torn;  // killed in the middle of a write
    RunFolder second(scratch.path(name));
    BOOST_TEST(second.truncate_metrics_after(checkpoint) == checkpoint);
    for (int64_t step = checkpoint + 1; step <= 20; ++step) second.append_metrics(numbered_metrics(step));
    BOOST_TEST(record_of(scratch, name) == record_of(scratch, "whole"));
  }
  RunFolder careless(scratch.path("careless"));  // control: without dropping the steps after the checkpoint the record differs
  for (const int64_t step : {1, 2, 3, 2, 3, 4}) careless.append_metrics(numbered_metrics(step));
  BOOST_TEST(record_of(scratch, "careless") != record_of(scratch, "whole").substr(0, record_of(scratch, "careless").size()));
}

BOOST_AUTO_TEST_CASE(a_start_that_is_refused_leaves_no_folder_and_one_that_is_not_does) {
  const Scratch scratch;
  const std::string path = scratch.path("many/runs/run");
  const auto begin = [&](bool goes_well) {
    RunFolder folder(path);
    folder.remove_without_config();
    write_atomically(disk(), folder.file("log.txt"), "a line\n");
    if (goes_well) folder.store_config({});
  };
  begin(false);
  BOOST_TEST(!disk().exists(scratch.path("many")));
  disk().make_directories(scratch.path("many"));
  begin(false);
  BOOST_TEST(!disk().exists(scratch.path("many/runs")));
  BOOST_TEST(disk().exists(scratch.path("many")));
  begin(true);
  BOOST_TEST(disk().exists(path + "/config.toml"));
  begin(false);  // a later start that is refused takes nothing of an earlier one
  BOOST_TEST(disk().exists(path + "/config.toml"));
  disk().remove_all(path);
  disk().make_directories(path);  // nor a folder that somebody else made
  begin(false);
  BOOST_TEST(disk().exists(path + "/log.txt"));
}

BOOST_AUTO_TEST_CASE(truncating_in_the_middle_of_a_run_goes_on_in_the_new_file) {
  const Scratch scratch;
  RunFolder folder(scratch.path("run"));
  for (int64_t step = 1; step <= 5; ++step) folder.append_metrics(numbered_metrics(step));
  BOOST_TEST(folder.truncate_metrics_after(3) == 3);
  folder.append_metrics(numbered_metrics(4));
  const std::vector<StepMetrics> record = read_metrics(disk(), folder.file("metrics.jsonl"));
  BOOST_TEST(record.size() == 4u);
  BOOST_TEST((record.back() == numbered_metrics(4)));
}

BOOST_AUTO_TEST_CASE(a_damaged_record_is_refused_and_left_as_it_is) {
  const Scratch scratch;
  RunFolder folder(scratch.path("run"));
  const std::string text = to_json(numbered_metrics(1)) + "\nbroken\n";
  write_atomically(disk(), folder.file("metrics.jsonl"), text);
  check_error<DataError>([&] { folder.truncate_metrics_after(0); }, {"metrics.jsonl:2]"});
  BOOST_TEST(record_of(scratch, "run") == text);
}

BOOST_AUTO_TEST_CASE(a_crash_while_truncating_leaves_the_old_record_or_the_new) {
  const Scratch scratch;  // for the lock
  FaultyFileSystem before;
  std::string old_text, new_text;
  {
    RunFolder folder(scratch.path("run"), before);
    for (int64_t step = 1; step <= 6; ++step) folder.append_metrics(numbered_metrics(step));
    folder.sync_metrics();
    old_text = read_text(before, folder.file("metrics.jsonl"));
    new_text = old_text.substr(0, old_text.find(to_json(numbered_metrics(4))));
  }
  int64_t seen_old = 0, seen_new = 0;
  for (int64_t operation = 0;; ++operation) {
    const std::unique_ptr<FaultyFileSystem> fs = before.copy();
    bool died = false;
    {
      RunFolder folder(scratch.path("run"), *fs);
      fs->set_faults({.die_at = operation});
      try {
        folder.truncate_metrics_after(3);
      } catch (const PowerLoss&) {
        died = true;
      }
    }
    for (const CrashKind kind : {CrashKind::everything, CrashKind::synced_only, CrashKind::names_first, CrashKind::contents_first, CrashKind::random}) {
      const std::string text = read_text(*fs->crash(kind, static_cast<uint64_t>(operation)), scratch.path("run/metrics.jsonl"));
      BOOST_TEST((text == old_text || text == new_text));
      ++(text == old_text ? seen_old : seen_new);
    }
    if (!died) break;
  }
  BOOST_TEST(seen_old > 0);
  BOOST_TEST(seen_new > 0);
}

BOOST_AUTO_TEST_CASE(synced_lines_survive_a_power_loss) {
  for (const bool swallowed : {false, true}) {  // control: where syncing does nothing, lines are lost
    const Scratch scratch;
    FaultyFileSystem fs;
    fs.set_faults({.swallow_sync = swallowed});
    RunFolder folder(scratch.path("run"), fs);
    for (int64_t step = 1; step <= 3; ++step) folder.append_metrics(numbered_metrics(step));
    folder.sync_metrics();
    const std::unique_ptr<FaultyFileSystem> after = fs.crash(CrashKind::synced_only);
    const bool whole = after->exists(folder.file("metrics.jsonl")) && read_metrics(*after, folder.file("metrics.jsonl")).size() == 3;
    BOOST_TEST(whole == !swallowed);
  }
}

BOOST_AUTO_TEST_CASE(a_full_disk_is_an_error_and_keeps_the_record) {
  const Scratch scratch;
  FaultyFileSystem fs;
  RunFolder folder(scratch.path("run"), fs);
  for (int64_t step = 1; step <= 3; ++step) folder.append_metrics(numbered_metrics(step));
  const std::string text = read_text(fs, folder.file("metrics.jsonl"));
  fs.set_faults({.capacity = fs.used()});
  check_error<FileError>([&] { folder.append_metrics(numbered_metrics(4)); }, {"metrics.jsonl", "No space left"});
  check_error<FileError>([&] { folder.truncate_metrics_after(1); }, {"No space left"});
  check_error<FileError>([&] { folder.store_choices({{"a", "b"}}); }, {"No space left"});
  fs.set_faults({});
  BOOST_TEST(read_text(fs, folder.file("metrics.jsonl")).starts_with(text));
  BOOST_TEST(folder.truncate_metrics_after(2) == 2);
}

BOOST_AUTO_TEST_SUITE_END()
