// FAULTS.md entry 50 for several ranks: saving when something fails on one of them, and ranks that die: every rank ends with an error, the checkpoint before stays whole,
// and the next start goes on with the bits of a run in which nothing failed.
#include "run/rank_options.h"
#include "run/training_run.h"
#include "run/training_state.h"
#include "runtime/faulty_file_system.h"

using namespace quire;
using namespace quire::test;

namespace {

/// One rank's view of a file system that all ranks share. Operations that change something are counted from 0 after `arm`.
class RankFileSystem final : public FileSystem {
 public:
  enum class Fault { none, once, full, death };  ///< operation `at` alone fails; nothing fits from it on; the rank dies there
  explicit RankFileSystem(FileSystem* shared = nullptr) : shared_(shared) {}
  void share(FileSystem& shared) { shared_ = &shared; }
  void arm(Fault fault, int64_t at) {
    fault_ = fault;
    at_ = at;
    operations_ = 0;
    hit_ = false;
  }
  int64_t operations() const { return operations_; }
  bool hit() const { return hit_; }

  std::unique_ptr<File> open(const std::string& path) override { return shared_->open(path); }
  std::unique_ptr<File> create(const std::string& path) override { return count(true), wrap(shared_->create(path)); }
  std::unique_ptr<File> append(const std::string& path) override { return count(true), wrap(shared_->append(path)); }
  bool exists(const std::string& path) override { return shared_->exists(path); }
  std::vector<std::string> list(const std::string& directory) override { return shared_->list(directory); }
  void make_directories(const std::string& path) override { count(true), shared_->make_directories(path); }
  void rename(const std::string& from, const std::string& to) override { count(false), shared_->rename(from, to); }
  void remove_all(const std::string& path) override { count(false), shared_->remove_all(path); }
  void sync_directory(const std::string& path) override { count(false), shared_->sync_directory(path); }

 private:
  class CountedFile final : public File {
   public:
    CountedFile(std::unique_ptr<File> file, RankFileSystem& fs) : file_(std::move(file)), fs_(fs) {}
    void write(std::span<const std::byte> bytes) override { fs_.count(true), file_->write(bytes); }
    void write_at(int64_t offset, std::span<const std::byte> bytes) override { fs_.count(true), file_->write_at(offset, bytes); }
    void read_at(int64_t offset, std::span<std::byte> bytes) const override { file_->read_at(offset, bytes); }
    int64_t size() const override { return file_->size(); }
    void sync() override { fs_.count(false), file_->sync(); }

   private:
    std::unique_ptr<File> file_;
    RankFileSystem& fs_;
  };
  std::unique_ptr<File> wrap(std::unique_ptr<File> file) { return std::make_unique<CountedFile>(std::move(file), *this); }
  void count(bool needs_room) {
    const int64_t number = operations_++;
    if (fault_ == Fault::none || number < at_) return;
    if (fault_ == Fault::once && number > at_) return;
    if (fault_ == Fault::full && !needs_room) return;
    hit_ = true;
    if (fault_ == Fault::death) throw RankDied{};
    fail<FileError>("file", "{}", fault_ == Fault::full ? "No space left on device" : "Input/output error");
  }

  FileSystem* shared_;
  Fault fault_ = Fault::none;
  int64_t at_ = 0, operations_ = 0;
  bool hit_ = false;
};

using Fault = RankFileSystem::Fault;

Config stages_config(const Scratch& scratch, const std::string& run, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"distributed.pp=2", "distributed.pp_layers=[1, 1]", "model.tie_embeddings=false", "model.dim=8", "model.head_dim=4", "model.ffn_hidden_dim=16", "eval.interval=0", "data.eval_fraction=0",
                                       "distributed.watchdog_seconds=60"});
  return small_config(scratch, run, overrides);
}

/// Names in the folder of checkpoints that are no published checkpoint.
std::vector<std::string> leftovers(FileSystem& fs, const Config& config) {
  std::vector<std::string> names = fs.list(config.run.dir + "/checkpoints");
  std::erase_if(names, [](const std::string& name) { return name.find('.') == std::string::npos; });
  return names;
}

