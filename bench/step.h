// Whole training steps, side by side with peers: Quire's and PyTorch's of the same model and documents, one after the other in pairs.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/calm.h"
#include "runtime/profile.h"

namespace quire::bench {

struct StepBenchOptions {
  std::string lengths = "bench/lengths";
  std::vector<std::string> shapes = {"a", "b", "c"};
  std::vector<std::string> documents = {"packed", "one"};  ///< lognormal of mean 128; one document per row
  std::vector<std::string> dtypes = {"f32"};               ///< f32, bf16; peers take part in the first one
  int64_t pairs = 5;
  int64_t tries = 4;                                       ///< of a measurement that the machine disturbs
  int64_t threads = 1;                                     ///< more: Quire alone, beside itself with one thread
  std::string peers;                                       ///< folder of peers; "" for none
  std::string peer_script = "tests/peers/torch_peer.py";
  std::string variant;                                     ///< of the peers; "" for the quickest of a trial
  bool dense = false;                                      ///< shape c packed also against a dense document mask
  bool profile = false;                                    ///< where the time of Quire's step goes
  double patience_seconds = 900;                           ///< for one answer of a peer
  Tell progress;                                           ///< told after each measurement, if given
};

/// Throws ConfigError for a shape, kind of documents or dtype that is not known, and where numbers are out of range.
void check(const StepBenchOptions& options);

/// One side of the pairs.
struct StepSide {
  std::string name, version, build;  ///< Quire's build is its instruction set
  std::string variant, dtype;        ///< how a peer computes attention, and whether it is compiled
  int64_t threads = 1;
  std::vector<double> seconds, share;  ///< of each pair; share of the line's probe by useful work
  std::vector<double> ratios;        ///< this side's seconds over those of the first side
  double first_loss = 0, last_loss = 0;
  int64_t memory = 0;                ///< bytes: Quire's taken from the system, a peer's process at its largest
};

/// What a peer tried in order to choose its variant: seconds of a step of fewer layers, or why it can not.
struct StepTrial {
  std::string peer, variant, reason;
  double seconds = 0;
};

/// One shape with one kind of documents.
struct StepLine {
  std::string shape, documents;
  int64_t tokens = 0, document_count = 0;
  double flops = 0;              ///< useful ones of a step
  std::vector<StepSide> sides;   ///< Quire first
  std::vector<StepTrial> trials;
  std::map<std::string, double> dense;  ///< peer -> seconds of a step with a dense document mask
  Profile::Entries profile;      ///< of one step; "" is the step itself
  double probe = 0;              ///< the best of those around the measurements, multiply-adds per second times two
  /// The side of a peer with the least median ratio; nullptr without peers.
  const StepSide* best_peer() const;
};

struct StepBenchResult {
  std::string machine, date, gate;
  std::vector<StepLine> lines;
  int64_t repeated = 0, disturbed = 0;
  std::string markdown() const;
  std::string to_json() const;
};

/// Processor time counts with one thread, wall time with more.
StepBenchResult bench_step(const StepBenchOptions& options);

}  // namespace quire::bench
