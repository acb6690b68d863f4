// Packed rows to microbatches in memory, read ahead on a background thread.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "data/packing.h"
#include "runtime/documents.h"

namespace quire {

/// What of each microbatch is read. Documents, plan and counts come from the index and are there with each of them.
enum class Content : uint8_t {
  all,        ///< tokens and targets
  tokens,     ///< a pipeline's first stage
  targets,    ///< its last
  documents,  ///< those between: no token is read, and no mask but what the plan needs
};
std::string_view name_of(Content content);

/// One microbatch: flat and token-major, its rows one after the other, no padding.
struct HostBatch {
  std::vector<int32_t> tokens;   ///< [T]; empty where Content leaves them out
  std::vector<int32_t> targets;  ///< [T], ignored_target where nothing is predicted; empty where Content leaves them out
  Documents documents;           ///< of the T tokens: each piece is one
  int64_t valid = 0;             ///< targets that count
  int64_t rows = 0;
  std::vector<Row> plan;         ///< what stands where
  int64_t index = 0;             ///< number of this microbatch in the global batch
};

/// Which part of each global batch to load. Microbatches are cut from the global batch first, so they are the same for every count;
/// part `index` of `count` then takes a share of them, which may be none.
struct BatchShare {
  int64_t index = 0, count = 1;
};
/// Numbers of the microbatches of a share, ascending: consecutive ones or, of an arranged step, every `count`-th, so that shares cost alike, too.
std::vector<int64_t> shared_microbatches(int64_t microbatches, const BatchShare& share, bool arranged);

struct LoaderSettings {
  PackingSettings packing;
  int64_t global_batch_size = 1;  ///< rows per step
  int64_t microbatch_size = 1;    ///< rows per microbatch; the last of a step may have fewer
  int64_t prefetch = 2;           ///< steps read ahead; 0 reads in the caller's thread
  Content content = Content::all;
  /// Where given, rows of a step are arranged by it before they are cut into microbatches, so that these cost alike: `arrange_rows`.
  std::function<int64_t(const Row&)> row_cost;
  std::function<void(const HostBatch&)> read;  ///< called with each microbatch where it is read: on the background thread, steps ahead
};

/// A step's plan (all of it; `plan.rows` arranged, `plan.digest` that of the rows as they were packed) and this share's microbatches, in ascending order.
struct LoadedStep {
  StepPlan plan;
  std::vector<HostBatch> microbatches;
  bool empty() const { return plan.empty(); }  ///< the last epoch is over
};

/// Reads what `content` says of these rows and makes targets, documents and counts. DataError where what is read of the corpus is bad
/// or the microbatch has 2^31 tokens or more. Where targets are read their number is compared with the plan's.
HostBatch load_rows(const Corpus& corpus, std::span<const Row> rows, Content content = Content::all);

/// The stream of a corpus' steps. One thread may use it.
class Loader {
 public:
  /// ConfigError for settings out of range, and whatever PackingPlan throws.
  Loader(std::shared_ptr<const Corpus> corpus, const LoaderSettings& settings, BatchShare share = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next step; empty() when the last epoch is over. Rethrows, in its place in the stream, what reading ahead threw, and again
  /// at every later call.
  LoadedStep next_step();

  /// Where the last step given ended, whatever has been read ahead.
  PackingState state() const { return state_; }
  void restore(const PackingState& state);

  const LoaderSettings& settings() const { return settings_; }
  const Corpus& corpus() const { return *corpus_; }

 private:
  struct Entry {
    LoadedStep step;
    PackingState after;
    std::exception_ptr error;
  };
  Entry produce();
  void arrange(std::vector<Row>& rows) const;
  void run();
  void stop();

  std::shared_ptr<const Corpus> corpus_;
  LoaderSettings settings_;
  BatchShare share_;
  PackingPlan plan_;           ///< belongs to the thread while it runs
  PackingState state_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> ready_;
  bool stopping_ = false, ended_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

/// Settings for one pass over held-out documents: the same packing, unshuffled, one epoch. Loss is summed over all steps and
/// divided by all valid targets.
LoaderSettings evaluation_settings(LoaderSettings settings);

}  // namespace quire
