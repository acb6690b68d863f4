// AdamW on the emulated device.
#include "ops/adamw_case.h"

#include "cuda/kernel_case.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class T>
void check_adamw() {
  std::mt19937_64 random(1);
  DeviceRank rank;
  for (const int64_t count : {0, 1, 7, 64, 4097, 9001})
    for (const int64_t shift : {0, 1}) {
      AdamWState<T> before(random, count);
      before.shift = shift;
      AdamWLiteral exact(before);
      exact.step(before);
      AdamWState<T> after = before;
      after.step(rank);
      BOOST_TEST(within_rule(after.master, exact.master), "count " << count);
      BOOST_TEST(within_rule(after.moment1, exact.moment1));
      BOOST_TEST(within_rule(after.moment2, exact.moment2));
      if constexpr (std::is_same_v<T, bf16>)
        for (size_t i = 0; i < after.value.size(); ++i) BOOST_TEST_REQUIRE(after.value[i].bits == bf16(after.master[i]).bits);
      else BOOST_TEST(same_bits(after.value, before.value));
      AdamWState<T> aligned = before;
      aligned.shift = 0;
      aligned.step(rank);
      BOOST_TEST(aligned.same(after));
    }
}

/// Three parameters of each size on the device, and their update one by one.
struct Many {
  std::vector<AdamWState<bf16>> states;
  std::vector<Placed<float>> gradient, master, moment1, moment2;
  std::vector<Placed<bf16>> value;
  std::vector<AdamWTensor> list;
  Many(Rank& rank, std::mt19937_64& random, int count) {
    for (int i = 0; i < count; ++i) {
      states.emplace_back(random, i == 3 ? 0 : i == 7 ? 8195 : 1 + static_cast<int64_t>(random() % 100));
      const AdamWState<bf16>& s = states.back();
      gradient.emplace_back(rank, s.gradient, i % 4);
      master.emplace_back(rank, s.master);
      moment1.emplace_back(rank, s.moment1);
      moment2.emplace_back(rank, s.moment2);
      value.emplace_back(rank, s.value);
    }
    for (size_t i = 0; i < states.size(); ++i)
      list.push_back({static_cast<int64_t>(states[i].master.size()), i % 2 ? 0.1 : 0.0, gradient[i].data(), master[i].data(), moment1[i].data(),
          moment2[i].data(), value[i].data()});
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_adamw)

BOOST_AUTO_TEST_CASE(follows_the_rule) {
  check_adamw<float>();
  check_adamw<bf16>();
}

BOOST_AUTO_TEST_CASE(many_parameters_go_through_in_few_launches_to_the_bits_of_each) {
  std::mt19937_64 random(2);
  DeviceRank rank;
  Many many(rank, random, 121);
  const OptimizerScalars scalars = many.states[0].scalars;
  std::vector<double> bits(sizeof scalars / sizeof(double));
  std::memcpy(bits.data(), &scalars, sizeof scalars);
  const Placed<double> on_scalars(rank, bits);
  const auto args = [&](std::span<const AdamWTensor> tensors) {
    return AdamWArgs{DType::bf16, 0.9, 0.99, 1e-8, reinterpret_cast<const OptimizerScalars*>(on_scalars.data()), tensors};
  };
  rank.rank.accelerator()->synchronize();
  emulation::reset_counters();
  dispatch(rank, args(many.list));
  rank.rank.accelerator()->synchronize();
  BOOST_TEST(emulation::counters().kernels == 3);
  std::mt19937_64 again(2);
  Many single(rank, again, 121);
  for (const AdamWTensor& tensor : single.list) dispatch(rank, args(std::span(&tensor, 1)));
  for (size_t i = 0; i < many.states.size(); ++i) {
    const bool same = same_bits(many.master[i].values(), single.master[i].values()) && same_bits(many.moment1[i].values(), single.moment1[i].values()) &&
                      same_bits(many.moment2[i].values(), single.moment2[i].values()) && same_bits(many.value[i].values(), single.value[i].values());
    BOOST_TEST(same, "parameter " << i);
    if (i != 3) BOOST_TEST(!same_bits(many.master[i].values(), many.states[i].master));
    BOOST_TEST(same_bits(many.gradient[i].values(), many.states[i].gradient));
  }
}

BOOST_AUTO_TEST_CASE(every_order_of_threads_gives_the_same) {
  std::mt19937_64 random(3);
  DeviceRank rank;
  const AdamWState<bf16> before(random, 50);
  AdamWState<bf16> after = before;
  after.step(rank);
  in_eight_orders([&] {
    AdamWState<bf16> again = before;
    again.step(rank);
    BOOST_TEST(again.same(after));
  });
}

BOOST_AUTO_TEST_CASE(skip_changes_nothing_even_for_nan_gradients) {
  std::mt19937_64 random(4);
  DeviceRank rank;
  AdamWState<bf16> before(random, 100);
  before.gradient[17] = std::numeric_limits<float>::quiet_NaN();
  before.scalars.skip = 1;
  before.scalars.clip = std::numeric_limits<double>::quiet_NaN();
  AdamWState<bf16> after = before;
  after.step(rank);
  BOOST_TEST(after.same(before));
  // Control: without the flag the NaN reaches the weights.
  after.scalars.skip = 0;
  after.scalars.clip = 1;
  after.step(rank);
  BOOST_TEST(std::isnan(after.master[17]));
  BOOST_TEST(!after.same(before));
}

BOOST_AUTO_TEST_CASE(control_decay_added_to_the_gradient_is_seen) {
  std::mt19937_64 random(5);
  DeviceRank rank;
  AdamWState<float> state(random, 33);
  AdamWLiteral coupled(state);
  AdamWState<float> l2 = state;
  for (size_t i = 0; i < l2.gradient.size(); ++i) l2.gradient[i] += 0.1f * l2.master[i];  // Adam with L2 instead of AdamW
  coupled.step(l2);
  state.step(rank);
  BOOST_TEST(!within_rule(state.master, coupled.master));
}

BOOST_AUTO_TEST_SUITE_END()
