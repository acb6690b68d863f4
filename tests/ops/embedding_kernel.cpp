// Embedding kernels against a literal loop, to the bit.
#include "ops/kernel_test.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class T>
struct Problem {
  using A = Accumulator<T>;
  int64_t count, width, vocabulary;
  std::vector<int32_t> tokens;
  std::vector<T> table, dy;
  std::vector<A> dtable_before;

  Problem(std::mt19937_64& random, int64_t count_, int64_t width_, int64_t vocabulary_)
      : count(count_), width(width_), vocabulary(vocabulary_), table(random_values<T>(random, vocabulary * width)),
        dy(random_values<T>(random, count * width)), dtable_before(random_values<A>(random, vocabulary * width)) {
    for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
  }
  std::vector<T> forward(Rank& rank) const {
    std::vector<T> y = unwritten<T>(count * width);
    run_kernel(rank, EmbeddingForwardArgs{dtype_of<T>::value, count, width, vocabulary, tokens.data(), table.data(), y.data()});
    close_output(y);
    return y;
  }
  std::vector<A> backward(Rank& rank) const {
    std::vector<A> dtable = dtable_before;
    run_kernel(rank, EmbeddingBackwardArgs{dtype_of<T>::value, count, width, vocabulary, tokens.data(), dy.data(), dtable.data()});
    return dtable;
  }
  /// Additions in the order that `order` gives the tokens in.
  std::vector<A> literal(bool ascending) const {
    std::vector<A> dtable = dtable_before;
    for (int64_t step = 0; step < count; ++step) {
      const int64_t i = ascending ? step : count - 1 - step;
      for (int64_t c = 0; c < width; ++c)
        dtable[static_cast<size_t>(tokens[static_cast<size_t>(i)] * width + c)] += static_cast<A>(to_double(dy[static_cast<size_t>(i * width + c)]));
    }
    return dtable;
  }
};

template <class T>
void check_embedding() {
  std::mt19937_64 random(1);
  struct Size { int64_t count, width, vocabulary; };
  for (const ThreadRanks& ranks : every_rank())
    for (const Size& size : {Size{1, 1, 1}, Size{5, 7, 3}, Size{300, 65, 10}, Size{2000, 200, 50}}) {
      const Problem<T> problem(random, size.count, size.width, size.vocabulary);
      for (const auto& rank : ranks.by_threads) {
        const auto y = problem.forward(*rank);
        for (int64_t i = 0; i < size.count; ++i)
          if (!same_bits(part(y, i * size.width, size.width), part(problem.table, problem.tokens[static_cast<size_t>(i)] * size.width, size.width)))
            BOOST_ERROR("row " << i << " is not its token's");
        BOOST_TEST(same_bits(problem.backward(*rank), problem.literal(true)));
      }
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(embedding_kernel)

BOOST_AUTO_TEST_CASE(rows_are_copied_and_gradients_added_in_ascending_order) {
  check_embedding<double>();
  check_embedding<float>();
  check_embedding<bf16>();
}

BOOST_AUTO_TEST_CASE(gradient_is_that_of_finite_differences) {
  std::mt19937_64 random(2);
  for (const ThreadRanks& ranks : every_rank()) {
    Problem<double> problem(random, 9, 5, 4);
    std::fill(problem.dtable_before.begin(), problem.dtable_before.end(), 0.0);
    check_gradient(
        [&](const std::vector<double>& table) {
          Problem<double> moved = problem;
          moved.table = table;
          const auto y = moved.forward(ranks.one());
          return std::inner_product(y.begin(), y.end(), problem.dy.begin(), 0.0);
        },
        problem.table, problem.backward(ranks.one()));
  }
}

BOOST_AUTO_TEST_CASE(control_descending_order_gives_other_bits) {
  std::mt19937_64 random(3);
  Rank rank;
  const Problem<float> problem(random, 300, 65, 10);
  BOOST_TEST(!same_bits(problem.backward(rank), problem.literal(false)));
}

BOOST_AUTO_TEST_SUITE_END()