/// What a save with a fault on one rank came to.
struct Attempt {
  int failing = 0;
  Fault fault = Fault::none;
  int64_t at = 0;
  bool hit = false;
  std::vector<RankEnd> ends = std::vector<RankEnd>(2);
  int64_t found = -1;                    ///< step of the newest checkpoint afterwards
  std::vector<std::string> damaged, left;
  int64_t resumed = -1;                  ///< step at which a start finds itself then
  std::vector<std::string> left_later;   ///< after its next save
  std::map<std::string, std::vector<std::byte>> saved_later;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_50_ranks)

BOOST_AUTO_TEST_CASE(a_fault_of_one_rank_at_any_file_operation_of_a_save_ends_all_ranks_and_keeps_a_whole_checkpoint) {
  Scratch scratch;
  const Config config = stages_config(scratch, "run");
  const std::string run = config.run.dir;
  std::vector<Attempt> attempts;
  std::map<std::string, std::vector<std::byte>> wanted;
  FaultyFileSystem start;
  std::unique_ptr<FaultyFileSystem> store;
  std::array<RankFileSystem, 2> views;
  Attempt attempt;
  bool more = true;
  run_local(2, {}, [&](Communicator& world) {
    Rank rank(rank_options(config));
    Trainer trainer(rank, config, &world);
    const std::shared_ptr<const Corpus> corpus = open_data(config).train;
    Loader loader(corpus, trainer.loader_settings(), trainer.share());
    RankFileSystem& view = views[static_cast<size_t>(world.rank())];
    const auto save = [&](FileSystem& fs) { save_training_state(fs, run, trainer, loader.state(), *corpus, 1); };
    trainer.step(loader.next_step());
    save(start);
    trainer.step(loader.next_step());
    Trainer later(rank, config, &world);
    while (true) {
      world.barrier();
      if (world.rank() == 0) {
        store = start.copy();
        for (RankFileSystem& each : views) {
          each.share(*store);
          each.arm(Fault::none, 0);
        }
        views[static_cast<size_t>(attempt.failing)].arm(attempt.fault, attempt.at);
      }
      world.barrier();
      RankEnd& end = attempt.ends[static_cast<size_t>(world.rank())];
      end = end_of([&] { save(view); });
      world.barrier();
      if (world.rank() == 0) {
        attempt.hit = views[static_cast<size_t>(attempt.failing)].hit();
        const CheckpointSearch search = latest_checkpoint(*store, run);
        attempt.found = search.step;
        attempt.damaged = search.damaged;
        attempt.left = leftovers(*store, config);
        for (RankFileSystem& each : views) each.arm(Fault::none, 0);
      }
      world.barrier();
      load_training_state(view, run, "", rank, later);
      save_training_state(view, run, later, loader.state(), *corpus, 1);
      world.barrier();
      if (world.rank() == 0) {
        attempt.resumed = later.steps_done();
        attempt.left_later = leftovers(*store, config);
        if (attempt.resumed == 2) attempt.saved_later = checkpoint_of(config, *store);
        attempts.push_back(attempt);
        // The next one: every operation of both ranks, until it is beyond the last.
        if (attempt.fault != Fault::none && attempt.hit) {
          attempt.at += attempt.fault == Fault::once ? 1 : 2;
        } else {
          attempt.at = 0;
          attempt.fault = static_cast<Fault>(static_cast<int>(attempt.fault) + 1);
          if (attempt.fault > Fault::death) {
            more = attempt.failing == 0;
            attempt.failing = 1;
            attempt.fault = Fault::once;
          }
        }
        if (wanted.empty()) wanted = attempts.front().saved_later;
      }
      world.barrier();
      if (!more) break;
    }
  });
  std::map<std::pair<int, Fault>, int> hits;
  int kept = 0, published = 0;
  for (const Attempt& a : attempts) {
    const std::string what = fmt::format("rank {}, fault {}, operation {}", a.failing, static_cast<int>(a.fault), a.at);
    const RankEnd &failing = a.ends[static_cast<size_t>(a.failing)], &other = a.ends[static_cast<size_t>(1 - a.failing)];
    BOOST_TEST(a.damaged.empty(), what);
    BOOST_TEST(a.left_later.empty(), what);
    BOOST_TEST(a.resumed == a.found, what);
    if (!a.hit) {
      BOOST_TEST((failing.error == "" && other.error == ""), what << ": " << failing.text << other.text);
      BOOST_TEST(a.found == 2, what);
    } else if (failing.error.empty()) {
      // The folders above may be another's: that they can not be synced is no reason not to save.
      BOOST_TEST((a.failing == 0 && a.fault == Fault::once && a.at < 3 && a.found == 2), what);
    } else {
      ++hits[{a.failing, a.fault}];
      BOOST_TEST(other.aborted(), what << ": " << other.error << " " << other.text);
      BOOST_TEST(other.text.find("step 2") != std::string::npos, other.text);
      BOOST_TEST(failing.error == (a.fault == Fault::death ? "RankDied" : "FileError"), what << ": " << failing.error << " " << failing.text);
      BOOST_TEST((a.found == 1 || (a.found == 2 && a.failing == 0)), what << ": " << a.found);
      (a.found == 1 ? kept : published) += 1;
      // A rank that is alive leaves nothing but what it could not delete.
      if (a.fault == Fault::full) BOOST_TEST(a.left.empty(), what << ": " << a.left.size());
      if (a.found == 1 && a.fault == Fault::once) BOOST_TEST(a.left.empty(), what << ": " << a.left.size());
    }
    if (a.resumed == 2) BOOST_TEST((a.saved_later == wanted), what);
  }
  // Control: the enumeration went through both ranks' operations, before and after publishing.
  for (const int failing : {0, 1})
    for (const Fault fault : {Fault::once, Fault::full, Fault::death}) {
      const int count = hits[std::pair(failing, fault)];
      BOOST_TEST(count >= (fault == Fault::once ? 20 : 8), count << " operations of rank " << failing);
    }
  BOOST_TEST(kept > 40);
  BOOST_TEST(published > 3);
}

