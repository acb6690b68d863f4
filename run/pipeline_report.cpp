#include "run/pipeline_report.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "data/loader.h"
#include "parallel/boundary_record.h"
#include "parallel/gradient_reducer.h"
#include "run/pipeline_stages.h"
#include "runtime/error.h"

namespace quire {

namespace {

/// Buffers of sums over so many ranks.
int64_t reduction_bytes(int64_t ranks, int64_t gradients) {
  const ReductionOptions options;
  return std::min(options.bucket_bytes * options.buckets_under_way, gradients) * (ranks - 1) / ranks;
}

double work_seconds(const ScheduleCosts& costs, int64_t stage) {
  double sum = 0;
  for (int64_t m = 0; m < costs.microbatches; ++m) sum += costs.of({ActionKind::forward, stage, m}) + costs.of({ActionKind::backward, stage, m});
  return sum;
}

/// Where only shares matter.
constexpr PipelineRates unit_rates{.product_flops = 1e12, .attention_flops = 1e12, .attention_backward_flops = 1e12};

/// A schedule that may be compared, and its stages.
struct Candidate {
  std::string schedule;
  int64_t chunks = 1;
  bool in_force = false;
};

class Reporter {
 public:
  Reporter(const Config& config, std::span<const Documents> microbatches, const PipelineReportOptions& options)
      : config_(config), options_(options), model_(config), rates_(options.rates.value_or(unit_rates)) {
    for (const Documents& documents : microbatches) all_.push_back(model_.shape_of(documents));
    report_.pipeline_ranks = config.distributed.pp;
    report_.replicas = mesh_shape(config).dp;
    report_.context = config.distributed.cp;
    report_.recomputation = config.train.activation_checkpointing;
    report_.dtype = config.train.mixed_precision;
    report_.rates = options.rates;
    report_.memory_limit = options.memory_limit;
    report_.workspace = options.workspace;
    choose_replica();
  }

  PipelineReport take() {
    const PipelineStages stages = pipeline_stages(config_);
    const PipelineSchedule schedule = training_schedule(stages, report_.microbatches);
    const ScheduleCosts costs = model_.costs(stages, own(), rates_);
    report_.ranks = ranks_of(stages, schedule);
    describe_stages(stages, costs);
    count_bytes(stages);
    if (options_.rates) {
      report_.timeline = simulate(schedule, costs).timeline;
      report_.timeline.name = stages.title();
    }
    if (options_.rates && report_.pipeline_ranks > 1) compare();
    return std::move(report_);
  }

 private:
  double cost(const MicrobatchShape& microbatch) const {
    const PipelineStages whole = cut_into_stages(config_.model, "1f1b", 1, 1);
    return model_.seconds(model_.work(whole, 0, ActionKind::forward, microbatch), rates_) + model_.seconds(model_.work(whole, 0, ActionKind::backward, microbatch), rates_);
  }

  /// The replica whose microbatches cost most.
  void choose_replica() {
    std::vector<double> costs;
    for (const MicrobatchShape& microbatch : all_) costs.push_back(cost(microbatch));
    const double mean = std::accumulate(costs.begin(), costs.end(), 0.0) / static_cast<double>(std::max<size_t>(costs.size(), 1));
    if (mean > 0) report_.spread = std::ranges::max(costs) / mean;
    double most = -1;
    std::vector<int64_t> dearest;
    for (int64_t r = 0; r < report_.replicas; ++r) {
      const std::vector<int64_t> numbers = shared_microbatches(static_cast<int64_t>(all_.size()), {r, report_.replicas}, config_.data.arrange == "cost");
      double sum = 0;
      for (const int64_t m : numbers) sum += costs[static_cast<size_t>(m)];
      if (sum <= most) continue;
      most = sum;
      report_.replica = r;
      dearest = numbers;
    }
    report_.microbatches = static_cast<int64_t>(dearest.size());
    for (const int64_t m : dearest) own_.push_back(all_[static_cast<size_t>(m)]);
  }
  std::span<const MicrobatchShape> own() const { return own_; }

