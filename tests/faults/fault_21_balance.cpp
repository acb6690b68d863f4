// FAULTS.md entry 21: right but unbalanced, as head and tail of documents cut in document order leave it.
#include <algorithm>
#include <numeric>

#include "../parallel/rows.h"
#include "check.h"
#include "parallel/context_plan.h"

namespace quire {
namespace {

double worst_balance(const std::vector<std::vector<int64_t>>& rows, int64_t ranks, ContextLayout layout) {
  double worst = 1;
  for (const std::vector<int64_t>& lengths : rows) {
    const ContextPlan plan = make_context_plan(lengths, ranks, layout, ContextExchange::ring);
    worst = std::max(worst, max_over_mean(load_of(plan, Documents::from_lengths(lengths), {}).pairs));
  }
  return worst;
}

}  // namespace

BOOST_AUTO_TEST_CASE(fault_21_no_rank_has_much_more_work_than_another_on_random_packs) {
  test::LognormalLengths lengths(1024, 1.2, 21);
  const auto rows = test::packed_rows(lengths, 8192, 40);
  BOOST_REQUIRE(rows.size() == 40u);
  for (const int64_t ranks : {2, 4, 8}) {
    BOOST_TEST(worst_balance(rows, ranks, ContextLayout::balanced) <= 1.05);
    // What the fault is: cuts in the order of tokens are right and leave ranks waiting.
    BOOST_TEST(worst_balance(rows, ranks, ContextLayout::zigzag) > 1.2);
    BOOST_TEST(worst_balance(rows, ranks, ContextLayout::contiguous) > 1.2);
  }
}

}  // namespace quire
