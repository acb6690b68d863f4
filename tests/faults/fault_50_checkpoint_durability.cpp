// FAULTS.md entry 50: a checkpoint was called the latest before it was durable. Here: whatever dies, fills or fails at whatever
// operation, the latest complete checkpoint loads, and it is the one before or the new one. (Its other half, that any layout
// loads any checkpoint, is tested in tests/parallel/checkpoint.cpp.)
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "check.h"
#include "parallel/checkpoint.h"
#include "runtime/faulty_file_system.h"

using namespace quire;

namespace {

/// What a run saves at a step, recognisable by step.
std::vector<CheckpointTensor> tensors_of(Rank& rank, int64_t step) {
  std::vector<CheckpointTensor> tensors;
  for (const char* kind : {"parameter", "master", "moment1"}) {
    const std::vector<float> values(6, static_cast<float>(step));
    tensors.push_back({"weight", kind, {2, 3}, {0, 0}, Tensor::from<float>(rank, {2, 3}, values)});
  }
  return tensors;
}

void save(FileSystem& fs, Rank& rank, int64_t step, int64_t keep = 1) {
  save_checkpoint(fs, "run", step, tensors_of(rank, step), "state " + std::to_string(step), keep);
}

/// The step that a resumed run would start from, every value checked; -1 where there is none, -2 where a checkpoint is taken for
/// complete but is wrong.
int64_t resumed_step(FileSystem& fs, Rank& rank, const std::string& run = "run", CheckpointCheck check = CheckpointCheck::contents) {
  const CheckpointSearch found = latest_checkpoint(fs, run, check);
  if (!found.found()) return -1;
  try {
    CheckpointReader reader(fs, found.folder, check);
    if (reader.state() != "state " + std::to_string(found.step)) return -2;
    for (const CheckpointTensor& expected : tensors_of(rank, found.step)) {
      const Tensor read = Tensor::zeros(rank, {2, 3}, DType::f32);
      reader.read(expected.kind, expected.name, read);
      if (read.to_vector<float>() != expected.local.to_vector<float>()) return -2;
    }
  } catch (const Error&) {
    return -2;
  }
  return found.step;
}

struct CrashOutcome {
  int64_t broken = 0, old_seen = 0, new_seen = 0, points = 0;
};

/// Saves `step` over a run that holds `old_step`, dying at every operation; examines what each kind of crash leaves.
CrashOutcome die_everywhere(Rank& rank, int64_t old_step, int64_t step, Faults control, CheckpointCheck check) {
  FaultyFileSystem start;
  save(start, rank, old_step);
  CrashOutcome outcome;
  for (int64_t k = 0;; ++k) {
    const auto fs = start.copy();
    control.die_at = k;
    fs->set_faults(control);
    bool finished = true;
    try {
      save(*fs, rank, step);
    } catch (const PowerLoss&) {
      finished = false;
    }
    for (uint64_t variant = 0; variant < 12; ++variant) {
      const auto after =
          fs->crash(variant < 4 ? static_cast<CrashKind>(variant) : CrashKind::random, 1000 * static_cast<uint64_t>(k) + variant);
      const int64_t found = resumed_step(*after, rank, "run", check);
      outcome.old_seen += found == old_step;
      outcome.new_seen += found == step;
      bool right = found == step || (!finished && found == old_step);
      if (right) {  // and the run goes on from there: the next save leaves exactly one checkpoint and no leftovers
        save(*after, rank, step + 7);
        right = resumed_step(*after, rank) == step + 7 && after->list("run/checkpoints").size() == 1;
      }
      outcome.broken += !right;
    }
    ++outcome.points;
    if (finished) return outcome;
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_50)

BOOST_AUTO_TEST_CASE(a_crash_at_any_operation_leaves_the_old_or_the_new_checkpoint) {
  Rank rank;
  for (const CheckpointCheck check : {CheckpointCheck::contents, CheckpointCheck::sizes}) {
    const CrashOutcome outcome = die_everywhere(rank, 10, 20, {}, check);
    BOOST_TEST(outcome.broken == 0);
    BOOST_TEST(outcome.points > 30);
    BOOST_TEST(outcome.old_seen > 100);
    BOOST_TEST(outcome.new_seen > 20);
  }
}

BOOST_AUTO_TEST_CASE(controls_without_syncing_are_caught) {
  Rank rank;
  for (const CheckpointCheck check : {CheckpointCheck::contents, CheckpointCheck::sizes}) {
    BOOST_TEST(die_everywhere(rank, 10, 20, {.swallow_sync = true}, check).broken > 0);
    BOOST_TEST(die_everywhere(rank, 10, 20, {.swallow_sync_directory = true}, check).broken > 0);
  }
}

BOOST_AUTO_TEST_CASE(saving_the_same_step_again_is_as_safe) {
  Rank rank;
  BOOST_TEST(die_everywhere(rank, 20, 20, {}, CheckpointCheck::contents).broken == 0);
}

BOOST_AUTO_TEST_CASE(the_first_checkpoint_is_whole_or_not_there) {
  Rank rank;
  for (int64_t k = 0;; ++k) {
    FaultyFileSystem fs;
    fs.set_faults({.die_at = k});
    bool finished = true;
    try {
      save_checkpoint(fs, "runs/of/today", 10, tensors_of(rank, 10), "state 10", 1);  // the folders above are new too
    } catch (const PowerLoss&) {
      finished = false;
    }
    for (uint64_t variant = 0; variant < 12; ++variant) {
      const auto after = fs.crash(variant < 4 ? static_cast<CrashKind>(variant) : CrashKind::random, variant);
      const int64_t found = resumed_step(*after, rank, "runs/of/today");
      BOOST_TEST_REQUIRE((found == 10 || (!finished && found == -1)), "after operation " << k << ": " << found);
      BOOST_TEST_REQUIRE(latest_checkpoint(*after, "runs/of/today").damaged.empty());
    }
    if (finished) break;
  }
}

BOOST_AUTO_TEST_CASE(a_killed_process_and_then_a_power_loss_lose_nothing) {
  // The second save sees what the first one left, of which a part was never made durable.
  Rank rank;
  int64_t broken = 0, points = 0;
  for (const int64_t first_step : {20, 10}) {
    FaultyFileSystem start;
    save(start, rank, 10);
    bool first_finished = false;
    for (int64_t k = 0; !first_finished; ++k) {
      const auto killed = start.copy();
      killed->set_faults({.die_at = k});
      try {
        save(*killed, rank, first_step);
        first_finished = true;
      } catch (const PowerLoss&) {
      }
      const int64_t resumed = resumed_step(*killed->copy(), rank), next = resumed + 10;
      BOOST_TEST_REQUIRE((resumed == 10 || resumed == 20));
      for (int64_t second = k % 3;; second += 3) {
        const auto fs = killed->copy();
        fs->set_faults({.die_at = second});
        bool finished = true;
        try {
          save(*fs, rank, next);
        } catch (const PowerLoss&) {
          finished = false;
        }
        for (uint64_t variant = 0; variant < 10; ++variant) {
          const auto after = fs->crash(variant < 4 ? static_cast<CrashKind>(variant) : CrashKind::random,
                                       100 * static_cast<uint64_t>(second) + variant);
          const int64_t found = resumed_step(*after, rank);
          // The first save was killed, so power loss may also take its new checkpoint again, as long as the one before is there.
          broken += finished ? found != next : found != next && found != resumed && found != 10;
          ++points;
        }
        if (finished) break;
      }
    }
  }
  BOOST_TEST(broken == 0);
  BOOST_TEST(points > 5000);
}

BOOST_AUTO_TEST_CASE(a_full_disk_at_any_byte_keeps_the_checkpoint_before) {
  Rank rank;
  FaultyFileSystem start;
  save(start, rank, 10);
  int64_t needed = 0;
  for (int64_t room = 0;; ++room) {
    const auto fs = start.copy();
    fs->set_faults({.capacity = fs->used() + room});
    bool failed = false;
    try {
      save(*fs, rank, 20);
    } catch (const FileError& error) {
      failed = true;
      if (std::string(error.what()).find("No space left") == std::string::npos) BOOST_ERROR(error.what());
    }
    BOOST_TEST_REQUIRE(resumed_step(*fs, rank) == (failed ? 10 : 20));
    BOOST_TEST_REQUIRE(fs->list("run/checkpoints").size() == 1u);  // no leftovers
    if (!failed) {
      needed = room;
      break;
    }
    BOOST_TEST_REQUIRE(fs->used() == start.used());
  }
  BOOST_TEST(needed > 1000);
}

BOOST_AUTO_TEST_CASE(an_error_at_any_operation_keeps_a_whole_checkpoint) {
  Rank rank;
  for (const int64_t step : {20, 10}) {
    FaultyFileSystem start;
    save(start, rank, 10);
    int64_t failures = 0;
    for (int64_t k = 0;; ++k) {
      const auto fs = start.copy();
      fs->set_faults({.fail_at = k});
      try {
        save(*fs, rank, step);
      } catch (const FileError&) {
        ++failures;
      }
      if (fs->operations() <= k) break;
      const int64_t found = resumed_step(*fs, rank);
      BOOST_TEST_REQUIRE((found == 10 || found == step), "operation " << k << ": " << found);
      fs->set_faults({});
      save(*fs, rank, 30);
      BOOST_TEST_REQUIRE(resumed_step(*fs, rank) == 30);
      BOOST_TEST_REQUIRE(fs->list("run/checkpoints").size() == 1u);
    }
    BOOST_TEST(failures > 20);
  }
}

BOOST_AUTO_TEST_CASE(several_ranks_crashing_while_they_save_leave_the_old_or_the_new_checkpoint) {
  Rank rank;
  const std::vector<CheckpointTensor> all = tensors_of(rank, 20);
  const auto save_by_three = [&](FileSystem& fs) {
    begin_checkpoint(fs, "run", 20);
    for (size_t i = 0; i < 3; ++i) write_checkpoint_part(fs, "run", 20, static_cast<int64_t>(i), {all[i]});
    publish_checkpoint(fs, "run", 20, 3, "state 20", 1);
  };
  FaultyFileSystem start;
  save(start, rank, 10);
  for (int64_t k = 0;; ++k) {
    const auto fs = start.copy();
    fs->set_faults({.die_at = k});
    bool finished = true;
    try {
      save_by_three(*fs);
    } catch (const PowerLoss&) {
      finished = false;
    }
    for (uint64_t variant = 0; variant < 8; ++variant) {
      const auto after = fs->crash(variant < 4 ? static_cast<CrashKind>(variant) : CrashKind::random, variant);
      const int64_t found = resumed_step(*after, rank);
      BOOST_TEST_REQUIRE((found == 20 || (!finished && found == 10)), "after operation " << k << ": " << found);
    }
    if (finished) break;
  }
}

namespace {

/// The machine's disk, where the process is killed at operation `kill_at`.
class KillingDisk final : public FileSystem {
 public:
  explicit KillingDisk(int64_t kill_at) : kill_at_(kill_at) {}
  void count() {
    if (operations_++ == kill_at_) ::kill(::getpid(), SIGKILL);
  }
  std::unique_ptr<File> open(const std::string& path) override { return disk().open(path); }
  std::unique_ptr<File> create(const std::string& path) override { return count(), std::make_unique<KillingFile>(*this, disk().create(path)); }
  std::unique_ptr<File> append(const std::string& path) override { return count(), std::make_unique<KillingFile>(*this, disk().append(path)); }
  bool exists(const std::string& path) override { return disk().exists(path); }
  std::vector<std::string> list(const std::string& directory) override { return disk().list(directory); }
  void make_directories(const std::string& path) override { count(), disk().make_directories(path); }
  void rename(const std::string& from, const std::string& to) override { count(), disk().rename(from, to); }
  void remove_all(const std::string& path) override { count(), disk().remove_all(path); }
  void sync_directory(const std::string& path) override { count(), disk().sync_directory(path); }

 private:
  class KillingFile final : public File {
   public:
    KillingFile(KillingDisk& owner, std::unique_ptr<File> file) : owner_(owner), file_(std::move(file)) {}
    void write(std::span<const std::byte> bytes) override { owner_.count(), file_->write(bytes); }
    void write_at(int64_t offset, std::span<const std::byte> bytes) override { owner_.count(), file_->write_at(offset, bytes); }
    void read_at(int64_t offset, std::span<std::byte> bytes) const override { file_->read_at(offset, bytes); }
    int64_t size() const override { return file_->size(); }
    void sync() override { owner_.count(), file_->sync(); }

   private:
    KillingDisk& owner_;
    std::unique_ptr<File> file_;
  };
  int64_t kill_at_, operations_ = 0;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_process_killed_at_any_operation_on_a_real_disk_resumes) {
  Rank rank;
  const std::string run = std::filesystem::temp_directory_path() / ("quire_test_fault_50_" + std::to_string(::getpid()));
  int64_t last = -1, killed = 0;
  for (int64_t k = 0; k < 200; ++k) {
    const int64_t step = 10 * (k + 1);
    const std::vector<CheckpointTensor> tensors = tensors_of(rank, step);
    const pid_t child = ::fork();
    if (child == 0) {
      KillingDisk killing(k);
      try {
        save_checkpoint(killing, run, step, tensors, "state " + std::to_string(step), 1);
      } catch (...) {
        ::_exit(3);
      }
      ::_exit(0);
    }
    int status = 0;
    BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
    BOOST_REQUIRE((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
    const int64_t found = resumed_step(disk(), rank, run);
    BOOST_TEST_REQUIRE((found == step || found == last), "killed at operation " << k << ": " << found);
    last = found;
    if (!WIFSIGNALED(status)) {
      BOOST_TEST(found == step);
      break;
    }
    ++killed;
  }
  BOOST_TEST(killed > 30);
  std::filesystem::remove_all(run);
}

BOOST_AUTO_TEST_SUITE_END()
