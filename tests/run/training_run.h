// A small training run in a folder of its own, for tests of whole runs.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <random>

#include "check.h"
#include "parallel/checkpoint.h"
#include "parallel/nccl.h"
#include "run/session.h"
#include "run/scratch.h"

namespace quire::test {

/// Documents of lower-case words, most of them short, some of one letter, separated by lines of %.
inline void write_text(const std::string& path, int documents, uint64_t seed = 7) {
  std::mt19937_64 random(seed);
  std::ofstream file(path);
  for (int d = 0; d < documents; ++d) {
    const int words = d % 5 == 0 ? 0 : 1 + static_cast<int>(random() % 12);
    std::string text(1, static_cast<char>('a' + random() % 26));
    for (int w = 0; w < words; ++w) {
      text += ' ';
      for (size_t l = 0; l < 1 + random() % 6; ++l) text += static_cast<char>('a' + random() % 26);
    }
    file << text << "\n%\n";
  }
}

/// About 30 documents, an epoch of a few steps, evaluation, two microbatches a step.
inline Config small_config(const Scratch& scratch, const std::string& run, const std::vector<std::string>& overrides = {}) {
  if (!std::filesystem::exists(scratch.path("text.txt"))) write_text(scratch.path("text.txt"), 30);
  std::vector<std::string> all{"run.dir=" + scratch.path(run)};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return parse_config(R"(
[run]
threads = 1
[model]
dim = 16
n_layers = 2
n_heads = 2
head_dim = 8
ffn_hidden_dim = 32
vocab_size = 257
max_seq_len = 64
[train]
seq_len = 48
global_batch_size = 4
microbatch_size = 2
max_steps = 12
[optimizer]
lr = 1e-2
[scheduler]
name = "cosine"
warmup_steps = 2
[data]
dataset_path = "text.txt"
separator = "%"
strategy = "bfd"
buffer_documents = 8
eval_fraction = 0.1
[checkpoint]
keep_last_n = 3
[eval]
interval = 4
[metrics]
log_interval = 1
)", "small", scratch.path(), all);
}

/// The same with four layers in a layout.
inline Config ranks_config(const Scratch& scratch, const std::string& run, int64_t pp, int64_t dp, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"model.n_layers=4", fmt::format("distributed.pp={}", pp), fmt::format("distributed.dp_replicate={}", dp), "distributed.watchdog_seconds=60"});
  return small_config(scratch, run, overrides);
}

inline ProgressOptions quiet() {
  static const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  ProgressOptions options;
  options.descriptor = null;
  options.terminal = false;
  return options;
}

/// One step as `train` takes it.
inline void take_step(Session& session, const LoadedStep& batch) {
  session.trainer().begin_step();
  session.trainer().forward_backward(batch);
  session.trainer().submit();
  session.record(batch);
}

/// Trains until max_steps, or for `stop_after` steps of this call, then ends as a signal would.
inline void run_training(const Config& config, int64_t stop_after = -1, FileSystem& fs = disk()) {
  Session session(config, fs, quiet());
  for (int64_t done = 0;; ++done) {
    if (done == stop_after) return session.finish(SIGTERM);
    const LoadedStep batch = session.next_batch();
    if (batch.empty()) break;
    take_step(session, batch);
  }
  session.finish(0);
}

/// What the ranks of a run do besides training.
struct RankHooks {
  std::function<FileSystem&(int rank)> file_system;                                         ///< instead of the disk
  std::function<void(Session& session, Communicator& world, int64_t done)> before_step;    ///< on every rank; `done`: steps of this call
  int signalled = 0;                                                                        ///< the one rank that knows of the stop signal
};

/// One rank's part of `run_training_ranks`.
inline void train_as_rank(const Config& config, Communicator& world, int64_t stop_after = -1, const RankHooks& hooks = {}) {
  Session session(config, hooks.file_system ? hooks.file_system(world.rank()) : disk(), quiet(), &world);
  for (int64_t done = 0;; ++done) {
    const int own = done == stop_after && world.rank() == hooks.signalled ? SIGTERM : 0;
    if (const int signal = session.agree_on_signal(own)) return session.finish(signal);
    if (hooks.before_step) hooks.before_step(session, world, done);
    const LoadedStep batch = session.next_batch();
    if (batch.empty()) break;
    take_step(session, batch);
  }
  session.finish(0);
}

