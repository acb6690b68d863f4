#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "bench/pipeline_parts.h"
#include "bench/rows.h"
#include "data/arrangement.h"
#include "parallel/context_cost.h"
#include "run/context_costs.h"
#include "run/pipeline_report.h"
#include "runtime/error.h"

namespace quire::bench {

namespace {

/// What processors train, with a layer's attention over a row of one document as dear as its products.
Config simulated_shape(const PipelineBenchOptions& options) {
  Config config;
  config.model = {.dim = 1024, .n_layers = 32, .n_heads = 16, .n_kv_heads = 8, .vocab_size = 8192, .ffn_hidden_dim = 2816, .max_seq_len = options.tokens, .tie_embeddings = false};
  config.train.seq_len = options.tokens;
  config.distributed.pp = options.ranks;
  config.run.threads = 1;
  config.data.dataset_path = "none";  // rows are made here
  return resolved(config);
}

/// Microbatches of a step: rows in this order, so many in each.
std::vector<MicrobatchShape> microbatches_of(const PipelineCostModel& model, const std::vector<std::vector<int64_t>>& rows, std::span<const size_t> order, int64_t size) {
  std::vector<MicrobatchShape> shapes;
  for (size_t first = 0; first < order.size(); first += static_cast<size_t>(size)) {
    std::vector<int64_t> lengths;
    for (size_t i = first; i < std::min(order.size(), first + static_cast<size_t>(size)); ++i) lengths.insert(lengths.end(), rows[order[i]].begin(), rows[order[i]].end());
    shapes.push_back(model.shape_of(Documents::from_lengths(lengths)));
  }
  return shapes;
}

struct Ordered {
  double seconds = 0, bubble = 0, memory = 0;
};

/// One schedule on microbatches in one order.
Ordered simulated(const PipelineCostModel& model, const PipelineStages& stages, const std::vector<MicrobatchShape>& microbatches, const PipelineRates& rates, std::span<const int64_t> state) {
  const PipelineSchedule schedule = training_schedule(stages, static_cast<int64_t>(microbatches.size()));
  const Simulation simulation = simulate(schedule, model.costs(stages, microbatches, rates));
  const std::vector<RankActivations> activations = rank_activations(model, stages, microbatches, schedule);
  Ordered result{simulation.makespan, simulation.bubble, 0};
  for (size_t rank = 0; rank < state.size(); ++rank) result.memory = std::max(result.memory, static_cast<double>(state[rank] + activations[rank].total()));
  return result;
}

double spread_of_costs(std::span<const int64_t> costs, std::span<const size_t> order, int64_t size) {
  const std::vector<int64_t> sums = microbatch_costs(costs, order, size);
  return static_cast<double>(std::ranges::max(sums)) * static_cast<double>(sums.size()) / static_cast<double>(std::accumulate(sums.begin(), sums.end(), int64_t{0}));
}

struct Line {
  SimulatedPipeline result;
  PipelineStages stages;
  std::vector<int64_t> state;
  const PipelineCostModel* model = nullptr;
};

constexpr const char* recomputations[] = {"none", "attention", "full"};
using Models = std::array<PipelineCostModel, 3>;
Models models_of(const Config& config) {
  const auto one = [&](const char* recomputation) { return PipelineCostModel(config.model, config.dtype(), recomputation_from(recomputation)); };
  return {one(recomputations[0]), one(recomputations[1]), one(recomputations[2])};
}

/// A line for each schedule and recomputation.
std::vector<Line> lines_of(const Config& config, const Models& models, const std::string& corpus, int64_t size) {
  std::vector<Line> lines;
  for (const auto& [schedule, chunks] : {std::pair<const char*, int64_t>{"gpipe", 1}, {"1f1b", 1}, {"interleaved_1f1b", 2}, {"interleaved_1f1b", 4}, {"zb_h1", 1}, {"zb_v", 2}}) {
    const PipelineStages stages = cut_into_stages(config.model, schedule, config.distributed.pp, chunks);
    std::vector<int64_t> state;
    for (int64_t rank = 0; rank < config.distributed.pp; ++rank) {
      const PipelineRankState of_rank = rank_state(config.model, config.dtype(), stages, rank);
      state.push_back(of_rank.parameters + of_rank.gradients + of_rank.optimizer);
    }
    const std::string name = schedule == std::string("interleaved_1f1b") ? fmt::format("{} x {}", schedule, chunks) : schedule;
    for (size_t i = 0; i < models.size(); ++i)
      lines.push_back({{.corpus = corpus, .schedule = name, .recomputation = recomputations[i], .rows_per_microbatch = size}, stages, state, &models[i]});
  }
  return lines;
}

/// Of each schedule the recomputation with which it is quickest within the limit; the one that needs least memory where none is within.
void choose(const std::vector<Line>& lines, double limit, std::vector<SimulatedPipeline>& chosen) {
  for (size_t i = 0; i < lines.size();) {
    const SimulatedPipeline* best = nullptr;
    const std::string& schedule = lines[i].result.schedule;
    for (; i < lines.size() && lines[i].result.schedule == schedule; ++i) {
      const SimulatedPipeline& line = lines[i].result;
      const bool fits = line.memory <= limit, best_fits = best != nullptr && best->memory <= limit;
      if (best == nullptr || (fits && !best_fits) || (fits && line.arranged_seconds < best->arranged_seconds) || (!fits && !best_fits && line.memory < best->memory)) best = &line;
    }
    chosen.push_back(*best);
    chosen.back().fits = best->memory <= limit;
    chosen.back().limit = limit;
  }
}

}  // namespace

void simulate_pipelines(const PipelineBenchOptions& options, PipelineBenchResult& result) {
  const Config config = simulated_shape(options);
  const Models models = models_of(config);
  const PipelineRates rates = measure_pipeline_rates(config);
  result.speeds = rates.describe();
  result.model = fmt::format("32 layers of width 1,024, 16 heads (8 for keys), f32, {} ranks, {} microbatches in a step, rows of {} tokens, means of {} steps", options.ranks,
                             options.microbatches, options.tokens, options.steps);
  const std::vector<Lengths> corpora = read_lengths(options.lengths);
  const TokenCosts token_costs(context_costs(config), options.tokens);
  for (const std::string& name : options.corpora) {
    const auto corpus = std::ranges::find(corpora, name, &Lengths::name);
    if (corpus == corpora.end()) fail<ConfigError>("bench", "there are no lengths '{}' in {}", name, options.lengths);
    for (const int64_t size : options.rows_per_microbatch) {
      const int64_t per_step = options.microbatches * size;
      const std::vector<std::vector<int64_t>> all = pack_rows(*corpus, options.tokens, per_step * options.steps);
      std::vector<Line> lines = lines_of(config, models, name, size);
      for (int64_t step = 0; step < options.steps; ++step) {
        const std::vector<std::vector<int64_t>> rows(all.begin() + step * per_step, all.begin() + (step + 1) * per_step);
        std::vector<int64_t> costs;
        for (const std::vector<int64_t>& row : rows) costs.push_back(std::accumulate(row.begin(), row.end(), int64_t{0}, [&](int64_t sum, int64_t length) { return sum + token_costs.until(length); }));
        std::vector<size_t> given(rows.size());
        std::iota(given.begin(), given.end(), size_t{0});
        const std::vector<size_t> arranged = arrange_rows(costs, size);
        const std::vector<MicrobatchShape> as_packed = microbatches_of(models[0], rows, given, size), as_arranged = microbatches_of(models[0], rows, arranged, size);
        for (Line& line : lines) {
          const Ordered packed = simulated(*line.model, line.stages, as_packed, rates, line.state), better = simulated(*line.model, line.stages, as_arranged, rates, line.state);
          const double share = 1.0 / static_cast<double>(options.steps);
          SimulatedPipeline& sum = line.result;
          if (step == 0) sum.packed_spread = sum.arranged_spread = 0;
          sum.packed_seconds += share * packed.seconds;
          sum.arranged_seconds += share * better.seconds;
          sum.packed_bubble += share * packed.bubble;
          sum.arranged_bubble += share * better.bubble;
          sum.packed_spread += share * spread_of_costs(costs, given, size);
          sum.arranged_spread += share * spread_of_costs(costs, arranged, size);
          sum.memory = std::max({sum.memory, packed.memory, better.memory});
        }
      }
      const auto usual = std::ranges::find(lines, "1f1b", [](const Line& line) { return line.result.schedule; });
      choose(lines, options.memory_over_1f1b * usual->result.memory, result.simulated);
      if (options.progress) options.progress(fmt::format("{}, {} in a microbatch: done", name, size));
    }
  }
}

}  // namespace quire::bench
