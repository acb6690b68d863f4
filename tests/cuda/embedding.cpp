// Embedding on the emulated device, to the bits of a literal loop.
#include "cuda/kernel_case.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class T>
struct Problem {
  int64_t count, width, vocabulary;
  std::vector<int32_t> tokens;
  std::vector<T> table, dy;
  std::vector<float> dtable_before;

  Problem(std::mt19937_64& random, int64_t count_, int64_t width_, int64_t vocabulary_)
      : count(count_), width(width_), vocabulary(vocabulary_), table(random_values<T>(random, std::min<int64_t>(vocabulary, 1000) * width)),
        dy(random_values<T>(random, count * width)), dtable_before(random_values<float>(random, vocabulary * width)) {
    for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
  }
  std::vector<T> forward(Rank& rank, int64_t shift = 0) const {
    const Placed<int32_t> on_tokens(rank, tokens);
    const Placed<T> on_table(rank, table, shift), y(rank, count * width);
    dispatch(rank, EmbeddingForwardArgs{dtype_of<T>::value, count, width, vocabulary, on_tokens.data(), on_table.data(), y.data()});
    return y.values();
  }
  std::vector<float> backward(Rank& rank, int64_t shift = 0) const {
    const Placed<int32_t> on_tokens(rank, tokens);
    const Placed<T> on_dy(rank, dy, shift);
    const Placed<float> dtable(rank, dtable_before);
    dispatch(rank, EmbeddingBackwardArgs{dtype_of<T>::value, count, width, vocabulary, on_tokens.data(), on_dy.data(), dtable.data()});
    return dtable.values();
  }
  std::vector<T> literal_forward() const {
    std::vector<T> y;
    for (const int32_t token : tokens) y.insert(y.end(), table.begin() + token * width, table.begin() + (token + 1) * width);
    return y;
  }
  std::vector<float> literal_backward(bool ascending = true) const {
    std::vector<float> dtable = dtable_before;
    for (int64_t step = 0; step < count; ++step) {
      const int64_t i = ascending ? step : count - 1 - step;
      for (int64_t c = 0; c < width; ++c)
        dtable[static_cast<size_t>(tokens[static_cast<size_t>(i)] * width + c)] += static_cast<float>(to_double(dy[static_cast<size_t>(i * width + c)]));
    }
    return dtable;
  }
};

struct Size { int64_t count, width, vocabulary; };

template <class T>
void check_embedding(Rank& rank) {
  std::mt19937_64 random(1);
  for (const Size& size : {Size{0, 4, 3}, Size{1, 1, 1}, Size{5, 7, 3}, Size{40, 64, 11}, Size{300, 33, 1}, Size{2100, 8, 50}, Size{70, 640, 300}}) {
    const Problem<T> problem(random, size.count, size.width, size.vocabulary);
    for (const int64_t shift : {0, 1}) {
      BOOST_TEST(same_bits(problem.forward(rank, shift), problem.literal_forward()), "count " << size.count << " width " << size.width);
      BOOST_TEST(same_bits(problem.backward(rank, shift), problem.literal_backward()), "count " << size.count << " width " << size.width);
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_embedding)

BOOST_AUTO_TEST_CASE(rows_are_copied_and_gradients_added_in_ascending_order) {
  DeviceRank rank;
  check_embedding<float>(rank);
  check_embedding<bf16>(rank);
}

BOOST_AUTO_TEST_CASE(every_order_of_threads_gives_the_same) {
  DeviceRank rank;
  std::mt19937_64 random(2);
  const Problem<bf16> problem(random, 90, 12, 7);
  in_eight_orders([&] {
    BOOST_TEST(same_bits(problem.forward(rank), problem.literal_forward()));
    BOOST_TEST(same_bits(problem.backward(rank), problem.literal_backward()));
  });
}

BOOST_AUTO_TEST_CASE(large_vocabularies_are_sorted_by_all_their_bits) {
  DeviceRank rank;
  std::mt19937_64 random(3);
  for (const int64_t vocabulary : {256, 257, 65536, 65537, 200000}) {
    Problem<float> problem(random, 400, 1, vocabulary);
    problem.tokens[0] = problem.tokens[399] = static_cast<int32_t>(vocabulary - 1);
    for (size_t i = 1; i < 100; ++i) problem.tokens[i + 200] = problem.tokens[i];  // rows that occur twice
    BOOST_TEST(same_bits(problem.backward(rank), problem.literal_backward()), vocabulary);
  }
}

BOOST_AUTO_TEST_CASE(sorting_takes_more_tiles_than_a_grid_has_blocks) {
  DeviceRank rank;
  emulation::Settings small = emulation::settings();
  small.multiprocessors = 1;
  emulation::set(small);
  Rank one(RankOptions{.device = {DeviceKind::cuda, 1}, .poison = true});
  std::mt19937_64 random(4);
  const Problem<float> problem(random, 70000, 1, 20);
  BOOST_TEST(same_bits(problem.backward(one), problem.literal_backward()));
}

BOOST_AUTO_TEST_CASE(control_descending_order_gives_other_bits) {
  DeviceRank rank;
  std::mt19937_64 random(5);
  const Problem<float> problem(random, 300, 5, 10);
  BOOST_TEST(!same_bits(problem.backward(rank), problem.literal_backward(false)));
}

BOOST_AUTO_TEST_CASE(f64_models_are_refused_by_name) {
  DeviceRank rank;
  check_error<UnsupportedError>([&] { dispatch(rank, EmbeddingForwardArgs{DType::f64, 0, 0, 1, nullptr, nullptr, nullptr}); }, {"embedding_forward"});
  check_error<UnsupportedError>([&] { dispatch(rank, EmbeddingBackwardArgs{DType::f64, 0, 0, 1, nullptr, nullptr, nullptr}); }, {"embedding_backward"});
}

BOOST_AUTO_TEST_SUITE_END()
