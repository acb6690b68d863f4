// One training run in its folder, by one rank or by many: opens or resumes it, feeds the loop, records what the steps did, and saves.
#pragma once
#include <chrono>
#include <deque>
#include <functional>
#include <memory>

#include "run/data_source.h"
#include "run/log.h"
#include "run/progress.h"
#include "run/run_folder.h"
#include "run/step_traces.h"
#include "run/trainer.h"

namespace quire {

/// With several ranks, each makes the same calls; rank 0 owns the run folder and speaks, the others only take part.
class Session {
 public:
  /// Locks the run folder, opens the data, builds the model, loads the newest complete checkpoint if there is one (else checkpoint.load_path, if
  /// given), prints what runs where, and the memory table. `world` outlives it; nullptr: alone. Throws typed errors; ConfigError also where ranks were
  /// started with other settings or other data than rank 0.
  explicit Session(const Config& config, FileSystem& fs = disk(), const ProgressOptions& progress = {}, Communicator* world = nullptr);
  ~Session();

  Trainer& trainer() { return *trainer_; }
  /// The stop signal that all ranks act upon after the same step; `own` is this rank's, 0 for none. Call once before every step.
  int agree_on_signal(int own);
  /// The next step's microbatches; empty when max_steps are done or the last epoch is over.
  LoadedStep next_batch();
  /// After each step that was submitted: metrics, evaluation and checkpoint where they are due. A device's steps are collected and recorded one late, so
  /// that it never waits for the host, but for the last one and where an evaluation or a checkpoint is due.
  void record(const LoadedStep& batch);
  /// The same after a step that was collected.
  void record(const LoadedStep& batch, const StepResult& result);
  /// After the loop. `signal` says which one stopped it, 0 for none. Collects what is left, saves unless this step is saved already; says how to resume a
  /// stopped run.
  void finish(int signal);

 private:
  void check_devices();
  void check_means();
  void check_same_config();
  /// The config with what `auto` stands for.
  Config decided();
  /// Calls `part`; where memory does not suffice, the error also says what would fit.
  void in_memory(const std::function<void()>& part);
  void check_same_data();
  void say(std::string_view line);
  void resume();
  void read_ahead();
  void print_run();
  /// What the ranks do in a step, as text in the run folder.
  void store_schedule();
  void check_kernels();
  /// What devices choose among ways to compute that differ in bits: made again as the run folder has it, and kept there. All ranks call these.
  void replay_choices();
  void store_device_choices();
  void print_kernels();
  void print_memory();
  void print_device_memory();
  using Time = std::chrono::steady_clock::time_point;
  /// What a step that was submitted is recorded with.
  struct Awaited {
    int64_t epoch = 0;
    bool last = false;
    Time begun;
  };
  Awaited awaited(const LoadedStep& batch) const;
  bool saves_after(int64_t step) const { return config_.checkpoint.interval > 0 && step % config_.checkpoint.interval == 0; }
  bool evaluates_after(int64_t step, bool last) const;
  void report(const Awaited& step, const StepResult& result);
  void report_submitted(int64_t left);
  StepMetrics metrics_of(const Awaited& step, const StepResult& result);
  Evaluation evaluate();
  void save();

  Config config_;
  FileSystem& fs_;
  std::unique_ptr<Communicator> alone_;
  Communicator& world_;
  std::unique_ptr<RunFolder> folder_;  ///< rank 0's, like log and progress
  std::unique_ptr<Log> log_;
  int64_t resident_at_start_;
  Rank rank_;
  CorpusSplit data_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<StepTraces> traces_;
  LoadedStep upcoming_;              ///< read one step ahead, so that the last step is known as such
  PackingState upcoming_state_, state_;  ///< where the loader stood after `upcoming_`, and after the step last given out
  std::vector<std::string> notes_;
  std::map<std::string, std::string> kernels_;  ///< of all ranks
  std::map<std::string, std::string> choices_;  ///< besides kernels
  std::map<std::string, std::string> stored_choices_;  ///< as choices.json has them
  double peak_flops_ = 0;
  int64_t saved_step_ = -1, non_finite_steps_ = 0;
  Time step_start_, reported_;
  std::deque<Awaited> awaited_;  ///< of the steps that are submitted
};

}  // namespace quire
