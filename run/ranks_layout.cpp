#include "run/ranks_layout.h"

#include <fmt/format.h>

#include <atomic>
#include <limits>

#include "parallel/context_attention.h"
#include "parallel/groups.h"
#include "parallel/nccl.h"
#include "parallel/pipeline.h"
#include "run/rank_options.h"
#include "run/ring_step_leak.h"

namespace quire {

namespace {

constexpr int64_t probed = 1;  ///< its number among the microbatches in flight

HostBatch to_batch(const ProbeInput& input, int64_t index) {
  HostBatch batch;
  batch.tokens = input.tokens;
  batch.targets = input.targets;
  batch.documents = input.documents;
  batch.index = index;
  return batch;
}

/// Through the host: ranks may have a device each.
void copy_weights(Model& from, Model& to) {
  std::vector<std::byte> values;
  for (Parameter& p : to.parameters()) {
    values.resize(static_cast<size_t>(p.value.bytes()));
    from.parameters().find(p.name).value.to_host(0, values);
    p.value.from_host(0, values);
  }
}

/// Attention over ranks with a probe's backend.
class SharedProbeAttention final : public AttentionExecutor {
 public:
  SharedProbeAttention(ContextAttention& context, AttentionBackend backend) : context_(context), backend_(backend) {}
  Value attend(Tape& tape, int64_t layer, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch, const AttentionOptions& options) override {
    AttentionOptions own = options;
    own.backend = backend_;
    return context_.attend(tape, layer, q, k, v, microbatch, own);
  }

