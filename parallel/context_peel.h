// Peel and fill: the main way of layout `balanced` to deal documents out.
#pragma once
#include <optional>
#include <random>

#include "parallel/context_dealing.h"

namespace quire {

/// One way among several.
struct PeelVariant {
  int64_t eager = 0;         ///< how far above the mean of what is left a rank may go, in thousandths of the tolerance
  int fine = 0;              ///< cuts at the unit / 2^fine
  bool mix = false;          ///< a rank with a tail may also take the head of another long document
  uint64_t skip = 0;         ///< percent: how often the best candidate is passed over
  uint64_t seed = 0;
};

/// Rank after rank takes the longest document left: whole where the rank can still be completed with the cheapest tokens left, else the
/// longest tail of it with which it can (short documents whole, then the head of the same document); then the longest whole documents that
/// leave room to finish. Tokens and cost left are averaged again for each rank. One document gives zigzag, many short ones bin packing.
class PeelAndFill : private Dealing {
 public:
  explicit PeelAndFill(const BalanceTask& task) : Dealing(task) {}
  PieceLists deal(const PeelVariant& variant);

 private:
  struct Completion {
    int64_t cost = 0;
    int64_t head = 0;  ///< tokens from the head of the same document
  };
  /// Another long document whose head a rank takes with its tail, and the tail that it can then have.
  struct Partner {
    std::optional<size_t> open;  ///< number in open_; else `pooled`
    int pooled = -1;             ///< number in the pool
    DocumentPiece piece;
    int64_t tail = 0;
  };

  int64_t cheapest(int64_t tokens) const { return pool_.cheapest(tokens).cost; }
  bool passes_over();
  int another_for(int pooled);  ///< now and then the next shorter one

  void fill_rank();
  void take_longest();
  Completion complete_tail(int64_t begin, int64_t limit, int64_t tokens) const;
  void peel(DocumentPiece from);
  int64_t longest_tail(const DocumentPiece& from) const;
  std::optional<Partner> find_partner(const DocumentPiece& from, int64_t tail);
  void give_head(const Partner& partner);
  void complete();
  int longest_that_fits(int longest) const;
  void top_up();
  void top_up_from_own();
  void cut_from_pool(int pooled, int64_t first);
  int64_t first_reaching_floor(int64_t longest) const;
  void drop_empty();

  PeelVariant variant_;
  std::mt19937_64 random_;
  std::vector<DocumentPiece> residue_;  ///< what is left of documents cut for an exact fit: goes to the next rank
  int64_t floor_ = 0;  ///< cost that has to be taken, or a later rank goes over the cap
  std::optional<size_t> own_;  ///< split document that the rank reads anyway
};

}  // namespace quire
