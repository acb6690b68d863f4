#include "run/layout_breaks.h"

#include <fmt/format.h>

#include <charconv>

#include "parallel/pipeline.h"
#include "run/context_breaks.h"
#include "run/context_costs.h"

namespace quire {

namespace {

constexpr std::string_view dropped_at_stage = "dropped@stage";

int64_t stage_of(const std::string& broken) {
  int64_t stage = 0;
  std::from_chars(broken.data() + dropped_at_stage.size(), broken.data() + broken.size(), stage);
  return stage;
}

/// What the rank's tokens of a microbatch are in `whole`.
Documents with_starts_of(const Documents& own, const Documents& whole) {
  std::vector<int32_t> indices(own.indices().begin(), own.indices().end()), starts;
  for (const int32_t index : indices) starts.push_back(whole.starts()[static_cast<size_t>(index)]);
  return Documents::shard(std::move(indices), std::move(starts));
}

/// One stage takes everything for one document.
class DroppedAtStage final : public BoundaryTamper {
 public:
  DroppedAtStage(int64_t stage, const std::vector<HostBatch>& batches) : stage_(stage), batches_(batches) {}
  void received(int64_t stage, int64_t number, Microbatch& microbatch) override {
    if (stage != stage_) return;
    microbatch.documents = with_starts_of(microbatch.documents, one_document(batches_[static_cast<size_t>(number)].documents.tokens()));
    microbatch.runs = shared_runs(microbatch.documents);  // positions stay: a dropped mask is what is to be seen
  }

 private:
  int64_t stage_;
  const std::vector<HostBatch>& batches_;
};

/// Whose record microbatch `number` of a pass gets by `swapped`: its neighbour's; its own where it has none.
const Documents& swapped_record(const std::vector<HostBatch>& batches, int64_t number) {
  const auto other = static_cast<size_t>(number ^ 1);
  return batches[other < batches.size() ? other : static_cast<size_t>(number)].documents;
}

/// Neighbours in flight get each other's record.
class Swapped final : public BoundaryTamper {
 public:
  Swapped(Rank& rank, const std::vector<HostBatch>& batches) : rank_(rank), batches_(batches) {}
  void received(int64_t, int64_t number, Microbatch& microbatch) override {
    const Tensor targets = microbatch.targets;
    const int64_t valid = microbatch.valid, tokens = batches_[static_cast<size_t>(number)].documents.tokens();
    microbatch = Microbatch::make_stage(rank_, {}, {}, with_starts_of(microbatch.documents, laid_over(swapped_record(batches_, number), tokens)));
    microbatch.targets = targets;
    microbatch.valid = valid;
  }

 private:
  Rank& rank_;
  const std::vector<HostBatch>& batches_;
};

/// What keys meet where a stage has other boundaries: all ranks that share the stage exchange keys by them too, so that what one process would show is shown.
class OtherExchange final : public ContextTamper {
 public:
  OtherExchange(std::string broken, const std::vector<HostBatch>& batches, const PipelineStages& stages) : broken_(std::move(broken)), batches_(batches) {
    while (first_ < stages.stages() && !stages.receives(first_)) ++first_;
  }
  void prepared(ContextWork& work) override {
    if (broken_ != "swapped") {
      if (work.stage == stage_of(broken_)) take_for(work, one_document(work.whole.tokens()));
      return;
    }
    if (work.stage < first_) return;
    for (size_t i = 0; i < batches_.size(); ++i)
      if (batches_[i].index == work.microbatch) return take_for(work, laid_over(swapped_record(batches_, static_cast<int64_t>(i)), work.whole.tokens()));
  }

 private:
  std::string broken_;
  const std::vector<HostBatch>& batches_;
  int64_t first_ = 1;  ///< stage that receives; those after it on its rank get what it got
};

}  // namespace

ContextSharing context_sharing(const Config& config) { return {config.distributed.cp, context_options(config)}; }

std::vector<std::string> pipeline_breaks(const PipelineStages& stages) {
  std::vector<std::string> names{"dropped"};
  const auto attends = [&](int64_t stage) {
    const LayerRange range = stages.layers(stage);
    return std::max<int64_t>(static_cast<int64_t>(range.first), 1) < std::min<int64_t>(static_cast<int64_t>(range.last), stages.boundaries.back() - 2);
  };
  for (int64_t stage = 1; stage < stages.stages(); ++stage)
    if (stages.receives(stage) && attends(stage)) names.push_back(fmt::format("dropped@stage{}", stage));
  if (names.size() > 1) names.push_back("swapped");
  return names;
}

std::vector<std::string> leaking_breaks(const PipelineStages& stages, const ContextSharing& context) {
  std::vector<std::string> names = pipeline_breaks(stages);
  if (context.ranks == 1) return names;
  for (const std::string& name : context_leaks(context.options.exchange))
    if (name != "dropped") names.push_back(name);
  return names;
}

std::vector<std::string> training_breaks(const ContextSharing& context) {
  if (context.ranks == 1) return {};
  return {"dkv_owner", "labels", "denominator"};
}

std::unique_ptr<BoundaryTamper> make_tamper(Rank& rank, const std::string& broken, const std::vector<HostBatch>& batches) {
  if (broken == "swapped") return std::make_unique<Swapped>(rank, batches);
  if (broken.starts_with(dropped_at_stage)) return std::make_unique<DroppedAtStage>(stage_of(broken), batches);
  return nullptr;
}

LayoutBreak::LayoutBreak(Rank& rank, const std::string& broken, const std::vector<HostBatch>& batches, Pipeline& pipeline, ContextAttention* context)
    : pipeline_(pipeline), context_(context), boundaries_(make_tamper(rank, broken, batches)) {
  pipeline_.set_tamper(boundaries_.get());
  if (context_ == nullptr) return;
  if (boundaries_ != nullptr) exchange_ = std::make_unique<OtherExchange>(broken, batches, pipeline.stages());
  else exchange_ = make_context_tamper(broken);
  context_->set_tamper(exchange_.get());
}

LayoutBreak::~LayoutBreak() {
  pipeline_.set_tamper(nullptr);
  if (context_ != nullptr) context_->set_tamper(nullptr);
}

Documents laid_over(const Documents& other, int64_t tokens) {
  const std::vector<DocumentRun> runs = other.runs();
  std::vector<int64_t> lengths;
  for (int64_t left = tokens; left > 0; left -= lengths.back()) lengths.push_back(std::min<int64_t>(left, runs[lengths.size() % runs.size()].length));
  return Documents::from_lengths(lengths);
}

void shift_own_targets(std::vector<int32_t>& targets, const Documents& own) {
  // The token after a scored one is its target, so that targets alone say what the rank's next token is.
  const std::vector<int32_t> before = targets;
  const std::span<const int32_t> indices = own.indices();
  for (size_t i = 0; i < indices.size(); ++i)
    targets[static_cast<size_t>(indices[i])] = i + 1 < indices.size() ? before[static_cast<size_t>(indices[i + 1] - 1)] : ignored_target;
}

int64_t own_valid(const std::vector<int32_t>& targets, const Documents& own) {
  int64_t valid = 0;
  for (const int32_t index : own.indices()) valid += targets[static_cast<size_t>(index)] != ignored_target;
  return valid;
}

}  // namespace quire