/// Trains in the config's layout, its ranks threads of this process, until max_steps, or for `stop_after` steps of this call.
inline void run_training_ranks(const Config& config, int64_t stop_after = -1, const RankHooks& hooks = {}) {
  const auto run_ranks = config.run.device == "cuda" ? run_local_on_devices : run_local;
  run_ranks(static_cast<int>(mesh_shape(config).ranks()), {.report = [](const std::string&) {}},
            [&](Communicator& world) { train_as_rank(config, world, stop_after, hooks); });
}

/// How one rank ended: the type of its error, "" for none, and what it said.
struct RankEnd {
  std::string error, text;
  bool aborted() const { return error == "AbortedError"; }
};

/// Stands for a rank's death: no handler of errors takes it for one.
struct RankDied {};

/// Runs a rank's part and says how it ended.
template <class Body>
RankEnd end_of(Body&& body) {
  try {
    body();
    return {};
  } catch (const AbortedError& error) {
    return {"AbortedError", error.what()};
  } catch (const CommunicationError& error) {
    return {"CommunicationError", error.what()};
  } catch (const FileError& error) {
    return {"FileError", error.what()};
  } catch (const ConfigError& error) {
    return {"ConfigError", error.what()};
  } catch (const StateError& error) {
    return {"StateError", error.what()};
  } catch (const NonFiniteError& error) {
    return {"NonFiniteError", error.what()};
  } catch (const std::exception& error) {
    return {"another error", error.what()};
  } catch (const RankDied&) {
    return {"RankDied", ""};
  }
}

/// Runs `body` on every rank; one that fails ends the others. How each of them ended, by rank.
template <class Body>
std::vector<RankEnd> ends_of_ranks(int ranks, Body&& body) {
  std::vector<RankEnd> ends(static_cast<size_t>(ranks));
  run_local(ranks, {.report = [](const std::string&) {}}, [&](Communicator& world) {
    RankEnd& end = ends[static_cast<size_t>(world.rank())];
    end = end_of([&] { body(world); });
    if (!end.error.empty()) world.abort(end.text);
  });
  return ends;
}

/// metrics.jsonl without what depends on the clock.
inline std::vector<StepMetrics> metrics_of(const Config& config, FileSystem& fs = disk()) {
  std::vector<StepMetrics> all = read_metrics(fs, config.run.dir + "/metrics.jsonl");
  for (StepMetrics& m : all) m = without_time(m);
  return all;
}

/// Every tensor of a checkpoint as bytes, by kind and name.
inline std::map<std::string, std::vector<std::byte>> tensors_of(FileSystem& fs, const std::string& folder) {
  CheckpointReader reader(fs, folder);
  std::map<std::string, std::vector<std::byte>> result;
  Rank rank;
  for (const CheckpointReader::Entry& entry : reader.entries()) {
    const Tensor tensor = Tensor::empty(rank, entry.shape, entry.dtype);
    reader.read(entry.kind, entry.name, tensor);
    const auto* bytes = static_cast<const std::byte*>(tensor.raw());
    result[entry.kind + " " + entry.name].assign(bytes, bytes + tensor.bytes());
  }
  return result;
}

/// Those of the newest checkpoint.
inline std::map<std::string, std::vector<std::byte>> checkpoint_of(const Config& config, FileSystem& fs = disk()) {
  const CheckpointSearch found = latest_checkpoint(fs, config.run.dir);
  BOOST_REQUIRE(found.found());
  return tensors_of(fs, found.folder);
}

inline void check_same_training(const Config& a, const Config& b, const std::string& what) {
  BOOST_TEST((metrics_of(a) == metrics_of(b)), what << ": metrics differ");
  BOOST_TEST((checkpoint_of(a) == checkpoint_of(b)), what << ": checkpoints differ");
}

}  // namespace quire::test
