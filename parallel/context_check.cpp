// A plan looked at token by token. Shares nothing with the code that makes plans but the digest.
#include <algorithm>

#include "parallel/context_pieces.h"
#include "runtime/error.h"

namespace quire {
namespace {

constexpr std::string_view where = "context_plan";

class ContextPlanCheck {
 public:
  ContextPlanCheck(const ContextPlan& plan, const DocumentTable& documents) : plan_(plan), owner_(static_cast<size_t>(documents.tokens), -1) {
    starts_.reserve(owner_.size());
    for (size_t d = 0; d < documents.size(); ++d) starts_.insert(starts_.end(), static_cast<size_t>(documents.lengths[d]), documents.starts[d]);
  }

  void run() {
    check_shards();
    if (plan_.exchange == ContextExchange::heads) {
      check_heads();
      return;
    }
    for (size_t i = 0; i < plan_.exchanges.size(); ++i) {
      const KeyExchange& exchange = plan_.exchanges[i];
      for (size_t j = 0; j < i; ++j)
        if (plan_.exchanges[j].window == exchange.window) fail<ScheduleError>(where, "two exchanges have a window of {} tokens", exchange.window);
      for (size_t step = 0; step < exchange.steps.size(); ++step)
        for (const KeyTransfer& each : exchange.steps[step].transfers) check_transfer(each, name_of(exchange, step, each));
      for (int64_t rank = 0; rank < plan_.ranks; ++rank) check_keys(exchange, rank);
      for (size_t step = 0; step < exchange.steps.size(); ++step) check_order(exchange, step);
    }
  }

 private:
  int64_t tokens() const { return static_cast<int64_t>(owner_.size()); }

  void check_ranges(std::span<const TokenRange> ranges, const std::string& whose) const {
    for (size_t i = 0; i < ranges.size(); ++i) {
      const TokenRange& range = ranges[i];
      if (range.begin < 0 || range.begin >= range.end || range.end > tokens())
        fail<ScheduleError>(where, "{}: tokens {} to {} of a microbatch of {}", whose, range.begin, range.end, tokens());
      if (i > 0 && range.begin <= ranges[i - 1].end)
        fail<ScheduleError>(where, "{}: token {} follows token {}; ranges ascend, and neighbours are joined", whose, range.begin, ranges[i - 1].end - 1);
    }
  }

  void check_shards() {
    if (plan_.tokens != tokens()) fail<ScheduleError>(where, "the plan is for {} tokens, the documents have {}", plan_.tokens, tokens());
    if (plan_.ranks < 1 || static_cast<int64_t>(plan_.shards.size()) != plan_.ranks)
      fail<ScheduleError>(where, "{} shards for {} ranks", plan_.shards.size(), plan_.ranks);
    for (int64_t rank = 0; rank < plan_.ranks; ++rank)
      for (const TokenRange& range : plan_.shards[static_cast<size_t>(rank)])
        for (int64_t token = std::max(range.begin, 0); token < std::min<int64_t>(range.end, tokens()); ++token) {
          int64_t& owner = owner_[static_cast<size_t>(token)];
          if (owner >= 0) fail<ScheduleError>(where, "token {} is held by rank {} and by rank {}", token, owner, rank);
          owner = rank;
        }
    for (int64_t rank = 0; rank < plan_.ranks; ++rank) check_ranges(plan_.shards[static_cast<size_t>(rank)], fmt::format("shard of rank {}", rank));
    for (int64_t token = 0; token < tokens(); ++token)
      if (owner_[static_cast<size_t>(token)] < 0) fail<ScheduleError>(where, "token {} is held by no rank", token);
  }

  void check_heads() const {
    if (!plan_.exchanges.empty()) fail<ScheduleError>(where, "an exchange of heads has no exchange of keys, found {}", plan_.exchanges.size());
    for (int64_t token = 1; token < tokens(); ++token)
      if (owner_[static_cast<size_t>(token)] < owner_[static_cast<size_t>(token - 1)])
        fail<ScheduleError>(where, "token {} of rank {} follows one of rank {}; an exchange of heads needs contiguous shards in order", token,
                            owner_[static_cast<size_t>(token)], owner_[static_cast<size_t>(token - 1)]);
  }

  int64_t shift_of(const KeyTransfer& transfer) const { return ((transfer.to - transfer.from) % plan_.ranks + plan_.ranks) % plan_.ranks; }

  static std::string name_of(const KeyExchange& exchange, size_t step, const KeyTransfer& transfer) {
    return fmt::format("window {}, step {}, rank {} to rank {}", exchange.window, step, transfer.from, transfer.to);
  }

