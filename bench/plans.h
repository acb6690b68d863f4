// Balance and traffic of context plans beside their peers, on committed lengths.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace quire::bench {

struct PlansOptions {
  std::string lengths = "bench/lengths";
  int64_t rows = 200;
  std::vector<int64_t> tokens = {8192, 32768, 131072};
  std::vector<int64_t> ranks = {2, 4, 8, 64};
};

/// One corpus, row length and number of ranks: means over rows where nothing else is said. Received: percent of a full ring.
struct PlansCell {
  std::string corpus;
  int64_t tokens = 0, ranks = 1, rows = 0;
  double documents = 0;                                  ///< of a row
  double contiguous_pairs = 0, contiguous_received = 0;  ///< largest over mean
  double zigzag_pairs = 0, zigzag_received = 0;
  double document_zigzag_pairs = 0;                      ///< a peer: every document dealt out in 2 x ranks parts, all keys sent to everybody
  double balanced_pairs = 0, worst_pairs = 0, received = 0, busiest = 0, steps = 0;  ///< balanced for attention alone
  double bound = 0, bound_busiest = 0;
  double step_cost = 0, worst_step_cost = 0, step_pairs = 0, step_received = 0;      ///< balanced for a whole step
  int64_t over_pairs = 0, outside_tokens = 0, over_step = 0;                         ///< rows beyond 1.05 or the window of tokens
  bool received_holds() const { return received <= 1.25 * bound + 5; }
  bool step_holds() const { return step_received <= received + 0.1; }
};

struct PlanningTime {
  std::string corpus;
  double best = 0, median = 0, worst = 0;  ///< seconds of 20
};

struct PlansResult {
  std::vector<PlansCell> packed, drawn;              ///< rows of best-fit packing; of documents as they are drawn
  std::vector<PlanningTime> times;                   ///< 131,072 tokens in 5,000 documents over 64 ranks
  /// Ranks, and what one of them receives under `heads`, worth in percent of a full ring: 32 heads, 8 of keys, f32.
  std::vector<std::pair<int64_t, double>> heads;
  std::string markdown() const;
  std::string to_json() const;
};

PlansResult bench_plans(const PlansOptions& options);

}  // namespace quire::bench
