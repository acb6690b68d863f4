#include "run/pipeline_layout.h"

#include <fmt/format.h>

#include <atomic>
#include <charconv>
#include <cstring>

#include "parallel/pipeline.h"

namespace quire {

namespace {

constexpr int64_t probed = 1;  ///< its number among the microbatches in flight

/// One stage takes everything for one document.
class DroppedAtStage final : public BoundaryTamper {
 public:
  explicit DroppedAtStage(int64_t stage) : stage_(stage) {}
  void received(int64_t stage, int64_t, Microbatch& microbatch) override {
    if (stage != stage_) return;
    const int64_t length = microbatch.size();
    microbatch.documents = Documents::from_lengths(std::span(&length, 1));
    microbatch.runs = shared_runs(microbatch.documents);  // positions stay: a dropped mask is what is to be seen
  }

 private:
  int64_t stage_;
};

/// Neighbours in flight get each other's record.
class Swapped final : public BoundaryTamper {
 public:
  Swapped(Rank& rank, const std::vector<HostBatch>& batches) : rank_(rank), batches_(batches) {}
  void received(int64_t, int64_t number, Microbatch& microbatch) override {
    const auto other = static_cast<size_t>(number ^ 1);
    if (other >= batches_.size()) return;
    const Tensor targets = microbatch.targets;
    const int64_t valid = microbatch.valid;
    microbatch = Microbatch::make_stage(rank_, {}, {}, laid_over(batches_[other].documents, microbatch.size()));
    microbatch.targets = targets;
    microbatch.valid = valid;
  }