  std::vector<PlannedRank> ranks_of(const PipelineStages& stages, const PipelineSchedule& schedule) const {
    const std::vector<RankActivations> activations = rank_activations(model_, stages, own(), schedule);
    std::vector<PlannedRank> ranks(static_cast<size_t>(stages.ranks));
    for (size_t r = 0; r < ranks.size(); ++r) {
      PlannedRank& rank = ranks[r];
      rank.rank = static_cast<int64_t>(r);
      for (int64_t stage = 0; stage < stages.stages(); ++stage)
        if (stages.rank_of_stage[static_cast<size_t>(stage)] == rank.rank) rank.stages.push_back(stage);
      const PipelineRankState state = state_of(stages, rank.rank);
      rank.elements = state.elements;
      rank.weights = state.parameters;
      rank.gradients = state.gradients;
      rank.optimizer = state.optimizer;
      rank.activations = activations[r].kept + activations[r].running;
      rank.buffers = activations[r].messages + reduction_bytes(report_.replicas * report_.context, state.gradients);
      if (attends_by_cudnn(stages, rank)) rank.buffers += options_.workspace.bytes;
    }
    return ranks;
  }

  /// Of ranks with as many layers of each kind it is the same.
  PipelineRankState state_of(const PipelineStages& stages, int64_t rank) const {
    const auto layers = static_cast<size_t>(config_.model.n_layers);
    std::array<size_t, 4> held{};  // embedding, decoder layers, norm, head
    for (const LayerRange& range : stages.held_by(rank))
      for (size_t layer = range.first; layer < range.last; ++layer) ++held[layer == 0 ? 0 : layer <= layers ? 1 : layer - layers + 1];
    const auto known = states_.find(held);
    return known != states_.end() ? known->second : states_.emplace(held, rank_state(config_.model, config_.dtype(), stages, rank)).first->second;
  }

  bool attends_by_cudnn(const PipelineStages& stages, const PlannedRank& rank) const {
    for (const int64_t stage : rank.stages)
      for (size_t layer = std::max<size_t>(stages.layers(stage).first, 1); layer < std::min(stages.layers(stage).last, static_cast<size_t>(config_.model.n_layers) + 1); ++layer)
        if (quire::attends_by_cudnn(config_, static_cast<int64_t>(layer) - 1)) return true;
    return false;
  }

  void describe_stages(const PipelineStages& stages, const ScheduleCosts& costs) {
    std::vector<double> of_rank(report_.ranks.size(), 0);
    double sum = 0;
    for (int64_t stage = 0; stage < stages.stages(); ++stage) {
      PlannedStage planned{stage, stages.rank_of_stage[static_cast<size_t>(stage)], layers_text(stages.layers(stage)), 0, work_seconds(costs, stage)};
      planned.elements = elements_of(stages.layers(stage));
      of_rank[static_cast<size_t>(planned.rank)] += planned.work;
      sum += planned.work;
      report_.stages.push_back(std::move(planned));
    }
    const auto over_mean = [&](double part, size_t parts) { return sum > 0 ? part * static_cast<double>(parts) / sum : 1; };
    for (PlannedStage& stage : report_.stages) stage.work = over_mean(stage.work, report_.stages.size());
    for (size_t r = 0; r < of_rank.size(); ++r) report_.ranks[r].work = over_mean(of_rank[r], of_rank.size());
  }

  std::string layers_text(const LayerRange& range) const {
    const auto count = static_cast<size_t>(config_.model.n_layers) + 3;
    const auto name = [&](size_t layer) {
      return layer == 0 ? std::string("embedding") : layer == count - 2 ? "norm" : layer == count - 1 ? "head" : fmt::format("layer {}", layer - 1);
    };
    const std::string first = name(range.first), last = name(range.last - 1);
    return first == last ? first : fmt::format("{} to {}", first, last);
  }

  int64_t elements_of(const LayerRange& range) const {
    ModelConfig without = config_.model, one = config_.model;
    without.n_layers = 1;
    one.n_layers = 2;
    without.sliding_window.clear();
    one.sliding_window.clear();
    const int64_t layer = one.parameter_count() - without.parameter_count(), table = config_.model.vocab_size * config_.model.dim;
    const auto count = static_cast<size_t>(config_.model.n_layers) + 3;
    int64_t elements = 0;
    for (size_t i = range.first; i < range.last; ++i) elements += i == 0 || i == count - 1 ? table : i == count - 2 ? config_.model.dim : layer;
    return elements;
  }

