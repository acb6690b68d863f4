// Layout `balanced`: tokens and cost shared evenly over the ranks first, then as few keys sent as possible.
//
// A rank that holds tokens [a, b) of a document needs its keys up to b. So a document kept whole costs no traffic, nor does anything below
// the end of what a rank holds of a document anyway. Costs rise along a document: ends of long documents have to be paired with cheap
// tokens, those of short documents and of heads. Several ways of dealing the documents out are tried (context_peel.h and context_tails.h), each
// is judged, and the best is kept. Only integers decide, and counts bound the search, no clock does: every rank finds the same shards.
#pragma once
#include "parallel/context_cost.h"
#include "parallel/context_pieces.h"

namespace quire {

ShardList balanced_shards(const DocumentTable& documents, int64_t ranks, const ContextCosts& costs);

/// What is to be shared out, and within which limits.
struct BalanceTask {
  BalanceTask(const DocumentTable& documents, int64_t ranks, const ContextCosts& costs);

  bool whole(const DocumentPiece& piece) const { return piece.tokens() == documents.lengths[piece.document]; }
  int64_t cost_of(const DocumentPiece& piece) const { return whole(piece) ? document_costs[piece.document] : costs.of(piece.begin, piece.end); }

  const DocumentTable& documents;
  TokenCosts costs;
  std::vector<LayerWindow> windows;
  int64_t ranks = 1, layers = 0;
  int64_t shard = 0;                             ///< tokens of an average rank, rounded down
  int64_t slack = 0;                             ///< tokens that a rank may have more or fewer
  int64_t least_tokens = 0, most_tokens = 0;     ///< that a rank may hold
  int64_t total_cost = 0, mean_cost = 0, cost_cap = 0;  ///< mean and most of a rank
  int64_t unit = 1;                              ///< cuts inside of documents fall on multiples of it
  std::vector<int64_t> document_costs;           ///< as a whole
};

/// How good a way of dealing the documents out is.
struct BalanceVerdict {
  std::vector<int64_t> tokens, cost, received;  ///< per rank; rows of keys and values of all layers
  int64_t violation = 0;  ///< sum of what is over the limits, in millionths of them; 0: within
  __int128 score = 0;     ///< smaller is better: four times all rows received, and ranks times those of the busiest one; violations weigh heavily
};
BalanceVerdict judge(const BalanceTask& task, const PieceLists& pieces);

/// Lowers the cost of the dearest rank by swaps with cheap ones until it is within the cap: whole documents for shorter ones first, which
/// costs no traffic, then a tail for as many cheap tokens. `verdict` is that of `pieces`. At most `rounds` swaps.
void repair_balance(const BalanceTask& task, const BalanceVerdict& verdict, PieceLists& pieces, int64_t rounds);

/// Documents laid end to end in any order, to be cut like one row.
class DocumentRow {
 public:
  DocumentRow(const BalanceTask& task, std::vector<size_t> order);
  /// Zigzag over the row.
  PieceLists zigzag() const;
  /// Equal cost to every rank in order, as far as limits of tokens allow; cut between documents where one ends near enough.
  PieceLists by_cost() const;

 private:
  size_t place(int64_t token) const;  ///< of the document that holds this token of the row
  int64_t cost_until(int64_t token) const;
  int64_t cut(int64_t begin, int64_t left) const;
  void append(int64_t begin, int64_t end, std::vector<DocumentPiece>& out) const;

  const BalanceTask& task_;
  std::vector<size_t> order_;
  std::vector<int64_t> starts_, costs_;  ///< [documents + 1] in the row: tokens and cost before each
};

/// Every document cut zigzag over all ranks: always balanced, at three quarters of a full ring.
PieceLists zigzag_of_every_document(const BalanceTask& task);

}  // namespace quire
