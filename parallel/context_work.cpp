// A rank's part of a context plan: which local rows go to whom, what is expected from whom, and which local queries read it.
#include <algorithm>

#include "parallel/context_attention.h"

namespace quire {

namespace {

/// Appends the rows of `own` that are global tokens [begin, end): they lie in one range of `shard`.
void append_rows(std::span<const TokenRange> shard, const TokenRange& range, std::vector<LocalRows>& rows) {
  int64_t local = 0;
  for (const TokenRange& held : shard) {
    const int64_t begin = std::max(held.begin, range.begin), end = std::min(held.end, range.end);
    if (begin < end) rows.push_back({local + begin - held.begin, end - begin});
    local += held.tokens();
  }
}

Documents documents_of_rows(const Documents& own, std::span<const LocalRows> rows) {
  std::vector<int32_t> indices, starts;
  for (const LocalRows& part : rows) {
    const auto begin = static_cast<size_t>(part.begin), count = static_cast<size_t>(part.count);
    indices.insert(indices.end(), own.indices().begin() + static_cast<ptrdiff_t>(begin), own.indices().begin() + static_cast<ptrdiff_t>(begin + count));
    starts.insert(starts.end(), own.starts().begin() + static_cast<ptrdiff_t>(begin), own.starts().begin() + static_cast<ptrdiff_t>(begin + count));
  }
  return Documents::shard(std::move(indices), std::move(starts));
}

int64_t total(std::span<const LocalRows> rows) {
  int64_t count = 0;
  for (const LocalRows& part : rows) count += part.count;
  return count;
}

ContextStepWork make_step(const ContextStep& step, int rank, const std::vector<std::vector<TokenRange>>& shards, const Documents& whole, const Documents& own,
                          const std::vector<DocumentRun>& own_runs, int64_t window) {
  ContextStepWork work;
  for (const KeyTransfer& transfer : step.transfers) {
    if (transfer.rows.empty()) continue;
    if (transfer.from == rank) {
      KeyMessage message{.peer = transfer.to};
      for (const TokenRange& range : transfer.rows) append_rows(shards[static_cast<size_t>(rank)], range, message.rows);
      message.count = total(message.rows);
      message.documents = documents_of_rows(own, message.rows);
      work.sends.push_back(std::move(message));
    } else if (transfer.to == rank) {
      KeyMessage message{.peer = transfer.from, .first = work.received, .count = tokens_of(transfer.rows)};
      message.documents = documents_of(whole, transfer.rows);
      work.received += message.count;
      work.receives.push_back(std::move(message));
    }
  }
  const auto by_peer = [](const KeyMessage& a, const KeyMessage& b) { return a.peer < b.peer; };
  std::sort(work.sends.begin(), work.sends.end(), by_peer);
  work.query_runs = queries_that_read(own_runs, *received_key_runs(work), window);
  return work;
}

ContextStepWork make_tokens(int rank, const std::vector<std::vector<TokenRange>>& shards, const Documents& whole, const Documents& own) {
  ContextStepWork work;
  for (size_t peer = 0; peer < shards.size(); ++peer) {
    KeyMessage message{.peer = static_cast<int>(peer), .first = work.received, .count = tokens_of(shards[peer])};
    message.documents = message.peer == rank ? own : documents_of(whole, shards[peer]);
    work.received += message.count;
    work.receives.push_back(std::move(message));
  }
  return work;
}

}  // namespace

DocumentRuns received_key_runs(const ContextStepWork& step) {
  auto all = std::make_shared<RunList>();
  for (const KeyMessage& message : step.receives)
    for (DocumentRun run : message.documents.runs()) {
      run.local += static_cast<int32_t>(message.first);
      all->push_back(run);
    }
  return all;
}

DocumentRuns queries_that_read(std::span<const DocumentRun> queries, std::span<const DocumentRun> keys, int64_t window) {
  std::vector<DocumentRun> sorted(keys.begin(), keys.end());
  std::sort(sorted.begin(), sorted.end(), [](const DocumentRun& a, const DocumentRun& b) {
    return a.start != b.start ? a.start < b.start : a.global < b.global;
  });
  auto result = std::make_shared<RunList>();
  for (const DocumentRun& run : queries) {
    const int64_t run_end = int64_t{run.global} + run.length;
    int64_t done = run.global;  // queries before it are decided
    bool joins = false;         // the result ends with queries of this run
    auto key = std::lower_bound(sorted.begin(), sorted.end(), run.start, [](const DocumentRun& k, int32_t start) { return k.start < start; });
    for (; key != sorted.end() && key->start == run.start && key->global < run_end; ++key) {
      // Key j is read by queries [j, j + window).
      const int64_t begin = std::max<int64_t>(done, key->global);
      const int64_t end = window == 0 ? run_end : std::min(run_end, int64_t{key->global} + key->length - 1 + window);
      if (begin >= end) continue;
      if (joins && begin == done)
        result->back().length += static_cast<int32_t>(end - begin);
      else
        result->push_back({static_cast<int32_t>(run.local + (begin - run.global)), static_cast<int32_t>(begin), static_cast<int32_t>(end - begin), run.start});
      joins = true;
      done = end;
    }
  }
  return result;
}

std::shared_ptr<ContextWork> make_context_work(std::shared_ptr<const ContextPlan> plan, int rank, const Documents& whole, const Documents& own) {
  const std::vector<TokenRange>& shard = plan->shards.at(static_cast<size_t>(rank));
  if (own.tokens() != tokens_of(shard))
    fail<StateError>("context", "boundaries of {} tokens for the shard of rank {}, which holds {}", own.tokens(), rank, tokens_of(shard));
  auto work = std::make_shared<ContextWork>();
  work->rank = rank;
  work->whole = whole;
  // Local rows stand for global tokens in ascending order; boundaries that reached the rank with others can not be shared out.
  work->own = std::is_sorted(own.indices().begin(), own.indices().end()) ? own : documents_of(whole, shard);
  work->own_runs = shared_runs(work->own);
  for (const KeyExchange& exchange : plan->exchanges) {
    std::vector<ContextStepWork>& steps = work->steps[exchange.window];
    for (const ContextStep& step : exchange.steps)
      steps.push_back(make_step(step, rank, plan->shards, whole, work->own, *work->own_runs, exchange.window));
  }
  if (plan->exchange == ContextExchange::heads) work->tokens = make_tokens(rank, plan->shards, whole, work->own);
  work->plan = std::move(plan);
  return work;
}

}  // namespace quire