  void count_bytes(const PipelineStages& stages) {
    int64_t crossings = 0;
    for (int64_t stage = 0; stage < stages.stages(); ++stage) crossings += stages.receives(stage);
    for (const MicrobatchShape& microbatch : all_) {
      const double tokens = microbatch.tokens * static_cast<double>(report_.context);
      const auto stream = static_cast<int64_t>(tokens) * config_.model.dim * size_of(config_.dtype());
      report_.bytes.activations += crossings * stream;
      report_.bytes.activation_gradients += crossings * stream;
      report_.bytes.boundaries += crossings * 4 * (boundary_header_words * report_.context + (report_.context > 1 ? 2 : 1) * static_cast<int64_t>(tokens));
    }
    const int64_t group = report_.replicas * report_.context;
    for (const PlannedRank& rank : report_.ranks) report_.bytes.gradient_sums += 2 * (group - 1) * rank.gradients;
    if (config_.model.tie_embeddings && stages.first_rank() != stages.last_rank())
      report_.bytes.tied_tables = 2 * group * config_.model.vocab_size * config_.model.dim * size_of(accumulator_of(config_.dtype()));
  }

  std::vector<Candidate> candidates() const {
    const Config::Distributed& d = config_.distributed;
    std::vector<Candidate> all{{d.pp_schedule, d.pp_chunks, true}};
    for (const auto& [schedule, chunks] : {std::pair<const char*, int64_t>{"gpipe", 1}, {"1f1b", 1}, {"interleaved_1f1b", 2}, {"interleaved_1f1b", 4}, {"zb_h1", 1}, {"zb_v", 2}})
      if (schedule != d.pp_schedule || chunks != d.pp_chunks) all.push_back({schedule, chunks, false});
    return all;
  }

  PipelineStages stages_of(const Candidate& candidate) const {
    if (candidate.in_force) return pipeline_stages(config_);
    const std::vector<int64_t>& given = config_.distributed.pp_layers;
    const bool same = static_cast<int64_t>(given.size()) == config_.distributed.pp * candidate.chunks && candidate.schedule != "zb_v" && config_.distributed.pp_schedule != "zb_v";
    return cut_into_stages(config_.model, candidate.schedule, config_.distributed.pp, candidate.chunks, same ? given : std::vector<int64_t>{});
  }

  void compare() {
    for (const Candidate& candidate : candidates()) {
      PlannedSchedule line{candidate.schedule.substr(candidate.schedule.rfind('/') + 1), candidate.schedule, candidate.chunks, candidate.in_force};
      if (candidate.schedule == "interleaved_1f1b") line.name += fmt::format(" x {}", candidate.chunks);
      try {
        simulate_line(candidate, line);
      } catch (const Error& error) {
        const std::string text = error.what();
        const size_t end = text.find("] ");
        line.refused = end == std::string::npos ? text : text.substr(end + 2);
      }
      report_.schedules.push_back(std::move(line));
    }
    for (size_t i = 0; i < report_.schedules.size(); ++i) {
      const PlannedSchedule& line = report_.schedules[i];
      if (line.refused.empty() && line.fits && (!report_.best || line.seconds < report_.schedules[*report_.best].seconds)) report_.best = i;
    }
  }

  void simulate_line(const Candidate& candidate, PlannedSchedule& line) const {
    const PipelineStages stages = stages_of(candidate);
    const PipelineSchedule schedule = training_schedule(stages, report_.microbatches);
    const ScheduleCosts costs = model_.costs(stages, own(), rates_);
    const Simulation simulation = simulate(schedule, costs);
    line.seconds = simulation.makespan;
    line.bubble = simulation.bubble;
    line.bound = critical_path(schedule, costs);
    for (const PlannedRank& rank : candidate.in_force ? report_.ranks : ranks_of(stages, schedule))
      if (rank.total() > line.peak) {
        line.peak = rank.total();
        line.fullest = rank.rank;
      }
    line.fits = options_.memory_limit == 0 || line.peak <= options_.memory_limit;
  }

  const Config& config_;
  const PipelineReportOptions& options_;
  PipelineCostModel model_;
  PipelineRates rates_;
  std::vector<MicrobatchShape> all_;
  std::vector<MicrobatchShape> own_;  ///< of the replica
  PipelineReport report_;
  mutable std::map<std::array<size_t, 4>, PipelineRankState> states_;
};

}  // namespace

PipelineReport report_pipeline(const Config& config, std::span<const Documents> microbatches, const PipelineReportOptions& options) {
  return Reporter(config, microbatches, options).take();
}

}  // namespace quire