BOOST_AUTO_TEST_CASE(a_rank_whose_save_fails_says_so_even_where_another_one_is_gone) {
  Scratch scratch;
  const Config config = stages_config(scratch, "run");
  const auto ends = ends_of_ranks(2, [&](Communicator& world) {
    Rank rank(rank_options(config));
    Trainer trainer(rank, config, &world);
    if (world.rank() == 1) throw RankDied{};
    RankFileSystem view(&disk());
    view.arm(Fault::once, 0);
    try {
      world.barrier();  // until rank 1 is known to be gone
    } catch (const AbortedError&) {
    }
    save_training_state(view, config.run.dir, trainer, PackingState{}, *open_data(config).train, 1);
  });
  BOOST_TEST(ends[0].error == "FileError", ends[0].error << " " << ends[0].text);
  BOOST_TEST(ends[1].error == "RankDied");
}

BOOST_AUTO_TEST_CASE(a_disk_full_for_one_rank_ends_the_run_and_the_next_start_goes_on) {
  Scratch scratch;
  const std::vector<std::string> kind{"checkpoint.interval=2", "train.max_steps=6", "checkpoint.keep_last_n=1"};
  const Config whole = stages_config(scratch, "whole", kind);
  run_training_ranks(whole);
  for (const int failing : {0, 1})
    for (const Fault fault : {Fault::full, Fault::once}) {
      const Config config = stages_config(scratch, fmt::format("full-{}-{}", failing, static_cast<int>(fault)), kind);
      std::array<RankFileSystem, 2> views{RankFileSystem(&disk()), RankFileSystem(&disk())};
      RankHooks hooks;
      hooks.file_system = [&](int rank) -> FileSystem& { return views[static_cast<size_t>(rank)]; };
      hooks.before_step = [&](Session& session, Communicator& world, int64_t) {
        // In the save after step 4; as a single fault it hits rank 0 where the record is made durable.
        if (session.trainer().steps_done() == 3 && world.rank() == failing) views[static_cast<size_t>(failing)].arm(fault, failing == 0 ? (fault == Fault::full ? 4 : 2) : 0);
      };
      const auto ends = ends_of_ranks(2, [&](Communicator& world) { train_as_rank(config, world, -1, hooks); });
      BOOST_TEST(ends[static_cast<size_t>(failing)].error == "FileError", ends[static_cast<size_t>(failing)].text);
      BOOST_TEST(ends[static_cast<size_t>(1 - failing)].aborted(), ends[static_cast<size_t>(1 - failing)].text);
      BOOST_TEST(latest_checkpoint(disk(), config.run.dir).step == 2);
      BOOST_TEST(leftovers(disk(), config).empty());
      run_training_ranks(config);
      check_same_training(config, whole, fmt::format("rank {} failed", failing));
    }
}

