// Which layout and exchange are best for a model, its documents and the speeds of ranks and links.
#pragma once
#include <optional>
#include <string>

#include "parallel/context_traffic.h"

namespace quire {

/// Measured once (measure_context_speeds), recorded and replayed.
struct ContextSpeeds {
  double pairs_per_second = 0;     ///< query-key pairs of attention's forward pass, counted per head
  double flops_per_second = 0;     ///< of matrix products
  double bytes_per_second = 0;     ///< from one rank to its neighbour
  double seconds_per_message = 0;
  bool operator==(const ContextSpeeds&) const = default;
};
/// `1.2e+09 pairs/s, 45.0 GFLOP/s, 3.1 GB/s, 8.0 us per message`
std::string to_string(const ContextSpeeds& speeds);

/// One layout and exchange, over all microbatches considered.
struct ContextCandidate {
  ContextLayout layout = ContextLayout::contiguous;
  ContextExchange exchange = ContextExchange::ring;
  double seconds = 0;         ///< predicted, forward and backward
  double exposed = 0;         ///< of them, of the slowest ranks, waiting for messages that no tiles hide
  std::string name() const;   ///< `balanced, ring`
};

struct ContextChoice {
  ContextLayout layout = ContextLayout::balanced;
  ContextExchange exchange = ContextExchange::ring;
  std::vector<ContextCandidate> candidates;  ///< that can be, in order of preference
  std::string reason;                        ///< one line for the log
};

/// Candidates within this share of the best are equal: the first of them in order of preference is taken, so that noise decides nothing.
constexpr double context_choice_tie = 0.03;

/// A plan's predicted seconds: for each layer, forward and backward, the tiles of a rank's steps one after the other and what of the next step's messages takes
/// longer than they do; with what is outside of attention, of the slowest rank. Backward counts 2.5 times forward's pairs.
ContextCandidate predict_context(const ContextPlan& plan, const Documents& whole, const ContextModel& model, const ContextSpeeds& speeds);

/// The best layout and exchange for these microbatches; what is given is kept. Where only one can be, nothing is predicted. A pure function. Throws
/// ConfigError where nothing can be: `heads` with heads that do not fit or with another layout than contiguous; StateError where speeds are needed
/// and not positive.
ContextChoice choose_context(std::span<const Documents> microbatches, int64_t ranks, const ContextModel& model, const ContextSpeeds& speeds,
                             std::optional<ContextLayout> layout = {}, std::optional<ContextExchange> exchange = {});

}  // namespace quire
