// One random round of every collective, checked against sums in the order of ranks. Throws; runs in any thread and over any communicator.
#pragma once
#include <chrono>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "parallel/communicator.h"
#include "values.h"

namespace quire::test {

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("does not hold: " + what);
}

/// What rank `rank` contributes in a round: values of very different sizes, so that another order of adding gives other bits.
template <class T>
std::vector<T> contribution(uint64_t round, int rank, int64_t elements) {
  std::mt19937_64 random(round * 1000 + static_cast<uint64_t>(rank));
  std::vector<T> values(static_cast<size_t>(elements));
  for (T& value : values) {
    const double wide = std::ldexp(static_cast<double>(random() % 2000003) - 1000001, static_cast<int>(random() % 24) - 12);
    value = static_cast<T>(wide / 3);
  }
  return values;
}

template <class T>
std::vector<T> sum_in_order(uint64_t round, int ranks, int64_t elements) {
  std::vector<T> sum = contribution<T>(round, 0, elements);
  for (int other = 1; other < ranks; ++other) {
    const std::vector<T> its = contribution<T>(round, other, elements);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += its[i];
  }
  return sum;
}

template <class T>
void reductions_agree(Rank& rank, Communicator& group, uint64_t round, int64_t elements) {
  const auto mine = [&](int64_t count) {
    const std::vector<T> values = contribution<T>(round, group.rank(), count);
    return Tensor::from<T>(rank, {count}, values);
  };
  const std::vector<T> sum = sum_in_order<T>(round, group.size(), elements);
  const Tensor values = mine(elements);
  group.all_reduce(rank, values, Reduction::sum);
  require(same_bits(values.to_vector<T>(), sum), "all_reduce sums in the order of ranks");

  std::vector<T> largest = contribution<T>(round, 0, elements);
  for (int other = 1; other < group.size(); ++other) {
    const std::vector<T> its = contribution<T>(round, other, elements);
    for (size_t i = 0; i < its.size(); ++i) largest[i] = std::max(largest[i], its[i]);
  }
  const Tensor maxima = mine(elements);
  group.all_reduce(rank, maxima, Reduction::max);
  require(same_bits(maxima.to_vector<T>(), largest), "all_reduce finds the largest");

  const Tensor whole = mine(elements * group.size()), part = Tensor::empty(rank, {elements}, dtype_of<T>::value);
  group.reduce_scatter(rank, whole, part);
  const std::vector<T> all_sums = sum_in_order<T>(round, group.size(), elements * group.size());
  const auto begin = all_sums.begin() + group.rank() * elements;
  require(same_bits(part.to_vector<T>(), std::vector<T>(begin, begin + elements)), "reduce_scatter gives this rank's part of the sum");
  require(same_bits(whole.to_vector<T>(), contribution<T>(round, group.rank(), elements * group.size())), "reduce_scatter leaves its input alone");
}

template <class T>
void movements_agree(Rank& rank, Communicator& group, uint64_t round, int64_t elements) {
  const std::vector<T> own = contribution<T>(round, group.rank(), elements);
  const Tensor mine = Tensor::from<T>(rank, {elements}, own), all = Tensor::empty(rank, {group.size() * elements}, dtype_of<T>::value);
  group.all_gather(rank, mine, all);
  std::vector<T> expected;
  for (int other = 0; other < group.size(); ++other) {
    const std::vector<T> its = contribution<T>(round, other, elements);
    expected.insert(expected.end(), its.begin(), its.end());
  }
  require(same_bits(all.to_vector<T>(), expected), "all_gather puts parts in the order of ranks");

  const int root = static_cast<int>(round % static_cast<uint64_t>(group.size()));
  const Tensor values = Tensor::from<T>(rank, {elements}, own);
  group.broadcast(rank, values, root);
  require(same_bits(values.to_vector<T>(), contribution<T>(round, root, elements)), "broadcast gives the root's values");
}

/// Every collective once, with sizes and delays drawn from the round's number; `largest` bounds the elements.
inline void collective_round(Rank& rank, Communicator& group, uint64_t round, int64_t largest) {
  std::mt19937_64 shared(round), own(round * 77 + static_cast<uint64_t>(group.rank()));
  const auto elements = [&] {
    switch (shared() % 4) {
      case 0: return static_cast<int64_t>(shared() % 8);  // fewer than ranks, none at all
      case 1: return static_cast<int64_t>(500 + shared() % 1100);  // around the limit of what counts as small
      default: return static_cast<int64_t>(shared() % static_cast<uint64_t>(largest));
    }
  };
  const auto delay = [&] {
    if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
  };
  delay();
  reductions_agree<float>(rank, group, round, elements());
  delay();
  reductions_agree<double>(rank, group, round, elements());
  delay();
  movements_agree<float>(rank, group, round, elements());
  movements_agree<double>(rank, group, round, elements());
  delay();
  group.barrier();
  const auto text_of = [&](int of) { return std::string((round * 31 + static_cast<uint64_t>(of) * 7919) % 5000, static_cast<char>('a' + of)); };
  const std::vector<std::string> texts = group.gather_texts(text_of(group.rank()));
  require(static_cast<int>(texts.size()) == group.size(), "gather_texts has a text of every rank");
  for (int other = 0; other < group.size(); ++other) require(texts[static_cast<size_t>(other)] == text_of(other), "gather_texts is in the order of ranks");
  const int64_t offset = static_cast<int64_t>(round % 3) - 1;
  const int64_t agreed = group.agree_on_largest(offset * group.rank());
  require(agreed == (offset > 0 ? group.size() - 1 : 0), "agree_on_largest");
}

}  // namespace quire::test
