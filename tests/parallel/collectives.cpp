// Collectives: right for any sizes, and to the bit the sum in the order of ranks, whoever comes first.
#include "collective_case.h"

#include <limits>

#include "check.h"

namespace quire::test {
namespace {

BOOST_AUTO_TEST_CASE(every_collective_gives_the_bits_of_adding_in_the_order_of_ranks) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    run_local(ranks, {.watchdog_seconds = 60}, [&](Communicator& world) {
      Rank rank;
      for (uint64_t round = 0; round < 25; ++round) collective_round(rank, world, round * 10 + static_cast<uint64_t>(ranks), 20000);
    });
}

BOOST_AUTO_TEST_CASE(another_order_of_adding_gives_other_bits) {  // without this the test above could not fail
  int differ = 0;
  for (uint64_t round = 0; round < 10; ++round) {
    std::vector<float> backwards = contribution<float>(round, 2, 1000);
    for (int other = 1; other >= 0; --other) {
      const std::vector<float> its = contribution<float>(round, other, 1000);
      for (size_t i = 0; i < its.size(); ++i) backwards[i] += its[i];
    }
    differ += !same_bits(backwards, sum_in_order<float>(round, 3, 1000));
  }
  BOOST_TEST(differ == 10);
}

BOOST_AUTO_TEST_CASE(large_tensors_are_reduced_by_several_threads_to_the_same_bits) {
  for (const int threads : {1, 3})
    run_local(3, {}, [&](Communicator& world) {
      Rank rank({.threads = threads});
      reductions_agree<float>(rank, world, 5, 200'003);
    });
}

BOOST_AUTO_TEST_CASE(a_sum_of_n_ranks_moves_two_parts_of_n_per_rank) {
  constexpr int64_t elements = 60'000;
  for (int ranks = 2; ranks <= 5; ++ranks)
    run_local(ranks, {}, [&](Communicator& world) {
      Rank rank;
      const Tensor values = Tensor::zeros(rank, {elements}, DType::f32);
      world.all_reduce(rank, values, Reduction::sum, {.kind = MessageKind::gradients});
      const TrafficCounters::Entry sent = world.traffic()[MessageKind::gradients];
      require(sent.messages == 2 * (ranks - 1) && sent.bytes == 2 * (ranks - 1) * elements / ranks * 4, "bytes of an all_reduce");
      const Tensor mine = Tensor::zeros(rank, {elements / ranks}, DType::f32);
      world.reduce_scatter(rank, values, mine, {.kind = MessageKind::tied_gradients});
      require(world.traffic()[MessageKind::tied_gradients].bytes == (ranks - 1) * elements / ranks * 4, "bytes of a reduce_scatter");
      world.all_gather(rank, mine, values, {.kind = MessageKind::activations});
      require(world.traffic()[MessageKind::activations].bytes == (ranks - 1) * elements / ranks * 4, "bytes of an all_gather");
      require(world.traffic()[MessageKind::control].messages == 0, "nothing else is sent");
    });
}

BOOST_AUTO_TEST_CASE(reductions_work_in_place_and_on_integers) {
  run_local(3, {}, [](Communicator& world) {
    Rank rank;
    const std::vector<float> own = contribution<float>(1, world.rank(), 3 * 2000);
    const Tensor whole = Tensor::from<float>(rank, {3, 2000}, own);
    const Tensor part = whole.slice(0, world.rank(), world.rank() + 1);
    world.reduce_scatter(rank, whole, part);
    const std::vector<float> sums = sum_in_order<float>(1, 3, 6000);
    world.all_gather(rank, part, whole);
    require(same_bits(whole.to_vector<float>(), sums), "reduce_scatter and all_gather in place are a sum");
    const int64_t number = int64_t{1} << (40 + world.rank());
    const Tensor integers = Tensor::from<int64_t>(rank, {1}, std::span(&number, 1));
    world.all_reduce(rank, integers, Reduction::max);
    require(integers.to_vector<int64_t>()[0] == int64_t{1} << 42, "largest integer");
  });
}

BOOST_AUTO_TEST_CASE(a_nan_of_any_rank_reaches_every_rank) {
  for (int bad = 0; bad < 3; ++bad)
    for (const int64_t elements : {3, 5000})
      run_local(3, {}, [&](Communicator& world) {
        Rank rank;
        for (const Reduction reduction : {Reduction::sum, Reduction::max}) {
          const std::vector<float> own(static_cast<size_t>(elements), world.rank() == bad ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
          const Tensor values = Tensor::from<float>(rank, {elements}, own);
          world.all_reduce(rank, values, reduction);
          for (const float value : values.to_vector<float>()) require(std::isnan(value), "a NaN is not lost");
        }
      });
}

BOOST_AUTO_TEST_CASE(what_can_not_be_reduced_is_refused) {
  run_local(2, {}, [](Communicator& world) {
    Rank rank;
    const auto refused = [&](auto&& call) {
      try {
        call();
      } catch (const Error&) {
        return true;
      }
      return false;
    };
    const Tensor small = Tensor::zeros(rank, {4}, DType::bf16), integers = Tensor::zeros(rank, {4}, DType::i64);
    const Tensor floats = Tensor::zeros(rank, {4}, DType::f32), table = Tensor::zeros(rank, {4, 4}, DType::f32);
    require(refused([&] { world.all_reduce(rank, small, Reduction::sum); }), "bf16 is refused");
    require(refused([&] { world.all_reduce(rank, integers, Reduction::sum); }), "sums of integers are refused");
    require(refused([&] { world.all_reduce(rank, table.slice(1, 0, 2), Reduction::sum); }), "strided tensors are refused");
    require(refused([&] { world.all_gather(rank, floats, floats); }), "a whole that is not the parts is refused");
    require(refused([&] { world.reduce_scatter(rank, floats, small); }), "two dtypes are refused");
    require(refused([&] { world.broadcast(rank, floats, 2); }), "a root outside the group is refused");
  });
}

BOOST_AUTO_TEST_CASE(a_group_of_one_needs_no_messages) {
  const std::unique_ptr<Communicator> single = single_communicator();
  Rank rank;
  for (uint64_t round = 0; round < 5; ++round) collective_round(rank, *single, round, 5000);
  BOOST_TEST(single->split(7)->size() == 1);
  BOOST_TEST(single->first_to_say("a"));
  BOOST_TEST(!single->first_to_say("a"));
  const Tensor values = Tensor::zeros(rank, {1}, DType::f32);
  check_error<StateError>([&] { single->send(values, 0, {}); }, {"one rank"});
  single->abort("over");
  check_error<AbortedError>([&] { single->poll(); }, {"over"});
}

}  // namespace
}  // namespace quire::test
