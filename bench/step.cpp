#include "bench/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/common.h"
#include "bench/made_step.h"
#include "bench/peer.h"
#include "bench/rows.h"
#include "ops/cpu/instruction_set.h"
#include "run/machine.h"
#include "run/trainer.h"

namespace quire::bench {

namespace {

using Clock = std::chrono::steady_clock;
using Rows = std::vector<std::vector<int64_t>>;

struct Shape {
  const char* name;
  int64_t dim, layers, heads, kv_heads, ffn, vocabulary, rows, tokens;  ///< tokens of a row
};
constexpr int64_t head_dim = 64;
constexpr Shape all_shapes[] = {{"a", 256, 4, 4, 2, 688, 1024, 8, 512},
                                {"b", 512, 8, 8, 4, 1376, 8192, 4, 1024},
                                {"c", 256, 4, 4, 2, 688, 1024, 1, 8192},
                                {"tiny", 64, 1, 2, 1, 96, 64, 2, 64}};  // for tests of this program
constexpr int64_t trial_layers = 2;
constexpr int64_t most_materialised = 2048;  ///< tokens of a row whose scores fit into memory as a whole

const Shape& shape_of(const std::string& name) { return *std::ranges::find_if(all_shapes, [&](const Shape& each) { return name == each.name; }); }

Config config_of(const Shape& shape, const std::string& dtype) {
  Config config;
  config.model = {.dim = shape.dim, .n_layers = shape.layers, .n_heads = shape.heads, .n_kv_heads = shape.kv_heads, .head_dim = head_dim,
                  .vocab_size = shape.vocabulary, .ffn_hidden_dim = shape.ffn, .max_seq_len = shape.tokens, .tie_embeddings = true};
  config.train.seq_len = shape.tokens;
  config.train.global_batch_size = config.train.microbatch_size = shape.rows;
  config.train.mixed_precision = dtype;
  config.data.dataset_path = "none";  // rows are made here
  return resolved(config);
}

Rows rows_of(const Shape& shape, const std::string& documents, const Lengths& corpus) {
  Rows rows;
  for (int64_t row = 0; row < shape.rows; ++row) rows.push_back(documents == "packed" ? draw_row(corpus, shape.tokens, row) : std::vector{shape.tokens});
  return rows;
}

/// Quire's side of a line.
class Own {
 public:
  /// `wall`: wall time counts, else this thread's processor time.
  Own(const Shape& shape, const std::string& dtype, int64_t threads, bool wall, const LoadedStep& step)
      : wall_(wall), rank_(RankOptions{.threads = static_cast<int>(threads), .first_processor = threads > 1 ? 0 : -1}), trainer_(rank_, config_of(shape, dtype)), step_(step) {
    first_ = trainer_.step(step_);
  }
  Rank& rank() { return rank_; }
  const StepResult& first() const { return first_; }
  double flops() { return step_flops(trainer_.config().model, first_.tokens, first_.useful_pairs); }
  double last_loss() const { return last_loss_; }
  int64_t memory() { return rank_.allocator().reserved(); }

  Measurement measure() {
    const double before = measure_peak_flops(rank_), queued = queued_seconds(), cpu = thread_seconds();
    const Clock::time_point start = Clock::now();
    last_loss_ = trainer_.step(step_).loss;
    const double wall = std::chrono::duration<double>(Clock::now() - start).count(), spent = thread_seconds() - cpu, waited = queued_seconds() - queued;
    const double probe = (before + measure_peak_flops(rank_)) / 2;
    return wall_ ? Measurement{wall, probe, waited} : Measurement{spent, probe, 0};
  }

  /// Means of three steps.
  Profile::Entries profile() {
    constexpr int steps = 3;
    Profile profile;
    rank_.set_profile(&profile);
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < steps; ++i) trainer_.step(step_);
    profile.add("", std::chrono::duration<double>(Clock::now() - start).count());
    rank_.set_profile(nullptr);
    Profile::Entries entries = profile.entries();
    for (auto& [name, entry] : entries) {
      entry.seconds /= steps;
      entry.calls = name.empty() ? 1 : entry.calls / steps;
    }
    return entries;
  }

