#include "parallel/context_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/error.h"

namespace quire {

std::string to_string(const ContextSpeeds& speeds) {
  return fmt::format("{:.3g} pairs/s, {:.1f} GFLOP/s, {:.2f} GB/s, {:.1f} us per message", speeds.pairs_per_second, speeds.flops_per_second / 1e9,
                     speeds.bytes_per_second / 1e9, speeds.seconds_per_message * 1e6);
}

std::string ContextCandidate::name() const { return fmt::format("{}, {}", name_of(layout), name_of(exchange)); }

namespace {

constexpr double backward_pairs = 2.5;  // five products where forward has two

// Preferred first among equals: what is balanced, then what keeps ranges simple; a ring, which needs the least memory, before what holds all keys.
constexpr std::pair<ContextLayout, ContextExchange> preference[] = {
    {ContextLayout::balanced, ContextExchange::ring},   {ContextLayout::balanced, ContextExchange::gather}, {ContextLayout::contiguous, ContextExchange::ring},
    {ContextLayout::contiguous, ContextExchange::gather}, {ContextLayout::zigzag, ContextExchange::ring},   {ContextLayout::zigzag, ContextExchange::gather},
    {ContextLayout::contiguous, ContextExchange::heads}};

struct Seconds {
  double busy = 0, exposed = 0;
  double all() const { return busy + exposed; }
};

/// One layer of one rank whose messages are keys and values.
Seconds ring_seconds(const std::vector<ContextStepLoad>& steps, bool keys_again, const ContextModel& model, const ContextSpeeds& speeds) {
  const double pair = static_cast<double>(model.heads) / speeds.pairs_per_second;
  const auto link = [&](int64_t in, int64_t out, int64_t messages) {
    return static_cast<double>(std::max(in, out)) / speeds.bytes_per_second + static_cast<double>(messages) * speeds.seconds_per_message;
  };
  const auto keys = [&](const ContextStepLoad& step) {  // a record and keys with values: two messages each
    return link(step.received_rows * model.row_bytes() + 4 * step.received_words, step.sent_rows * model.row_bytes() + 4 * step.sent_words,
                2 * std::max(step.received_messages, step.sent_messages));
  };
  const auto gradients = [&](const ContextStepLoad& step) {
    return link(step.sent_rows * model.row_gradient_bytes(), step.received_rows * model.row_gradient_bytes(),
                std::max(step.received_messages, step.sent_messages));
  };
  const double forwards = model.recomputes ? 2 : 1;
  Seconds seconds;
  double returning = 0;  // gradients of the step before, on their way while this one's tiles are computed
  for (size_t s = 0; s < steps.size(); ++s) {
    const double forward = static_cast<double>(steps[s].pairs) * pair, backward = backward_pairs * forward;
    const double next = s + 1 < steps.size() ? keys(steps[s + 1]) : 0;
    seconds.busy += forwards * forward + backward;
    seconds.exposed += forwards * std::max(next - forward, 0.0) + std::max((keys_again ? next : 0) + returning - backward, 0.0);
    returning = gradients(steps[s]);
  }
  seconds.exposed += returning;
  return seconds;
}

}  // namespace

ContextCandidate predict_context(const ContextPlan& plan, const Documents& whole, const ContextModel& model, const ContextSpeeds& speeds) {
  std::vector<Seconds> ranks(static_cast<size_t>(plan.ranks));
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r].busy = static_cast<double>(tokens_of(plan.shards[r])) * model.token_flops / speeds.flops_per_second;
  for (const LayerWindow& layer : model.costs.windows) {
    const auto loads = step_loads(plan, whole, layer.window);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const Seconds one = ring_seconds(loads[r], plan.exchange == ContextExchange::ring, model, speeds);
      ranks[r].busy += static_cast<double>(layer.layers) * one.busy;
      ranks[r].exposed += static_cast<double>(layer.layers) * one.exposed;
    }
  }
  if (plan.exchange == ContextExchange::heads) {  // nothing is computed while heads are exchanged
    const ContextBytes bytes = bytes_of(plan, whole, model);
    const double messages = static_cast<double>(bytes.messages) / static_cast<double>(plan.ranks);
    for (size_t r = 0; r < ranks.size(); ++r)
      ranks[r].exposed += static_cast<double>(std::max(bytes.received_forward[r], bytes.sent_forward[r]) +
                                              std::max(bytes.received_backward[r], bytes.sent_backward[r])) /
                              speeds.bytes_per_second +
                          messages * speeds.seconds_per_message;
  }
  const Seconds slowest = *std::ranges::max_element(ranks, {}, &Seconds::all);
  return {plan.layout, plan.exchange, slowest.all(), slowest.exposed};
}

