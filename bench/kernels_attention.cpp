#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/common.h"
#include "bench/core_probe.h"
#include "bench/kernels.h"
#include "bench/peer.h"
#include "bench/rows.h"
#include "ops/kernels.h"
#include "run/machine.h"
#include "runtime/dispatch.h"
#include "runtime/error.h"

namespace quire::bench {

namespace {

constexpr int64_t tokens = 2048, heads = 8, kv_heads = 4, head_dim = 64;

/// Buffers and arguments of one row's attention.
class Own {
 public:
  explicit Own(const std::vector<int64_t>& lengths) : documents_(Documents::from_lengths(lengths)) {}
  double pairs() const { return static_cast<double>(documents_.useful_pairs(0)); }

  void forward() {
    dispatch(rank_, AttentionForwardArgs{.type = DType::f32, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .query_tokens = tokens, .key_tokens = tokens,
                                         .query_runs = documents_.runs(), .key_runs = documents_.runs(), .window = 0, .scale = 0.125, .q = q_.raw(), .q_row = heads * head_dim,
                                         .k = k_.raw(), .k_row = kv_heads * head_dim, .v = v_.raw(), .v_row = kv_heads * head_dim, .out = out_.raw(),
                                         .out_row = heads * head_dim, .lse = lse_.raw()});
  }
  /// With what it needs besides its kernel: delta.
  void backward() {
    dispatch(rank_, AttentionDeltaArgs{.type = DType::f32, .tokens = tokens, .heads = heads, .head_dim = head_dim, .out = out_.raw(), .dout = dout_.raw(), .delta = delta_.raw()});
    dispatch(rank_, AttentionBackwardArgs{.type = DType::f32, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .query_tokens = tokens, .key_tokens = tokens,
                                          .query_runs = documents_.runs(), .key_runs = documents_.runs(), .window = 0, .scale = 0.125, .q = q_.raw(), .q_row = heads * head_dim,
                                          .k = k_.raw(), .k_row = kv_heads * head_dim, .v = v_.raw(), .v_row = kv_heads * head_dim, .dout = dout_.raw(),
                                          .dout_row = heads * head_dim, .lse = lse_.raw(), .delta = delta_.raw(), .dq = dq_.raw(), .dq_row = heads * head_dim,
                                          .dk = dk_.raw(), .dk_row = kv_heads * head_dim, .dv = dv_.raw(), .dv_row = kv_heads * head_dim, .overwrite = true});
  }
  Rank& rank() { return rank_; }

