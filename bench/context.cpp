#include "bench/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "bench/calm.h"
#include "bench/made_step.h"
#include "bench/rows.h"
#include "parallel/communicator.h"
#include "parallel/context_plan.h"
#include "run/machine.h"
#include "run/trainer.h"

namespace quire::bench {

namespace {

using Clock = std::chrono::steady_clock;

Config small_model(int64_t tokens) {
  Config config;
  config.model.dim = 256;
  config.model.n_layers = 2;
  config.model.n_heads = 4;
  config.model.n_kv_heads = 2;
  config.model.ffn_hidden_dim = 704;
  config.model.vocab_size = 512;
  config.train.seq_len = tokens;
  config.train.global_batch_size = 1;
  config.data.dataset_path = "none";  // rows are made here
  return config;
}

/// A step after another one that fills the allocator. The processor is probed by all ranks at once.
Measurement measure(const Config& config, int ranks, const LoadedStep& step) {
  std::vector<Measurement> all(static_cast<size_t>(ranks));
  run_local(ranks, {}, [&](Communicator& world) {
    Rank rank(RankOptions{.threads = 1});
    Trainer trainer(rank, config, &world);
    trainer.step(step);
    const double before = measure_peak_flops(rank);
    world.barrier();
    const double queued = queued_seconds();
    const Clock::time_point start = Clock::now();
    trainer.step(step);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count(), waited = queued_seconds() - queued;
    world.barrier();
    all[static_cast<size_t>(world.rank())] = {seconds, std::min(before, measure_peak_flops(rank)), waited};
  });
  Measurement slowest = all.front();
  for (const Measurement& one : all)
    slowest = {std::max(slowest.seconds, one.seconds), std::min(slowest.probe, one.probe), std::max(slowest.queued, one.queued)};
  return slowest;
}

struct Candidate {
  Config config;
  const LoadedStep* step;
};

}  // namespace

ContextBenchResult bench_context(const ContextBenchOptions& options) {
  const std::vector<Lengths> corpora = read_lengths(options.lengths);
  const auto corpus = std::ranges::find(corpora, options.corpus, &Lengths::name);
  if (corpus == corpora.end()) {
    std::string known;
    for (const Lengths& each : corpora) known += (known.empty() ? "" : ", ") + each.name;
    fail<ConfigError>("bench", "--documents is {}; allowed: {}", options.corpus, known);
  }
  const std::vector<int64_t> lengths = draw_row(*corpus, options.tokens, 0);
  Config config = small_model(options.tokens);
  const LoadedStep packed = made_step({lengths}, config.model.vocab_size), whole = made_step({{options.tokens}}, config.model.vocab_size);
  ContextBenchResult result;
  result.tokens = options.tokens;
  result.documents = static_cast<int64_t>(lengths.size());
  result.longest = std::ranges::max(lengths);
  result.model = fmt::format("{} layers of width {}, {} heads ({} for keys) of {}, f32", config.model.n_layers, config.model.dim,
                             config.model.n_heads, config.model.n_kv_heads, config.model.dim / config.model.n_heads);
  const Config alone = resolved(config);
  config.distributed.cp = 2;
  std::vector<Candidate> candidates;
  for (const auto& [layout, exchange] : {std::pair{"balanced", "ring"},
                                         {"balanced", "gather"},
                                         {"contiguous", "ring"},
                                         {"contiguous", "gather"},
                                         {"zigzag", "ring"},
                                         {"zigzag", "gather"},
                                         {"contiguous", "heads"}}) {
    config.distributed.cp_layout = layout;
    config.distributed.cp_exchange = exchange;
    result.lines.push_back({.name = fmt::format("{}, {}", layout, exchange)});
    candidates.push_back({resolved(config), &packed});
  }
  // All keys travel and all tiles below the diagonal are computed: the same work as of a row that is one document.
  config.distributed.cp_layout = "zigzag";
  config.distributed.cp_exchange = "ring";
  result.lines.push_back({.name = "full zigzag ring, nothing skipped", .peer = true});
  candidates.push_back({resolved(config), &whole});

  CalmGate gate;
  for (int64_t round = 0; round < options.rounds; ++round) {
    const auto tell_of = [&](const std::string& name) {
      return [&options, prefix = fmt::format("round {} of {}, {}: ", round + 1, options.rounds, name)](const std::string& found) {
        if (options.progress) options.progress(prefix + found);
      };
    };
    result.alone.push_back(gate.measure(0, [&] { return measure(alone, 1, packed); }, tell_of("one rank")).seconds);
    for (size_t i = 0; i < candidates.size(); ++i) {
      const auto once = [&] { return measure(candidates[i].config, 2, *candidates[i].step); };
      result.lines[i].seconds.push_back(gate.measure(1, once, tell_of(result.lines[i].name)).seconds);
    }
  }
  result.repeated = gate.repeated();
  result.disturbed = gate.disturbed();
  result.gate = gate.summary();
  result.alone_median = median_of(result.alone);
  for (size_t i = 0; i < result.lines.size(); ++i) {
    ContextBenchLine& line = result.lines[i];
    line.median = median_of(line.seconds);
    line.efficiency = result.alone_median / (2 * line.median);
    if (!line.peer && line.efficiency > result.lines[result.best].efficiency) result.best = i;
  }
  return result;
}

std::string ContextBenchResult::table() const {
  std::string text = fmt::format("training steps of one row of {} tokens in {} documents, the longest of {}; {}; one thread each, on {}\n\n", tokens,
                                 documents, longest, model, processor_name());
  text += fmt::format("  {:<36}{:>12}{:>14}\n", "", "ms per step", "efficiency");
  text += fmt::format("  {:<36}{:>12.1f}{:>14}\n", "one rank", 1e3 * alone_median, "");
  for (size_t i = 0; i < lines.size(); ++i)
    text += fmt::format("{} {:<36}{:>12.1f}{:>14.3f}\n", i == best ? '>' : ' ', lines[i].name, 1e3 * lines[i].median, lines[i].efficiency);
  text += fmt::format("\nEfficiency: T(1 rank) / (2 x T(2 ranks)), medians of {}. Aim: 0.85, stretch 0.95; best: {} with {:.3f}.\n", alone.size(),
                      lines[best].name, lines[best].efficiency);
  text += gate;
  return text;
}

std::string ContextBenchResult::to_json() const {
  nlohmann::ordered_json object = {{"tokens", tokens},         {"documents", documents},
                                   {"longest", longest},       {"model", model},
                                   {"alone_seconds", alone},   {"alone_median", alone_median},
                                   {"best", lines[best].name}, {"repeated", repeated},
                                   {"disturbed", disturbed},   {"lines", nlohmann::ordered_json::array()}};
  for (const ContextBenchLine& line : lines)
    object["lines"].push_back({{"name", line.name}, {"peer", line.peer}, {"seconds", line.seconds}, {"median", line.median}, {"efficiency", line.efficiency}});
  return object.dump();
}

}  // namespace quire::bench
