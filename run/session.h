// One training run in its folder: opens or resumes it, feeds the loop, records what the steps did, and saves.
#pragma once
#include <chrono>
#include <memory>

#include "run/data_source.h"
#include "run/log.h"
#include "run/progress.h"
#include "run/run_folder.h"
#include "run/trainer.h"

namespace quire {

class Session {
 public:
  /// Locks the run folder, opens the data, builds the model, loads the newest complete checkpoint if there is one (else checkpoint.load_path, if
  /// given), prints what runs where, and the memory table. Throws typed errors.
  explicit Session(const Config& config, FileSystem& fs = disk(), const ProgressOptions& progress = {});
  ~Session();

  Trainer& trainer() { return *trainer_; }
  /// The next step's microbatches; empty when max_steps are done or the last epoch is over.
  LoadedStep next_batch();
  /// After each step: metrics, evaluation and checkpoint where they are due.
  void record(const LoadedStep& batch, const StepResult& result);
  /// After the loop. `signal` says which one stopped it, 0 for none. Saves unless this step is saved already; says how to resume a stopped run.
  void finish(int signal);

 private:
  void resume();
  void read_ahead();
  void print_run();
  void check_kernels();
  void print_kernels_and_memory();
  Evaluation evaluate();
  void save();

  Config config_;
  FileSystem& fs_;
  RunFolder folder_;
  std::unique_ptr<Log> log_;
  int64_t resident_at_start_;
  Rank rank_;
  CorpusSplit data_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Progress> progress_;
  LoadedStep upcoming_;              ///< read one step ahead, so that the last step is known as such
  PackingState upcoming_state_, state_;  ///< where the loader stood after `upcoming_`, and after the step last given out
  std::vector<std::string> notes_;
  double peak_flops_ = 0;
  int64_t saved_step_ = -1, non_finite_steps_ = 0;
  std::chrono::steady_clock::time_point step_start_;
};

}  // namespace quire