 private:
  const bool wall_;
  Rank rank_;
  Trainer trainer_;
  const LoadedStep& step_;
  StepResult first_;
  double last_loss_ = 0;
};

nlohmann::json request_of(const Shape& shape, const Rows& rows, const std::string& dtype, const std::string& variant, int64_t layers) {
  return {{"ask", "step"},
          {"variant", variant},
          {"dtype", dtype},
          {"lengths", rows},
          {"seed", 1},
          {"model",
           {{"dim", shape.dim}, {"layers", layers}, {"heads", shape.heads}, {"kv_heads", shape.kv_heads}, {"head_dim", head_dim}, {"ffn", shape.ffn}, {"vocab", shape.vocabulary}}}};
}

void tell(const StepBenchOptions& options, const std::string& line) {
  if (options.progress) options.progress(line);
}

/// The quickest variant of a peer, each tried with a step of few layers.
std::string choose_variant(const StepBenchOptions& options, Peer& peer, const Shape& shape, const Rows& rows, const std::string& dtype, StepLine& line) {
  if (!options.variant.empty()) return options.variant;
  const std::vector<std::string> variants = line.documents == "one" ? std::vector<std::string>{"causal", "causal+compile"}
                                                                    : std::vector<std::string>{"dense", "dense+compile", "loop", "loop+compile", "flex", "flex-compiled"};
  const StepTrial* best = nullptr;
  line.trials.reserve(line.trials.size() + variants.size());  // `best` points into it
  for (const std::string& variant : variants) {
    if (variant == "flex" && shape.tokens > most_materialised) {
      line.trials.push_back({peer.name(), variant, fmt::format("not tried: uncompiled it holds {} x {} scores of every head and layer", shape.tokens, shape.tokens), 0});
      continue;
    }
    const nlohmann::json answer = peer.ask(request_of(shape, rows, dtype, variant, std::min(trial_layers, shape.layers)));
    StepTrial trial{peer.name(), variant, "", 0};
    if (answer["ok"]) trial.seconds = peer.number(answer, "seconds");
    else trial.reason = answer["reason"];
    tell(options, fmt::format("{} {}, {}, {}: {}", line.shape, line.documents, peer.name(), variant,
                              trial.reason.empty() ? fmt::format("{} with {} layers", milliseconds(trial.seconds), std::min(trial_layers, shape.layers)) : trial.reason));
    line.trials.push_back(trial);
    if (trial.reason.empty() && (!best || trial.seconds < best->seconds)) best = &line.trials.back();
  }
  if (!best) fail<UnsupportedError>("peer " + peer.name(), "it can compute no variant of shape {}; the last one said: {}", line.shape, line.trials.back().reason);
  return best->variant;
}

/// Measures one line; the peers hold one model each, that of the line.
class LineBench {
 public:
  LineBench(const StepBenchOptions& options, CalmGate& gate, std::vector<std::unique_ptr<Peer>>& peers, const Shape& shape, const std::string& documents, const Lengths& corpus)
      : options_(options), gate_(gate), peers_(peers), shape_(shape), rows_(rows_of(shape, documents, corpus)), step_(made_step(rows_, shape.vocabulary)) {
    line_.shape = shape.name;
    line_.documents = documents;
    line_.tokens = step_.plan.tokens;
    for (const auto& row : rows_) line_.document_count += static_cast<int64_t>(row.size());
  }

  StepLine run() {
    set_up_own();
    for (auto& peer : peers_) set_up_peer(*peer);
    for (int64_t pair = 0; pair < options_.pairs; ++pair)
      for (size_t side = 0; side < line_.sides.size(); ++side) measure(pair, side);
    for (StepSide& side : line_.sides)
      for (size_t i = 0; i < side.seconds.size(); ++i) {
        side.ratios.push_back(side.seconds[i] / line_.sides[0].seconds[i]);
        side.share.push_back(line_.flops / side.seconds[i] / probes_[side.threads > 1 ? 1 : 0]);
      }
    for (size_t i = 0; i < own_.size(); ++i) {
      line_.sides[i].last_loss = own_[i]->last_loss();
      line_.sides[i].memory = own_[i]->memory();
    }
    line_.probe = probes_[options_.threads > 1 ? 1 : 0];
    if (options_.profile) line_.profile = own_[0]->profile();
    if (options_.dense && line_.shape == "c" && line_.documents == "packed")
      for (auto& peer : peers_) measure_dense(*peer);
    return std::move(line_);
  }

 private:
  void add_own(const std::string& dtype, int64_t threads) {
    own_.push_back(std::make_unique<Own>(shape_, dtype, threads, options_.threads > 1, step_));
    Own& own = *own_.back();
    line_.sides.push_back({.name = "quire", .version = std::string(version()), .build = std::string(instruction_set(own.rank())), .dtype = dtype, .threads = threads,
                           .first_loss = own.first().loss});
    line_.flops = own.flops();
  }
  void set_up_own() {
    for (const std::string& dtype : options_.dtypes) add_own(dtype, options_.threads);
    if (options_.threads > 1) add_own(options_.dtypes[0], 1);
  }
  void set_up_peer(Peer& peer) {
    const std::string& dtype = options_.dtypes[0];
    const std::string variant = choose_variant(options_, peer, shape_, rows_, dtype, line_);
    const nlohmann::json answer = peer.ask(request_of(shape_, rows_, dtype, variant, shape_.layers));
    if (!answer["ok"]) fail<UnsupportedError>("peer " + peer.name(), "{}: {}", variant, answer["reason"].get<std::string>());
    line_.sides.push_back({.name = peer.name(), .version = peer.version(), .build = peer.build(), .variant = variant, .dtype = dtype, .first_loss = peer.number(answer, "loss")});
  }

