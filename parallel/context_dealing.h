// What the ways of layout `balanced` that deal documents out rank after rank have in common.
#pragma once
#include <algorithm>
#include <vector>

#include "parallel/context_balance.h"
#include "parallel/context_pool.h"

namespace quire {

class Dealing {
 protected:
  explicit Dealing(const BalanceTask& task)
      : task_(task), all_(task.documents.lengths, task.document_costs), cap_(task.mean_cost + (task.cost_cap - task.mean_cost) / 25 * 24), pool_(all_) {}

  /// Nothing is given yet. Cuts fall on the task's unit / 2^fine.
  void begin(int fine);
  /// Sets what the rank at hand is to take: the mean of what is left, `eager` thousandths of the tolerance above that in cost. Returns the ranks left.
  int64_t begin_rank(int64_t eager);
  void give(const DocumentPiece& piece);
  void give_whole(int pooled);
  /// Number in open_ of the piece that ends last; 0 where there is none.
  size_t longest_open() const;
  /// Everything left, to the last rank.
  PieceLists give_rest();

  const BalanceTask& task_;
  DocumentPool all_;
  int64_t cap_;  ///< a little within the task's, for what rounding adds
  DocumentPool pool_;
  PieceLists pieces_;
  std::vector<DocumentPiece> open_;  ///< long documents that are given in parts: what is left of each is one piece
  int64_t unit_ = 1, tokens_left_ = 0, cost_left_ = 0;
  // Of the rank at hand.
  size_t rank_ = 0;
  int64_t need_ = 0;   ///< tokens still to take
  int64_t short_ = 0;  ///< tokens that may be missing in the end
  int64_t room_ = 0;   ///< cost that may still be taken
};

}  // namespace quire
