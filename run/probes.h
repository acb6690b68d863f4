// What selfcheck asks of a layout: logits and gradients of a microbatch, as they are or with one thing broken on purpose.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "model/model.h"
#include "run/config.h"

namespace quire {

/// A whole microbatch to be probed, in host memory.
struct ProbeInput {
  std::vector<int32_t> tokens;   ///< [T]
  std::vector<int32_t> targets;  ///< [T], ignored_target where nothing is scored
  Documents documents;
};

/// How a probe is run.
struct ProbeMode {
  AttentionBackend backend = AttentionBackend::block;
  std::string broken;  ///< "" = as a training run would; else one of ProbeLayout::breaks()
};

/// A token and a document (number of a run) that it must not reach. -1: the usual ones show it.
struct ProbeLeak {
  int64_t place = -1, document = -1;
};

/// One way to carry out a model's passes: in one process, over pipeline stages, over context-parallel ranks. Results are gathered to the caller.
class ProbeLayout {
 public:
  virtual ~ProbeLayout() = default;
  /// Such as `single`; stands in the report.
  virtual std::string name() const = 0;
  /// What can be broken on purpose. Every one of them must make documents leak; each is run as a control.
  virtual std::vector<std::string> breaks() const = 0;
  /// Where a row shows one of the breaks; nothing where that lets no token reach another document in this row.
  virtual std::optional<ProbeLeak> leak_of(const ProbeInput& /*input*/, const std::string& /*broken*/) { return ProbeLeak{}; }
  /// Largest difference from each document alone, of the largest logit's magnitude.
  virtual double tolerance() const = 0;
  /// Logits [T, vocabulary].
  virtual std::vector<double> logits(const ProbeInput& input, const ProbeMode& mode) = 0;
  /// Whether boundaries travel between ranks, which compare them with the plan.
  virtual bool carries_records() const { return false; }
  /// Passes since the last call in which a rank received other boundaries than the plan's.
  virtual int64_t take_mismatches() { return 0; }
  /// Gradient [T, dim] of the summed loss at the embedding's output.
  virtual std::vector<double> embedding_gradient(const ProbeInput& input, const ProbeMode& mode) = 0;
};

/// One process, one call of attention per layer. Its break `dropped`: attention takes the microbatch for one document.
class SingleLayout final : public ProbeLayout {
 public:
  /// The model has gradients. `forward` says how training runs it (recomputation, z-loss); its executor is not used.
  SingleLayout(Rank& rank, Model& model, const ForwardOptions& forward);
  std::string name() const override { return "single"; }
  std::vector<std::string> breaks() const override { return {"dropped"}; }
  double tolerance() const override;
  std::vector<double> logits(const ProbeInput& input, const ProbeMode& mode) override;
  std::vector<double> embedding_gradient(const ProbeInput& input, const ProbeMode& mode) override;

 private:
  Rank& rank_;
  Model& model_;
  ForwardOptions forward_;
};

/// Values of a tensor of any floating dtype, widened.
std::vector<double> host_values(const Tensor& tensor);

/// Attention with a probe's backend, over the documents or, for the break `dropped`, over one that holds everything.
class ProbeAttention final : public AttentionExecutor {
 public:
  explicit ProbeAttention(const ProbeMode& mode) : mode_(mode) {}
  Value attend(Tape& tape, int64_t layer, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch, const AttentionOptions& options) override;

 private:
  ProbeMode mode_;
};

/// Largest difference from a document alone that a dtype's rounding explains, of the largest logit's magnitude.
double probe_tolerance(DType dtype);

/// A microbatch to probe, with what to call it.
struct ProbeRow {
  std::string name;  ///< `packed row`, `two equal documents`
  ProbeInput input;
};

/// The first microbatch that the config's loader gives, with further rows where it holds a single document. Longer than `tokens`: the documents
/// are cut so that at least two are left.
ProbeRow packed_probe_row(const Config& config, std::shared_ptr<const Corpus> corpus, int64_t tokens);
/// The first tokens of `from`'s first document, twice: two documents of one even length (1 where max_seq_len is 1).
ProbeRow equal_probe_row(const ModelConfig& model, const ProbeInput& from, int64_t tokens);

/// How far a token's influence reaches through all layers, in tokens: the sum of the windows' reaches; -1 without bound.
int64_t influence_reach(const ModelConfig& model);

}  // namespace quire
