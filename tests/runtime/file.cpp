#include "runtime/file.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "check.h"
#include "runtime/faulty_file_system.h"

using namespace quire;
using quire::test::check_error;

namespace {

/// A folder on the machine's disk that goes away.
struct TemporaryFolder {
  std::string path = std::filesystem::temp_directory_path() / ("quire_test_file_" + std::to_string(::getpid()));
  TemporaryFolder() { std::filesystem::create_directories(path); }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
};

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

/// What every file system must do, in `folder`.
void check_contract(FileSystem& fs, const std::string& folder) {
  fs.make_directories(folder + "/a/b");
  fs.make_directories(folder + "/a/b");
  const std::string path = folder + "/a/b/file";
  BOOST_TEST(!fs.exists(path));
  {
    const auto file = fs.create(path);
    file->write(bytes("hello "));
    file->write(bytes("world"));
    BOOST_TEST(file->size() == 11);
    file->write_at(6, bytes("there, all"));
    file->sync();
  }
  fs.sync_directory(folder + "/a/b");
  BOOST_TEST(read_text(fs, path) == "hello there, all");
  fs.append(path)->write(bytes("!"));
  BOOST_TEST(read_bytes(fs, path).size() == 17u);
  {
    const auto file = fs.open(path);
    std::string middle(5, ' ');
    file->read_at(6, std::as_writable_bytes(std::span(middle)));
    BOOST_TEST(middle == "there");
    check_error<DataError>([&] { file->read_at(14, std::as_writable_bytes(std::span(middle))); }, {path, "17", "truncated"});
    check_error<FileError>([&] { file->write(bytes("x")); }, {path});
  }
  fs.create(folder + "/a/other")->write(bytes("old"));
  fs.rename(path, folder + "/a/other");
  BOOST_TEST(read_text(fs, folder + "/a/other") == "hello there, all!");
  BOOST_TEST(fs.list(folder + "/a") == std::vector<std::string>({"b", "other"}), boost::test_tools::per_element());
  BOOST_TEST(fs.list(folder + "/nowhere").empty());
  fs.rename(folder + "/a/b", folder + "/a/c");
  BOOST_TEST(fs.exists(folder + "/a/c"));
  fs.create(folder + "/a/c/x");
  check_error<FileError>([&] { fs.open(folder + "/a"); }, {folder + "/a", "directory"});
  check_error<FileError>([&] { fs.open(folder + "/none"); }, {folder + "/none", "No such file"});
  check_error<FileError>([&] { fs.create(folder + "/none/x"); }, {folder + "/none/x", "No such file"});
  check_error<FileError>([&] { fs.rename(folder + "/none", folder + "/y"); }, {folder + "/none", folder + "/y"});
  check_error<FileError>([&] { fs.sync_directory(folder + "/none"); }, {folder + "/none"});
  check_error<FileError>([&] { fs.make_directories(folder + "/a/other/x"); }, {folder + "/a/other/x"});
  write_atomically(fs, folder + "/a/other", "new");
  write_atomically(fs, folder + "/a/fresh", "");
  BOOST_TEST(read_text(fs, folder + "/a/other") == "new");
  BOOST_TEST(read_text(fs, folder + "/a/fresh").empty());
  BOOST_TEST(fs.list(folder + "/a") == std::vector<std::string>({"c", "fresh", "other"}), boost::test_tools::per_element());
  fs.remove_all(folder + "/a");
  fs.remove_all(folder + "/a");
  BOOST_TEST(!fs.exists(folder + "/a/other"));
  BOOST_TEST(fs.list(folder).empty());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(file)

BOOST_AUTO_TEST_CASE(the_disk_keeps_the_contract) {
  const TemporaryFolder folder;
  check_contract(disk(), folder.path);
}

BOOST_AUTO_TEST_CASE(the_faulty_file_system_keeps_the_contract_without_faults) {
  FaultyFileSystem fs;
  fs.make_directories("/top");
  check_contract(fs, "/top");
}

BOOST_AUTO_TEST_CASE(a_full_disk_is_an_error_with_the_systems_reason) {
  if (!disk().exists("/dev/full")) return;
  const auto file = disk().append("/dev/full");
  check_error<FileError>([&] { file->write(bytes("x")); }, {"/dev/full", "No space left on device"});
}

BOOST_AUTO_TEST_CASE(appended_files_are_not_written_at_offsets) {
  const TemporaryFolder folder;
  const auto file = disk().append(folder.path + "/log");
  check_error<StateError>([&] { file->write_at(0, bytes("x")); }, {"log"});
}

BOOST_AUTO_TEST_CASE(unsynced_contents_and_names_are_lost) {
  FaultyFileSystem fs;
  fs.make_directories("d");
  fs.sync_directory(".");
  const auto file = fs.create("d/x");
  file->write(bytes("one"));
  file->sync();
  BOOST_TEST(!fs.crash(CrashKind::synced_only)->exists("d/x"));  // the name is not durable
  BOOST_TEST(read_text(*fs.crash(CrashKind::names_first), "d/x") == "one");
  fs.sync_directory("d");
  file->write(bytes("two"));
  BOOST_TEST(read_text(*fs.crash(CrashKind::synced_only), "d/x") == "one");
  BOOST_TEST(read_text(*fs.crash(CrashKind::contents_first), "d/x") == "onetwo");
  BOOST_TEST(read_text(*fs.crash(CrashKind::everything), "d/x") == "onetwo");
  fs.rename("d/x", "d/y");
  BOOST_TEST(fs.crash(CrashKind::synced_only)->list("d") == std::vector<std::string>({"x"}), boost::test_tools::per_element());
  BOOST_TEST(read_text(*fs.crash(CrashKind::names_first), "d/y") == "one");
  fs.remove_all("d/y");
  BOOST_TEST(fs.crash(CrashKind::synced_only)->exists("d/x"));
  BOOST_TEST(!fs.crash(CrashKind::names_first)->exists("d/x"));
  bool old_seen = false, gone_seen = false;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto after = fs.crash(CrashKind::random, seed);
    old_seen = old_seen || after->exists("d/x");
    gone_seen = gone_seen || after->list("d").empty();
    BOOST_TEST(after->list("d").size() <= 1u);  // a rename is atomic
  }
  BOOST_TEST(old_seen);
  BOOST_TEST(gone_seen);
}

BOOST_AUTO_TEST_CASE(faults_happen_where_asked) {
  FaultyFileSystem fs;
  const auto file = fs.create("x");
  fs.set_faults({.fail_at = 1});
  file->write(bytes("a"));
  check_error<FileError>([&] { file->write(bytes("b")); }, {"'x'", "Input/output"});
  file->write(bytes("c"));
  BOOST_TEST(read_text(fs, "x") == "ac");
  BOOST_TEST(fs.operations() == 3);
  fs.set_faults({.die_at = 0});
  BOOST_CHECK_THROW(file->write(bytes("1234")), PowerLoss);
  BOOST_CHECK_THROW(fs.exists("x"), PowerLoss);
  BOOST_CHECK_THROW(file->sync(), PowerLoss);
  BOOST_TEST(read_text(*fs.crash(CrashKind::everything), "x") == "ac12");
  fs.set_faults({.capacity = fs.used() + 3});
  check_error<FileError>([&] { file->write(bytes("12345")); }, {"'x'", "No space left"});
  BOOST_TEST(read_text(fs, "x") == "ac12123");
  check_error<FileError>([&] { fs.create("y"); }, {"'y'", "No space left"});
  fs.remove_all("x");
  fs.create("y");
}

/// Dies at every operation of replacing a file and returns how many crashed states hold neither the old nor the new content.
static int broken_replacements(const Faults& control, int& old_count, int& new_count) {
  FaultyFileSystem start;
  write_atomically(start, "state", "the old content");
  start.sync_directory(".");
  int broken = 0;
  for (int64_t k = 0;; ++k) {
    const auto fs = start.copy();
    Faults faults = control;
    faults.die_at = k;
    fs->set_faults(faults);
    bool finished = true;
    try {
      write_atomically(*fs, "state", "the new content, which is longer");
    } catch (const PowerLoss&) {
      finished = false;
    }
    for (uint64_t variant = 0; variant < 24; ++variant) {
      const auto after = fs->crash(variant < 4 ? static_cast<CrashKind>(variant) : CrashKind::random, variant);
      const std::string text = after->exists("state") ? read_text(*after, "state") : "";
      const bool is_new = text == "the new content, which is longer", is_old = text == "the old content";
      old_count += is_old;
      new_count += is_new;
      broken += finished ? !is_new : !is_new && !is_old;
    }
    if (finished) return broken;
  }
}

BOOST_AUTO_TEST_CASE(replacing_a_file_is_atomic_at_every_crash_point) {
  int old_count = 0, new_count = 0;
  BOOST_TEST(broken_replacements({}, old_count, new_count) == 0);
  BOOST_TEST(old_count > 0);
  BOOST_TEST(new_count > 0);
  // Controls: without syncing the contents, or the name, the same test must fail.
  BOOST_TEST(broken_replacements({.swallow_sync = true}, old_count, new_count) > 0);
  BOOST_TEST(broken_replacements({.swallow_sync_directory = true}, old_count, new_count) > 0);
}

BOOST_AUTO_TEST_CASE(a_failed_replacement_keeps_the_old_file_and_leaves_nothing) {
  for (int64_t room = 0; room < 100; ++room) {
    FaultyFileSystem fs;
    write_atomically(fs, "state", "old");
    fs.set_faults({.capacity = fs.used() + room});
    bool failed = false;
    try {
      write_atomically(fs, "state", "a new content");
    } catch (const FileError& error) {
      failed = true;
    }
    BOOST_TEST(failed == (room < FaultyFileSystem::name_bytes + 13));
    BOOST_TEST(read_text(fs, "state") == (failed ? "old" : "a new content"));
    BOOST_TEST(fs.list(".").size() == 1u);
  }
}

BOOST_AUTO_TEST_SUITE_END()