  void measure(int64_t pair, size_t at) {
    StepSide& side = line_.sides[at];
    const auto once = [&] { return at < own_.size() ? own_[at]->measure() : measure_peer(*peers_[at - own_.size()], side); };
    const Measurement found = gate_.measure(side.threads > 1 ? 1 : 0, once, [&](const std::string& text) {
      tell(options_, fmt::format("{} {}, pair {} of {}, {} {}{}: {}", line_.shape, line_.documents, pair + 1, options_.pairs, side.name, side.dtype,
                                 side.threads > 1 ? fmt::format(" with {} threads", side.threads) : "", text));
    });
    side.seconds.push_back(found.seconds);
    double& probe = probes_[side.threads > 1 ? 1 : 0];
    probe = std::max(probe, found.probe);
  }

  Measurement measure_peer(Peer& peer, StepSide& side) {
    Rank& rank = own_[0]->rank();
    const double before = measure_peak_flops(rank);
    const nlohmann::json answer = peer.ask({{"ask", "iterate"}});
    const double probe = (before + measure_peak_flops(rank)) / 2;
    if (!answer["ok"]) fail<UnsupportedError>("peer " + peer.name(), "{}: {}", side.variant, answer["reason"].get<std::string>());
    side.last_loss = peer.number(answer, "loss");
    const nlohmann::json memory = peer.ask({{"ask", "memory"}});
    if (memory["ok"]) side.memory = static_cast<int64_t>(peer.number(memory, "peak_bytes"));
    return {peer.number(answer, "seconds"), probe, 0};
  }

  void measure_dense(Peer& peer) {
    double best = 0;
    for (const char* variant : {"dense", "dense+compile"}) {
      const nlohmann::json answer = peer.ask(request_of(shape_, rows_, options_.dtypes[0], variant, shape_.layers));
      const double seconds = answer["ok"] ? peer.number(answer, "seconds") : 0;
      tell(options_, fmt::format("c packed, {}, {}: {}", peer.name(), variant, answer["ok"] ? milliseconds(seconds) : answer["reason"].get<std::string>()));
      if (seconds > 0 && (best == 0 || seconds < best)) best = seconds;
    }
    if (best > 0) line_.dense[peer.name()] = best;
  }

  const StepBenchOptions& options_;
  CalmGate& gate_;
  std::vector<std::unique_ptr<Peer>>& peers_;
  const Shape& shape_;
  const Rows rows_;
  const LoadedStep step_;
  StepLine line_;
  std::vector<std::unique_ptr<Own>> own_;
  double probes_[2] = {0, 0};  ///< the best of this line, with one thread and with more: others of the machine's programs can only lower it
};

}  // namespace

void check(const StepBenchOptions& options) {
  std::vector<std::string> shapes;
  for (const Shape& shape : all_shapes) shapes.push_back(shape.name);
  check_names("--shapes", options.shapes, shapes);
  check_names("--documents", options.documents, {"packed", "one"});
  check_names("--dtype", options.dtypes, {"f32", "bf16"});
  if (options.pairs < 1 || options.tries < 1) fail<ConfigError>("bench", "--pairs is {} and --tries {}; both are at least 1", options.pairs, options.tries);
  if (options.threads < 1 || options.threads > 1024) fail<ConfigError>("bench", "--threads is {}; allowed: 1 to 1024", options.threads);
  if (!(options.patience_seconds > 0)) fail<ConfigError>("bench", "--patience is {}; it is above 0", options.patience_seconds);
  if (options.threads > 1 && !options.peers.empty()) fail<ConfigError>("bench", "peers have one thread; with --threads {} use --no-peers", options.threads);
  if (!options.variant.empty() && options.documents.size() > 1 && options.variant.starts_with("causal"))
    fail<ConfigError>("bench", "--variant {} knows no documents; use it with --documents one", options.variant);
}

const StepSide* StepLine::best_peer() const {
  const StepSide* best = nullptr;
  for (const StepSide& side : sides)
    if (side.name != "quire" && (!best || median_of(side.ratios) < median_of(best->ratios))) best = &side;
  return best;
}

StepBenchResult bench_step(const StepBenchOptions& options) {
  check(options);
  const std::vector<Lengths> corpora = read_lengths(options.lengths);
  std::vector<std::unique_ptr<Peer>> peers;
  if (!options.peers.empty())
    for (const PeerPlace& place : find_peers(options.peers, options.peer_script)) {
      peers.push_back(std::make_unique<Peer>(place, options.patience_seconds));
      tell(options, fmt::format("{}: {}, {}", place.name, peers.back()->version(), peers.back()->build()));
    }
  CalmGate gate(options.tries);
  StepBenchResult result;
  result.machine = machine_name();
  result.date = today();
  for (const std::string& shape : options.shapes)
    for (const std::string& documents : options.documents)
      result.lines.push_back(LineBench(options, gate, peers, shape_of(shape), documents, corpora.front()).run());
  result.repeated = gate.repeated();
  result.disturbed = gate.disturbed();
  result.gate = gate.summary();
  return result;
}

}  // namespace quire::bench
