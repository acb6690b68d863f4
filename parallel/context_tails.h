// Tails against heads: the way of layout `balanced` to deal out microbatches in which few documents hold most of the cost.
#pragma once
#include <vector>

#include "parallel/context_dealing.h"

namespace quire {

/// One way among several.
struct TailsVariant {
  int64_t eager = 0;   ///< how far above the mean of what is left a rank may go, in thousandths of the tolerance
  int64_t gain = 0;    ///< percent by which another document's head has to lengthen a tail to be taken
  int64_t whole = 0;   ///< documents up to so many tokens are kept whole where that is possible
  int fine = 0;        ///< cuts at the unit / 2^fine
};

/// Rank after rank takes the longest tail of the heaviest document with which it can be completed with the cheapest tokens left: short
/// documents whole, the head of the same document, and heads of other long ones, lowest first. Tokens and cost left are averaged again for
/// each rank. Some tokens left are always as cheap as their mean, and heads can be cut anywhere, so that every rank comes within its limits
/// as far as single tokens allow. Peel and fill (context_peel.h) makes fewer cuts, but counts on whole short documents: it runs out of them
/// where a long one holds many ranks' cost in few tokens.
class TailsAndHeads : private Dealing {
 public:
  explicit TailsAndHeads(const BalanceTask& task) : Dealing(task) {}
  PieceLists deal(const TailsVariant& variant);

 private:
  /// The cheapest way to add tokens: so many from heads up to `level`, the rest from the pool.
  struct Completion {
    int64_t cost = 0, heads = 0;
  };

  void fill_rank();
  bool take_longest();
  void take_tail(const DocumentPiece& from);
  void add_partner();
  int64_t level_of(int64_t tokens) const;
  int64_t cost_of_heads(int64_t tokens) const;
  Completion complete(int64_t tokens, bool from_pool) const;
  int64_t longest_tail(const DocumentPiece& from, bool from_pool);
  bool take_documents();
  void take_heads();

  TailsVariant variant_;
  std::vector<DocumentPiece> heads_;  ///< taken out of open_: those whose heads the rank may use, that of its tail first
};

}  // namespace quire