BOOST_AUTO_TEST_CASE(ranks_that_die_at_random_moments_take_the_others_along_and_nothing_hangs) {
  Scratch scratch;
  std::mt19937_64 random(12);
  for (const char* replicas : {"distributed.dp_replicate=1", "distributed.dp_replicate=2"}) {
    const std::vector<std::string> kind{replicas, "checkpoint.interval=1", "train.max_steps=20", "data.eval_fraction=0.2", "eval.interval=5", "distributed.watchdog_seconds=60"};
    const Config whole = stages_config(scratch, std::string("whole ") + replicas, kind), config = stages_config(scratch, std::string("killed ") + replicas, kind);
    const int ranks = static_cast<int>(mesh_shape(config).ranks());
    std::vector<int64_t> polls(static_cast<size_t>(ranks));
    RankHooks counting;
    counting.before_step = [&](Session& session, Communicator& world, int64_t done) {
      if (done == 0) session.trainer().rank().pool().set_poll([&count = polls[static_cast<size_t>(world.rank())]] { ++count; });
    };
    run_training_ranks(whole, -1, counting);
    int killed = 0;
    for (int attempt = 0; attempt < 12; ++attempt) {
      const bool in_files = attempt % 3 == 2;  // else between two pieces of a computation
      const int victim = in_files && ranks > 2 ? 0 : static_cast<int>(random() % static_cast<uint64_t>(ranks));  // of replicas, the first one saves
      const auto fatal = static_cast<int64_t>(random() % static_cast<uint64_t>(polls[static_cast<size_t>(victim)] / 8));
      const auto fatal_file = static_cast<int64_t>(random() % 30);
      std::vector<RankFileSystem> views(static_cast<size_t>(ranks), RankFileSystem(&disk()));
      RankHooks hooks;
      hooks.file_system = [&](int rank) -> FileSystem& { return views[static_cast<size_t>(rank)]; };
      hooks.before_step = [&](Session& session, Communicator& world, int64_t done) {
        if (done > 0 || world.rank() != victim) return;
        if (in_files) return views[static_cast<size_t>(victim)].arm(Fault::death, fatal_file);
        session.trainer().rank().pool().set_poll([&world, left = fatal]() mutable {
          if (left-- == 0) throw RankDied{};
          world.poll();
        });
      };
      const auto ends = ends_of_ranks(ranks, [&](Communicator& world) { train_as_rank(config, world, -1, hooks); });
      if (ends[static_cast<size_t>(victim)].error == "") continue;  // trained to the end
      ++killed;
      for (int r = 0; r < ranks; ++r)
        if (r == victim) BOOST_TEST(ends[static_cast<size_t>(r)].error == "RankDied", ends[static_cast<size_t>(r)].text);
        else BOOST_TEST(ends[static_cast<size_t>(r)].aborted(), ends[static_cast<size_t>(r)].error << " " << ends[static_cast<size_t>(r)].text);
    }
    BOOST_TEST(killed >= 8);
    run_training_ranks(config);
    check_same_training(config, whole, fmt::format("{}, killed {} times", replicas, killed));
  }
}

BOOST_AUTO_TEST_SUITE_END()
