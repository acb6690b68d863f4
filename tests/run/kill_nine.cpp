// kill -9 at enumerated points and at random: the next start always resumes, and the training ends with the bits of one that was never killed.
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "run/training_run.h"

using namespace quire;
using namespace quire::test;

namespace {

/// The machine's file system, which kills its own process at operation `fatal`.
class KillingFileSystem final : public FileSystem {
 public:
  explicit KillingFileSystem(int64_t fatal) : left_(fatal) {}

  std::unique_ptr<File> open(const std::string& path) override { return disk().open(path); }
  std::unique_ptr<File> create(const std::string& path) override { return count(), wrap(disk().create(path)); }
  std::unique_ptr<File> append(const std::string& path) override { return count(), wrap(disk().append(path)); }
  bool exists(const std::string& path) override { return disk().exists(path); }
  std::vector<std::string> list(const std::string& directory) override { return disk().list(directory); }
  void make_directories(const std::string& path) override { count(), disk().make_directories(path); }
  void rename(const std::string& from, const std::string& to) override { count(), disk().rename(from, to); }
  void remove_all(const std::string& path) override { count(), disk().remove_all(path); }
  void sync_directory(const std::string& path) override { count(), disk().sync_directory(path); }

 private:
  class KillingFile final : public File {
   public:
    KillingFile(std::unique_ptr<File> file, KillingFileSystem& fs) : file_(std::move(file)), fs_(fs) {}
    void write(std::span<const std::byte> bytes) override {
      if (fs_.left_ == 1) file_->write(bytes.first(bytes.size() / 2));  // dies in the middle of it
      fs_.count();
      file_->write(bytes);
    }
    void write_at(int64_t offset, std::span<const std::byte> bytes) override { fs_.count(), file_->write_at(offset, bytes); }
    void read_at(int64_t offset, std::span<std::byte> bytes) const override { file_->read_at(offset, bytes); }
    int64_t size() const override { return file_->size(); }
    void sync() override { fs_.count(), file_->sync(); }

   private:
    std::unique_ptr<File> file_;
    KillingFileSystem& fs_;
  };
  std::unique_ptr<File> wrap(std::unique_ptr<File> file) { return std::make_unique<KillingFile>(std::move(file), *this); }
  void count() {
    if (--left_ == 0) ::kill(::getpid(), SIGKILL);
  }
  std::atomic<int64_t> left_;
};

/// Runs `body` in a process of its own and returns its wait status. Called while this process has one thread.
template <class Body>
int in_child(Body&& body) {
  const pid_t child = ::fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    int status = 0;
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      status = 1;
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(kill_nine)

BOOST_AUTO_TEST_CASE(at_every_operation_of_starting_and_saving) {
  Scratch scratch;
  const std::vector<std::string> overrides{"checkpoint.interval=1", "checkpoint.keep_last_n=2", "train.max_steps=3", "eval.interval=0"};
  const Config whole = small_config(scratch, "whole", overrides);
  BOOST_TEST(in_child([&] { run_training(whole); }) == 0);
  int killed = 0;
  // Every operation of the first start and save, then every third.
  for (int64_t fatal = 1;; fatal += fatal < 40 ? 1 : 3) {
    const Config config = small_config(scratch, fmt::format("killed-{}", fatal), overrides);
    const int status = in_child([&] {
      KillingFileSystem fs(fatal);
      run_training(config, -1, fs);
    });
    if (status == 0) break;  // more operations than the run has
    BOOST_TEST(WIFSIGNALED(status));
    ++killed;
    BOOST_TEST(in_child([&] { run_training(config); }) == 0, "the start after a kill at operation " << fatal << " failed");
    check_same_training(whole, config, fmt::format("killed at operation {}", fatal));
    std::filesystem::remove_all(config.run.dir);
  }
  BOOST_TEST(killed >= 50);
}

BOOST_AUTO_TEST_CASE(at_random_moments) {
  Scratch scratch;
  std::mt19937_64 random(3);
  const std::vector<std::string> overrides{"checkpoint.interval=1", "train.max_steps=60", "eval.interval=20"};
  const Config whole = small_config(scratch, "whole", overrides), config = small_config(scratch, "killed", overrides);
  BOOST_TEST(in_child([&] { run_training(whole); }) == 0);
  int killed = 0;
  for (int attempt = 0; attempt < 50; ++attempt) {
    const pid_t child = ::fork();
    BOOST_REQUIRE(child >= 0);
    if (child == 0) {
      try {
        run_training(config);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20000 + random() % 150000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    BOOST_TEST((WIFSIGNALED(status) || WEXITSTATUS(status) == 0), "a start after a kill failed");
    killed += WIFSIGNALED(status);
  }
  BOOST_TEST(in_child([&] { run_training(config); }) == 0);
  check_same_training(whole, config, fmt::format("killed {} times", killed));
}

BOOST_AUTO_TEST_SUITE_END()