  /// Two ranks, and keys that the sender holds.
  void check_transfer(const KeyTransfer& transfer, const std::string& name) const {
    if (transfer.from < 0 || transfer.from >= plan_.ranks || transfer.to < 0 || transfer.to >= plan_.ranks || transfer.from == transfer.to)
      fail<ScheduleError>(where, "{}: no two of {} ranks", name, plan_.ranks);
    if (transfer.rows.empty()) fail<ScheduleError>(where, "{}: no keys", name);
    check_ranges(transfer.rows, name);
    for (const TokenRange& range : transfer.rows)
      for (int32_t token = range.begin; token < range.end; ++token)
        if (owner_[static_cast<size_t>(token)] != transfer.from)
          fail<ScheduleError>(where, "{}: the sender does not hold token {}, rank {} does", name, token, owner_[static_cast<size_t>(token)]);
  }

  /// Which transfers make a step, in which order, and which steps there are.
  void check_order(const KeyExchange& exchange, size_t step) const {
    const std::vector<KeyTransfer>& transfers = exchange.steps[step].transfers;
    if (transfers.empty()) fail<ScheduleError>(where, "window {}, step {}: nothing is sent, so there is no such step", exchange.window, step);
    if (plan_.exchange == ContextExchange::gather && step > 0)
      fail<ScheduleError>(where, "window {}, step {}: keys are gathered in one step", exchange.window, step);
    for (size_t i = 0; i < transfers.size(); ++i) {
      const KeyTransfer& each = transfers[i];
      if (i > 0 && std::pair(each.to, each.from) <= std::pair(transfers[i - 1].to, transfers[i - 1].from))
        fail<ScheduleError>(where, "{}: follows rank {} to rank {}; transfers ascend by receiver, then sender", name_of(exchange, step, each),
                            transfers[i - 1].from, transfers[i - 1].to);
      if (plan_.exchange == ContextExchange::ring) check_shift(exchange, step, each, name_of(exchange, step, each));
    }
  }

  /// A ring's step has one shift, and shifts ascend.
  void check_shift(const KeyExchange& exchange, size_t number, const KeyTransfer& transfer, const std::string& name) const {
    const int64_t shift = shift_of(transfer), expected = shift_of(exchange.steps[number].transfers.front());
    if (shift != expected) fail<ScheduleError>(where, "{}: {} places around the ring, the step's first transfer goes {}", name, shift, expected);
    if (number > 0 && shift <= shift_of(exchange.steps[number - 1].transfers.front()))
      fail<ScheduleError>(where, "{}: {} places around the ring, no more than in the step before", name, shift);
  }

  /// What a rank's queries read against what it holds and receives.
  void check_keys(const KeyExchange& exchange, int64_t rank) const {
    std::vector<int32_t> opens(owner_.size() + 1, 0);  // queries that begin to read at a key, less those that read up to the one before
    for (int64_t query = 0; query < tokens(); ++query) {
      if (owner_[static_cast<size_t>(query)] != rank) continue;
      const int64_t start = starts_[static_cast<size_t>(query)];
      ++opens[static_cast<size_t>(exchange.window == 0 ? start : std::max(start, query - exchange.window + 1))];
      --opens[static_cast<size_t>(query + 1)];
    }
    std::vector<bool> received(owner_.size(), false);
    for (const ContextStep& step : exchange.steps)
      for (const KeyTransfer& transfer : step.transfers) {
        if (transfer.to != rank) continue;
        for (const TokenRange& range : transfer.rows)
          for (int32_t token = range.begin; token < range.end; ++token) {
            if (received[static_cast<size_t>(token)])
              fail<ScheduleError>(where, "window {}: rank {} receives the key of token {} twice", exchange.window, rank, token);
            received[static_cast<size_t>(token)] = true;
          }
      }
    int64_t readers = 0;
    for (int64_t key = 0; key < tokens(); ++key) {
      readers += opens[static_cast<size_t>(key)];
      const bool arrives = received[static_cast<size_t>(key)], own = owner_[static_cast<size_t>(key)] == rank;
      if (readers > 0 && !own && !arrives)
        fail<ScheduleError>(where, "window {}: rank {} reads the key of token {} and neither holds nor receives it", exchange.window, rank, key);
      if (arrives && readers == 0)
        fail<ScheduleError>(where, "window {}: rank {} receives the key of token {}, which none of its queries reads", exchange.window, rank, key);
    }
  }

  const ContextPlan& plan_;
  std::vector<int64_t> owner_;   // of each token
  std::vector<int64_t> starts_;  // of each token's document
};

}  // namespace

void check_context_plan(const ContextPlan& plan, std::span<const int64_t> lengths) {
  const DocumentTable documents(lengths);
  ContextPlanCheck(plan, documents).run();
  if (const uint64_t digest = digest_of(plan, documents); digest != plan.digest)
    fail<ScheduleError>(where, "the plan's digest is {:016x}, of its content {:016x}", plan.digest, digest);
}

}  // namespace quire
