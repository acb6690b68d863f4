// What the files of the planner share: documents by number, pieces of them, and the shards that they become.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/context_plan.h"

namespace quire {

/// The documents of a microbatch, empty ones left out. Throws DataError for negative lengths or 2^31 tokens.
struct DocumentTable {
  explicit DocumentTable(std::span<const int64_t> all_lengths);
  std::vector<int64_t> lengths;  ///< tokens, at least 1
  std::vector<int64_t> starts;   ///< global index of the first token
  int64_t tokens = 0;
  size_t size() const { return lengths.size(); }
};

/// Positions [begin, end) of one document.
struct DocumentPiece {
  size_t document = 0;
  int64_t begin = 0, end = 0;
  int64_t tokens() const { return end - begin; }
  bool operator==(const DocumentPiece&) const = default;
};
using PieceLists = std::vector<std::vector<DocumentPiece>>;    ///< [ranks]
using ShardList = std::vector<std::vector<TokenRange>>;        ///< [ranks]

/// Adds a range behind the others, joined with the last one where they touch; empty ones are left out.
void append_range(std::vector<TokenRange>& ranges, int64_t begin, int64_t end);
/// Ascending, neighbours joined. Pieces of a rank may come in any order, each token once.
ShardList shards_of(const DocumentTable& documents, const PieceLists& pieces);
/// The documents' pieces that ranges of global indices hold.
PieceLists pieces_of(const DocumentTable& documents, const ShardList& shards);

/// Equal parts of `tokens` indices in order: rank r holds part r.
ShardList contiguous_shards(int64_t tokens, int64_t ranks);
/// 2 x ranks equal parts: rank r holds parts r and 2 x ranks - 1 - r.
ShardList zigzag_shards(int64_t tokens, int64_t ranks);

KeyExchange plan_key_exchange(const DocumentTable& documents, const ShardList& shards, ContextExchange exchange, int64_t window);
/// Over all fields but `digest`, and the lengths.
uint64_t digest_of(const ContextPlan& plan, const DocumentTable& documents);
/// Throws ConfigError for fewer than one rank, or costs that mean nothing.
void check_context_request(int64_t ranks, ContextLayout layout, ContextExchange exchange, const ContextCosts& costs);
/// Tokens of an average rank that a rank may have more or fewer: the tolerance, or one tile (a 16th of a shard where that is less).
int64_t token_slack(int64_t tokens, int64_t ranks, const ContextCosts& costs);

}  // namespace quire
