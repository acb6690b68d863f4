// Documents that nobody holds yet, by length: what remains when the planner deals them out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace quire {

/// Shortest first, numbered in that order; sums under removal are kept in Fenwick trees, neighbours that are left in forests of links.
class DocumentPool {
 public:
  /// More than any cost, and small enough to be added to one.
  static constexpr int64_t too_much = int64_t{1} << 62;

  /// `costs[d]`: of document d as a whole. Equal lengths stay in order.
  DocumentPool(const std::vector<int64_t>& lengths, const std::vector<int64_t>& costs);

  int size() const { return static_cast<int>(lengths_.size()); }
  int64_t length(int i) const { return lengths_[static_cast<size_t>(i)]; }
  int64_t cost(int i) const { return costs_[static_cast<size_t>(i)]; }
  std::size_t document(int i) const { return documents_[static_cast<size_t>(i)]; }
  int64_t tokens() const { return tokens_; }
  bool empty() const { return tokens_ == 0; }

  int at_most(int i) { return find(below_, i + 1) - 1; }  ///< the last one left that is not after i, or -1
  int at_least(int i) { return find(above_, i); }         ///< the first one left that is not before i, or size()
  int longest() { return at_most(size() - 1); }
  int shortest() { return at_least(0); }
  int first_of_at_least(int64_t length);  ///< or size()
  int last_of_at_most(int64_t length);    ///< or -1
  void remove(int i);

  struct Fill {
    int64_t cost = 0;         ///< of so many tokens of the shortest documents, the last one in proportion; too_much where there are fewer
    int64_t next_length = 0;  ///< of the first document that is not taken as a whole
    int64_t next_cost = 0;
  };
  Fill cheapest(int64_t tokens) const;

 private:
  static int find(std::vector<int>& links, int i);

  int top_ = 1;  ///< largest power of two within size()
  int64_t tokens_ = 0;
  std::vector<std::size_t> documents_;
  std::vector<int64_t> lengths_, costs_, token_sums_, cost_sums_;
  std::vector<int> below_, above_;
};

}  // namespace quire