ContextChoice choose_context(std::span<const Documents> microbatches, int64_t ranks, const ContextModel& model, const ContextSpeeds& speeds,
                             std::optional<ContextLayout> layout, std::optional<ContextExchange> exchange) {
  ContextChoice choice;
  for (const auto& [a, b] : preference)
    if ((!layout || *layout == a) && (!exchange || *exchange == b) && can_exchange(a, b, model.heads, model.kv_heads, ranks))
      choice.candidates.push_back({a, b});
  if (choice.candidates.empty()) {
    if (layout && *layout != ContextLayout::contiguous)
      fail<ConfigError>("distributed.cp_exchange", "is heads with distributed.cp_layout {}; heads needs contiguous", name_of(*layout));
    fail<ConfigError>("distributed.cp_exchange",
                      "is heads with {} heads and {} key/value heads over {} ranks; heads must be a multiple of the ranks, key/value heads a "
                      "multiple "
                      "or a divisor; allowed otherwise: ring, gather",
                      model.heads, model.kv_heads, ranks);
  }
  if (choice.candidates.size() == 1) {
    choice.layout = choice.candidates.front().layout;
    choice.exchange = choice.candidates.front().exchange;
    choice.reason = fmt::format("{}: {}", choice.candidates.front().name(), layout && exchange ? "as given" : "the only one that can be");
    return choice;
  }
  if (!(speeds.pairs_per_second > 0 && speeds.flops_per_second > 0 && speeds.bytes_per_second > 0 && speeds.seconds_per_message >= 0))
    fail<StateError>("context", "speeds are {}; positive ones are needed", to_string(speeds));
  for (const Documents& whole : microbatches) {
    std::vector<int64_t> lengths;
    for (const DocumentRun& run : whole.runs()) lengths.push_back(run.length);
    for (ContextCandidate& candidate : choice.candidates) {
      const ContextCandidate one = predict_context(make_context_plan(lengths, ranks, candidate.layout, candidate.exchange, model.costs), whole, model, speeds);
      candidate.seconds += one.seconds;
      candidate.exposed += one.exposed;
    }
  }
  const double best = std::ranges::min_element(choice.candidates, {}, &ContextCandidate::seconds)->seconds;
  const auto chosen = std::ranges::find_if(choice.candidates, [&](const ContextCandidate& c) { return c.seconds <= best * (1 + context_choice_tie); });
  choice.layout = chosen->layout;
  choice.exchange = chosen->exchange;
  const double per = 1e3 / static_cast<double>(std::max<size_t>(microbatches.size(), 1));
  choice.reason = fmt::format("{}: {:.3g} ms per microbatch predicted ({:.3g} of them waiting)", chosen->name(), chosen->seconds * per, chosen->exposed * per);
  if (chosen->seconds > best) choice.reason += fmt::format(", within {:.0f} % of the fastest", 100 * context_choice_tie);
  for (const ContextCandidate& c : choice.candidates)
    if (&c != &*chosen) choice.reason += fmt::format("; {} {:.3g}", c.name(), c.seconds * per);
  return choice;
}

}  // namespace quire