 private:
  Rank& rank_;
  const std::vector<HostBatch>& batches_;
};

HostBatch to_batch(const ProbeInput& input, int64_t index) {
  HostBatch batch;
  batch.tokens = input.tokens;
  batch.targets = input.targets;
  batch.documents = input.documents;
  batch.index = index;
  return batch;
}

void copy_weights(Model& from, Model& to) {
  for (Parameter& p : to.parameters()) {
    const Parameter& source = from.parameters().find(p.name);
    std::memcpy(p.value.raw(), source.value.raw(), static_cast<size_t>(p.value.bytes()));
  }
}

}  // namespace

struct PipelineLayout::Stage {
  Stage(const RankOptions& options, Model& model, const std::vector<LayerRange>& layers) : rank(options), part(rank, model.config(), model.dtype(), true, layers) {
    copy_weights(model, part);
  }
  Rank rank;
  Model part;
};

std::vector<std::string> pipeline_breaks(const PipelineStages& stages) {
  std::vector<std::string> names{"dropped"};
  const auto attends = [&](int64_t stage) {
    const LayerRange range = stages.layers(stage);
    return std::max<int64_t>(static_cast<int64_t>(range.first), 1) < std::min<int64_t>(static_cast<int64_t>(range.last), stages.boundaries.back() - 2);
  };
  for (int64_t stage = 1; stages.ranks > 1 && stage < stages.stages(); ++stage)  // a rank by itself receives nothing
    if (attends(stage)) names.push_back(fmt::format("dropped@stage{}", stage));
  if (names.size() > 1) names.push_back("swapped");
  return names;
}

std::unique_ptr<BoundaryTamper> make_tamper(Rank& rank, const std::string& broken, const std::vector<HostBatch>& batches) {
  constexpr std::string_view dropped = "dropped@stage";
  if (broken == "swapped") return std::make_unique<Swapped>(rank, batches);
  if (!broken.starts_with(dropped)) return nullptr;
  int64_t stage = 0;
  std::from_chars(broken.data() + dropped.size(), broken.data() + broken.size(), stage);
  return std::make_unique<DroppedAtStage>(stage);
}

Documents laid_over(const Documents& other, int64_t tokens) {
  const std::vector<DocumentRun> runs = other.runs();
  std::vector<int64_t> lengths;
  for (int64_t left = tokens; left > 0; left -= lengths.back()) lengths.push_back(std::min<int64_t>(left, runs[lengths.size() % runs.size()].length));
  return Documents::from_lengths(lengths);
}

ProbeInput other_boundaries(const ProbeInput& input, int64_t longest) {
  std::vector<int64_t> lengths, joined;
  for (const DocumentRun& run : input.documents.runs()) lengths.push_back(run.length);
  for (size_t i = 0; i < lengths.size(); ++i) {  // from the last one on, so that it has a neighbour
    if ((lengths.size() - i) % 2 == 0) joined.push_back(lengths[i] + lengths[i + 1]);
    else if (i == 0) joined.push_back(lengths[i]);
  }
  if (*std::max_element(joined.begin(), joined.end()) > longest) {
    // Half of the first document, then every document's second half with its neighbour's first.
    joined = {(lengths[0] + 1) / 2};
    for (size_t i = 0; i + 1 < lengths.size(); ++i) joined.push_back(lengths[i] / 2 + (lengths[i + 1] + 1) / 2);
    joined.push_back(lengths.back() / 2);
  }
  ProbeInput result = input;
  result.documents = Documents::from_lengths(joined);
  return result;
}

PipelineLayout::PipelineLayout(const RankOptions& options, Model& model, PipelineStages stages, const ForwardOptions& forward)
    : stages_(std::move(stages)), forward_(forward) {
  for (int64_t r = 0; r < stages_.ranks; ++r) ranks_.push_back(std::make_unique<Stage>(options, model, stages_.held_by(r)));
}

PipelineLayout::~PipelineLayout() = default;

std::string PipelineLayout::name() const {
  return fmt::format("pp {} {}{}", stages_.ranks, stages_.schedule, stages_.chunks > 1 ? fmt::format(" x {}", stages_.chunks) : "");
}

std::vector<std::string> PipelineLayout::breaks() const { return pipeline_breaks(stages_); }
double PipelineLayout::tolerance() const { return probe_tolerance(ranks_.front()->part.dtype()); }
int64_t PipelineLayout::take_mismatches() { return std::exchange(mismatches_, 0); }

void PipelineLayout::run(const ProbeInput& input, const ProbeMode& mode, const std::function<void(Stage&, Pipeline&, PipelineWork&)>& pass) {
  const ProbeInput other = other_boundaries(input, ranks_.front()->part.config().max_seq_len);
  std::vector<HostBatch> batches;
  for (int64_t i = 0; i < 3; ++i) batches.push_back(to_batch(i == probed ? input : other, i));
  std::atomic<int64_t> mismatches = 0;
  run_local(static_cast<int>(stages_.ranks), {}, [&](Communicator& group) {
    Stage& stage = *ranks_[static_cast<size_t>(group.rank())];
    ProbeAttention executor(mode);
    ForwardOptions forward = forward_;
    forward.attention = &executor;
    Pipeline pipeline(stage.rank, stage.part, group, stages_, forward);
    const std::unique_ptr<BoundaryTamper> tamper = make_tamper(stage.rank, mode.broken, batches);
    pipeline.set_tamper(tamper.get());
    PipelineWork work;
    work.microbatches = batches;
    pass(stage, pipeline, work);
    if (pipeline.take_mismatch()) ++mismatches;
  });
  mismatches_ += mismatches;
}

std::vector<double> PipelineLayout::logits(const ProbeInput& input, const ProbeMode& mode) {
  std::vector<double> result;
  run(input, mode, [&](Stage& stage, Pipeline& pipeline, PipelineWork& work) {
    work.hidden = [&](int64_t number, const Tensor& hidden, const Microbatch&) {
      if (number == probed) result = host_values(stage.part.logits(stage.rank, hidden));
    };
    pipeline.forward(work);
  });
  return result;
}

std::vector<double> PipelineLayout::embedding_gradient(const ProbeInput& input, const ProbeMode& mode) {
  std::vector<double> result;
  run(input, mode, [&](Stage& stage, Pipeline& pipeline, PipelineWork& work) {
    const double one = 1;
    work.loss_gradient = Tensor::from<double>(stage.rank, {1}, std::span(&one, 1));
    work.losses = Tensor::zeros(stage.rank, {static_cast<int64_t>(work.microbatches.size())}, DType::f64);
    work.embedding_gradient = [&](int64_t number, const Tensor& gradient) {
      if (number == probed) result = host_values(gradient);
    };
    pipeline.train(work);
  });
  return result;
}

}  // namespace quire