 private:
  ContextAttention& context_;
  AttentionBackend backend_;
};

/// Puts a rank's rows [indices, width] where they belong; ranks have different ones.
void place_rows(const std::vector<double>& rows, std::span<const int32_t> indices, std::vector<double>& all, size_t width) {
  for (size_t i = 0; i < indices.size(); ++i)
    std::copy_n(rows.begin() + static_cast<ptrdiff_t>(i * width), width, all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(indices[i]) * width));
}

/// What no rank gives is not a number, which no probe takes for a result.
std::vector<double> without_rows(int64_t rows, int64_t width) {
  return std::vector<double>(static_cast<size_t>(rows * width), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

struct RanksLayout::Member {
  Member(const RankOptions& options, Model& model, const std::vector<LayerRange>& layers) : rank(options), part(rank, model.config(), model.dtype(), true, layers) {
    copy_weights(model, part);
  }
  Rank rank;
  Model part;
};

/// One rank in a pass.
struct RanksLayout::Place {
  Member& member;
  Pipeline& pipeline;
  PipelineWork& work;
  int64_t number;     ///< among the ranks that share a microbatch
  Documents own;      ///< this rank's tokens of the probed microbatch
};

RanksLayout::RanksLayout(const RankOptions& options, Model& model, PipelineStages stages, const ForwardOptions& forward, ContextSharing context)
    : stages_(std::move(stages)), context_(std::move(context)), forward_(forward) {
  if (context_.ranks > 1) planner_ = std::make_unique<ContextPlanner>(context_.ranks, context_.options);
  for (int64_t stage = 0; stage < stages_.ranks; ++stage)
    for (int64_t rank = 0; rank < context_.ranks; ++rank)
      members_.push_back(std::make_unique<Member>(of_rank(options, stage * context_.ranks + rank), model, stages_.held_by(stage)));
}

RanksLayout::~RanksLayout() = default;

std::string RanksLayout::name() const {
  std::vector<std::string> axes;
  if (stages_.stages() > 1 || context_.ranks == 1)
    axes.push_back(fmt::format("pp {} {}{}", stages_.ranks, stages_.title(), stages_.chunks > 1 && !stages_.given ? fmt::format(" x {}", stages_.chunks) : ""));
  if (context_.ranks > 1) axes.push_back(fmt::format("cp {} {} {}", context_.ranks, name_of(context_.options.layout), name_of(context_.options.exchange)));
  return fmt::format("{}", fmt::join(axes, " x "));
}

double RanksLayout::tolerance() const { return probe_tolerance(members_.front()->part.dtype()); }
int64_t RanksLayout::take_mismatches() { return std::exchange(mismatches_, 0); }

void RanksLayout::run(const ProbeInput& input, const ProbeMode& mode, const std::function<void(Place&)>& pass) {
  const ProbeInput other = other_boundaries(input, members_.front()->part.config().max_seq_len);
  std::vector<HostBatch> all;
  for (int64_t i = 0; i < 3; ++i) all.push_back(to_batch(i == probed ? input : other, i));
  std::atomic<int64_t> mismatches = 0;
  const auto run_ranks = members_.front()->rank.accelerator() != nullptr ? run_local_on_devices : run_local;
  run_ranks(static_cast<int>(stages_.ranks * context_.ranks), {}, [&](Communicator& world) {
    const Groups groups = make_groups(world, {.pp = stages_.ranks, .cp = context_.ranks});
    Member& member = *members_[static_cast<size_t>(world.rank())];
    std::unique_ptr<ContextAttention> context;
    std::unique_ptr<AttentionExecutor> executor = std::make_unique<ProbeAttention>(mode);
    if (planner_) {
      context = std::make_unique<ContextAttention>(member.rank, *groups.context, *planner_);
      executor = std::make_unique<SharedProbeAttention>(*context, mode.backend);
    }
    ForwardOptions forward = forward_;
    forward.attention = executor.get();
    Pipeline pipeline(member.rank, member.part, *groups.pipeline, stages_, forward, context.get());
    std::vector<HostBatch> batches = all;
    if (mode.broken == "labels")
      for (HostBatch& batch : batches) shift_own_targets(batch.targets, context->shard(batch.documents));
    const LayoutBreak broken(member.rank, mode.broken, batches, pipeline, context.get());
    PipelineWork work;
    work.microbatches = batches;
    Place place{member, pipeline, work, groups.place.cp, context ? context->shard(input.documents) : input.documents};
    pass(place);
    if (pipeline.take_mismatch()) ++mismatches;
  });
  mismatches_ += mismatches;
}

std::vector<double> RanksLayout::logits(const ProbeInput& input, const ProbeMode& mode) {
  const int64_t width = members_.front()->part.config().vocab_size;
  std::vector<double> result = without_rows(input.documents.tokens(), width);
  run(input, mode, [&](Place& place) {
    place.work.hidden = [&](int64_t number, const Tensor& hidden, const Microbatch&) {
      if (number != probed || hidden.size(0) == 0) return;
      place_rows(host_values(place.member.part.logits(place.member.rank, hidden)), place.own.indices(), result, static_cast<size_t>(width));
    };
    place.pipeline.forward(place.work);
  });
  return result;
}

std::vector<double> RanksLayout::embedding_gradient(const ProbeInput& input, const ProbeMode& mode) {
  const int64_t width = members_.front()->part.config().dim;
  std::vector<double> result = without_rows(input.documents.tokens(), width);
  run(input, mode, [&](Place& place) {
    const double one = 1;
    place.work.loss_gradient = Tensor::from<double>(place.member.rank, {1}, std::span(&one, 1));
    place.work.losses = Tensor::zeros(place.member.rank, {static_cast<int64_t>(place.work.microbatches.size())}, DType::f64);
    place.work.embedding_gradient = [&](int64_t number, const Tensor& gradient) {
      if (number == probed && gradient.size(0) > 0) place_rows(host_values(gradient), place.own.indices(), result, static_cast<size_t>(width));
    };
    place.pipeline.train(place.work);
  });
  return result;
}

std::vector<std::pair<int32_t, int32_t>> RanksLayout::targets(const ProbeInput& input, const ProbeMode& mode) {
  // The first stage has the tokens, the last one the targets.
  std::vector<std::vector<int32_t>> inputs(static_cast<size_t>(context_.ranks)), outputs(inputs.size());
  run(input, mode, [&](Place& place) {
    const auto number_of_rank = static_cast<size_t>(place.number);
    place.work.begun = [&, number_of_rank](int64_t stage, int64_t number, const Microbatch& microbatch) {
      if (number != probed) return;
      if (stage == 0) inputs[number_of_rank] = microbatch.tokens.to_vector<int32_t>();
      if (stage == stages_.stages() - 1) outputs[number_of_rank] = microbatch.targets.to_vector<int32_t>();
    };
    place.work.hidden = [](int64_t, const Tensor&, const Microbatch&) {};
    place.pipeline.forward(place.work);
  });
  std::vector<std::pair<int32_t, int32_t>> result;
  for (size_t rank = 0; rank < inputs.size(); ++rank)
    for (size_t i = 0; i < inputs[rank].size(); ++i) result.emplace_back(inputs[rank][i], outputs[rank].at(i));
  std::sort(result.begin(), result.end());
  return result;
}

bool RanksLayout::labels_change(const ProbeInput& input) {
  if (!planner_) return false;
  const std::shared_ptr<const ContextPlan> plan = planner_->plan(input.documents);
  return std::any_of(plan->shards.begin(), plan->shards.end(), [&](const std::vector<TokenRange>& shard) {
    std::vector<int32_t> targets = input.targets;
    shift_own_targets(targets, documents_of(input.documents, shard));
    return targets != input.targets;
  });
}

std::optional<ProbeLeak> RanksLayout::leak_of(const ProbeInput& input, const std::string& broken) {
  if (broken != "ring_step") return ProbeLeak{};
  return ring_step_leak(members_.front()->part.config(), input.documents, *planner_->plan(input.documents));
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

}  // namespace quire