 private:
  Rank rank_;
  Documents documents_;
  static constexpr int64_t queries = tokens * heads * head_dim, keys = tokens * kv_heads * head_dim;
  const Tensor q_ = random_numbers(rank_, queries, 0), k_ = random_numbers(rank_, keys, 1), v_ = random_numbers(rank_, keys, 2), dout_ = random_numbers(rank_, queries, 3);
  const Tensor out_ = no_numbers(rank_, queries), dq_ = no_numbers(rank_, queries), dk_ = no_numbers(rank_, keys), dv_ = no_numbers(rank_, keys);
  const Tensor lse_ = no_numbers(rank_, tokens * heads), delta_ = no_numbers(rank_, tokens * heads);
};

template <class F>
double seconds_of(F&& call, int64_t calls) {
  const double start = thread_seconds();
  for (int64_t i = 0; i < calls; ++i) call();
  return (thread_seconds() - start) / static_cast<double>(calls);
}

/// The peer's quickest variant, set up; "" where none can.
std::string set_up(const KernelsOptions& options, Peer& peer, const std::vector<int64_t>& lengths) {
  const auto request = [&](const std::string& variant) -> nlohmann::json {
    return {{"ask", "attention"}, {"variant", variant}, {"heads", heads}, {"kv_heads", kv_heads}, {"head_dim", head_dim}, {"lengths", lengths}};
  };
  std::string best;
  double least = 0;
  for (const std::string& variant : lengths.size() == 1 ? std::vector<std::string>{"causal"} : std::vector<std::string>{"dense", "loop", "flex", "flex-compiled"}) {
    const nlohmann::json answer = peer.ask(request(variant));
    if (options.progress)
      options.progress(fmt::format("attention, {} documents, {}, {}: {}", lengths.size(), peer.name(), variant,
                                   answer["ok"] ? fmt::format("{:.1f} ms", 1e3 * peer.number(answer, "seconds")) : answer["reason"].get<std::string>()));
    if (!answer["ok"]) continue;
    if (const double seconds = peer.number(answer, "seconds"); best.empty() || seconds < least) {
      best = variant;
      least = seconds;
    }
  }
  if (!best.empty()) peer.ask(request(best));
  return best;
}

AttentionLine measure_line(const KernelsOptions& options, CoreGate& gate, std::vector<std::unique_ptr<Peer>>& peers, const std::string& name, int64_t row, const std::vector<int64_t>& lengths) {
  Own own(lengths);
  AttentionLine line{.documents = name, .row = row, .document_count = static_cast<int64_t>(lengths.size()), .pairs = own.pairs()};
  line.times.push_back({.name = "quire"});
  std::vector<Peer*> taking_part;
  for (auto& peer : peers)
    if (const std::string variant = set_up(options, *peer, lengths); !variant.empty()) {
      line.times.push_back({.name = peer->name() + ", " + variant});
      taking_part.push_back(peer.get());
    }
  const double flops = 4.0 * head_dim * heads * line.pairs;
  const int64_t calls = std::max<int64_t>(1, static_cast<int64_t>(4e8 / flops));
  own.forward();
  own.backward();
  std::vector<double> forward, backward;
  for (int64_t pair = 0; pair < options.pairs; ++pair) {
    line.probe = std::max(line.probe, measure_peak_flops(own.rank()));
    forward.push_back(gate.measure([&] { return seconds_of([&] { own.forward(); }, calls); }));
    backward.push_back(gate.measure([&] { return seconds_of([&] { own.backward(); }, calls); }));
    line.times[0].seconds.push_back(forward.back() + backward.back());
    for (size_t i = 0; i < taking_part.size(); ++i) {
      const nlohmann::json answer = taking_part[i]->ask({{"ask", "iterate"}});
      if (!answer["ok"]) fail<UnsupportedError>("peer " + taking_part[i]->name(), "{}", answer["reason"].get<std::string>());
      line.times[i + 1].seconds.push_back(taking_part[i]->number(answer, "seconds"));
    }
  }
  for (KernelTime& time : line.times) {
    for (size_t i = 0; i < time.seconds.size(); ++i) time.ratios.push_back(time.seconds[i] / line.times[0].seconds[i]);
    time.share = 3.5 * flops / median_of(time.seconds) / line.probe;
  }
  line.forward = flops / median_of(forward) / line.probe;
  line.backward = 2.5 * flops / median_of(backward) / line.probe;
  line.both = line.times[0].share;
  if (options.progress) options.progress(fmt::format("attention, {}, row {}: {:.0f} % of the probe", name, row, 100 * line.both));
  return line;
}

}  // namespace

void bench_attention(const KernelsOptions& options, KernelsResult& result) {
  const std::vector<Lengths> corpora = read_lengths(options.lengths);
  std::vector<std::unique_ptr<Peer>> peers;
  if (!options.peers.empty())
    for (const PeerPlace& place : find_peers(options.peers, options.peer_script)) {
      peers.push_back(std::make_unique<Peer>(place, options.patience_seconds));
      result.libraries.push_back(fmt::format("{}: {}, {}", place.name, peers.back()->version(), peers.back()->build()));
    }
  Rank rank;
  CoreGate gate(rank, options.tries);
  result.attention.push_back(measure_line(options, gate, peers, "one document", 0, {tokens}));
  for (const char* name : {"lognormal-512", "lognormal-128"}) {
    const Lengths& corpus = *std::ranges::find(corpora, name, &Lengths::name);
    for (int64_t row = 0; row < options.draws; ++row) result.attention.push_back(measure_line(options, gate, peers, name, row, draw_row(corpus, tokens, row)));
  }
  result.gates.push_back("attention, without its peers: " + gate.summary());
}

}  // namespace quire::bench
