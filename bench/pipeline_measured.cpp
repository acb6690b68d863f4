#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "bench/calm.h"
#include "bench/made_step.h"
#include "bench/pipeline_parts.h"
#include "bench/rows.h"
#include "parallel/simulation.h"
#include "run/machine.h"
#include "run/trainer.h"

namespace quire::bench {

namespace {

Config small_model(const std::string& schedule, int64_t chunks) {
  Config config;
  config.model = {.dim = 128, .n_layers = 8, .n_heads = 4, .n_kv_heads = 2, .vocab_size = 512, .ffn_hidden_dim = 352, .max_seq_len = 512};
  config.train.seq_len = 512;
  config.train.global_batch_size = 8;
  config.train.microbatch_size = 1;
  config.distributed.pp = 2;
  config.distributed.pp_schedule = schedule;
  config.distributed.pp_chunks = chunks;
  config.data.dataset_path = "none";  // rows are made here
  return resolved(config);
}

/// One row in each microbatch.
LoadedStep step_of(const Lengths& corpus, const Config& config) {
  LoadedStep step;
  for (int64_t m = 0; m < config.microbatches(); ++m) {
    LoadedStep one = made_step({draw_row(corpus, config.train.seq_len, m)}, config.model.vocab_size);
    one.microbatches.front().index = m;
    step.plan.rows.push_back(one.plan.rows.front());
    step.plan.tokens += one.plan.tokens;
    step.plan.valid += one.plan.valid;
    step.microbatches.push_back(std::move(one.microbatches.front()));
  }
  return step;
}

/// What the measured actions cost; those that the schedule does not have cost nothing. Messages are free: the ranks are threads.
ScheduleCosts costs_of(const Timeline& timeline, const PipelineSchedule& schedule) {
  ScheduleCosts costs = ScheduleCosts::equal(schedule.stages, schedule.microbatches);
  for (std::array<double, 4>& seconds : costs.seconds) seconds = {};
  for (const std::vector<TimelineSpan>& spans : timeline.spans)
    for (const TimelineSpan& span : spans)
      costs.seconds[static_cast<size_t>(span.action.stage * schedule.microbatches + span.action.microbatch)][static_cast<size_t>(span.action.kind)] = span.end - span.begin;
  return costs;
}

struct Once {
  Measurement measurement;
  double simulated = 0;
};

Once measure_once(const Config& config, const LoadedStep& step) {
  std::vector<Measurement> all(2);
  Once once;
  run_local(2, {}, [&](Communicator& world) {
    Rank rank(RankOptions{.threads = 1});
    Trainer trainer(rank, config, &world);
    trainer.step(step);
    trainer.pipeline().record_times(true);
    const double before = measure_peak_flops(rank);
    world.barrier();
    const double queued = queued_seconds();
    trainer.step(step);
    const double waited = queued_seconds() - queued;
    world.barrier();
    all[static_cast<size_t>(world.rank())] = {0, std::min(before, measure_peak_flops(rank)), waited};
    const Timeline timeline = gather_timeline(rank, world, trainer.pipeline().times(), measure_clocks(rank, world));
    if (world.rank() != 0) return;
    const PipelineSchedule& schedule = trainer.pipeline().training_program(config.microbatches()).schedule;
    once.measurement.seconds = timeline.makespan();
    once.simulated = simulate(schedule, costs_of(timeline, schedule)).makespan;
  });
  once.measurement.probe = std::min(all[0].probe, all[1].probe);
  once.measurement.queued = std::max(all[0].queued, all[1].queued);
  return once;
}

}  // namespace

void measure_pipelines(const PipelineBenchOptions& options, PipelineBenchResult& result) {
  const std::vector<Lengths> corpora = read_lengths(options.lengths);
  const Lengths& corpus = *std::ranges::find(corpora, "lognormal-128", &Lengths::name);
  result.model = "8 layers of width 128, 4 heads (2 for keys), f32, 8 microbatches of a row of 512 tokens (lognormal-128), two ranks of one thread each";
  CalmGate gate;
  for (const auto& [schedule, chunks] : {std::pair<const char*, int64_t>{"gpipe", 1}, {"1f1b", 1}, {"interleaved_1f1b", 2}, {"zb_h1", 1}, {"zb_v", 2}}) {
    const Config config = small_model(schedule, chunks);
    const LoadedStep step = step_of(corpus, config);
    MeasuredPipeline line{.schedule = chunks > 1 && schedule != std::string("zb_v") ? fmt::format("{} x {}", schedule, chunks) : schedule};
    std::vector<double> ratios;
    for (int64_t round = 0; round < options.rounds; ++round) {
      std::map<double, double> simulated;  // by the measured seconds
      const auto once = [&] {
        const Once one = measure_once(config, step);
        simulated[one.measurement.seconds] = one.simulated;
        return one.measurement;
      };
      const double seconds = gate.measure(0, once, [&](const std::string& found) {
        if (options.progress) options.progress(fmt::format("{}, round {} of {}: {}", line.schedule, round + 1, options.rounds, found));
      }).seconds;
      line.measured.push_back(seconds);
      line.simulated.push_back(simulated.at(seconds));
      ratios.push_back(simulated.at(seconds) / seconds);
    }
    line.ratio = median_of(ratios);
    result.measured.push_back(std::move(line));
  }
  result.gate = gate.summary();
}

}  // namespace quire::bench
