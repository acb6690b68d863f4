#include "parallel/groups.h"
#include "parallel/mesh.h"

#include <map>
#include <set>

#include "check.h"

using namespace quire;
using quire::test::check_error;

namespace {

template <class F>
void for_shapes(F&& check) {
  for (int64_t pp = 1; pp <= 4; ++pp)
    for (int64_t dp = 1; dp <= 3; ++dp)
      for (int64_t cp = 1; cp <= 3; ++cp)
        for (int64_t tp = 1; tp <= 2; ++tp) {
          const Mesh mesh({pp, dp, cp, tp});
          BOOST_TEST_CONTEXT(mesh.name()) check(mesh);
        }
}

int64_t& coordinate(MeshPlace& place, MeshAxis axis) {
  switch (axis) {
    case MeshAxis::pp: return place.pp;
    case MeshAxis::dp: return place.dp;
    case MeshAxis::cp: return place.cp;
    default: return place.tp;
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mesh)

BOOST_AUTO_TEST_CASE(ranks_and_places_are_one_to_one) {
  for_shapes([](const Mesh& mesh) {
    for (int64_t rank = 0; rank < mesh.shape().ranks(); ++rank) {
      const MeshPlace place = mesh.place(rank);
      BOOST_TEST(mesh.rank_at(place) == rank);
      BOOST_TEST((place.pp < mesh.shape().pp && place.dp < mesh.shape().dp && place.cp < mesh.shape().cp && place.tp < mesh.shape().tp));
    }
  });
}

BOOST_AUTO_TEST_CASE(tensor_parallel_ranks_are_neighbours_and_stages_are_far_apart) {
  const Mesh mesh({2, 3, 5, 7});
  BOOST_TEST((mesh.place(1) == MeshPlace{0, 0, 0, 1}));
  BOOST_TEST((mesh.place(7) == MeshPlace{0, 0, 1, 0}));
  BOOST_TEST((mesh.place(35) == MeshPlace{0, 1, 0, 0}));
  BOOST_TEST((mesh.place(105) == MeshPlace{1, 0, 0, 0}));
  BOOST_TEST(mesh.rank_at({1, 2, 4, 6}) == 209);
}

BOOST_AUTO_TEST_CASE(colours_part_the_ranks_into_lines_along_an_axis) {
  for_shapes([](const Mesh& mesh) {
    for (const MeshAxis axis : {MeshAxis::pp, MeshAxis::dp, MeshAxis::cp, MeshAxis::tp}) {
      std::map<int, std::vector<int64_t>> groups;  // in ascending order of ranks, as `split` numbers them
      for (int64_t rank = 0; rank < mesh.shape().ranks(); ++rank) groups[mesh.colour(rank, axis)].push_back(rank);
      for (const auto& [colour, ranks] : groups) {
        MeshPlace place = mesh.place(ranks.front());
        MeshPlace shape{mesh.shape().pp, mesh.shape().dp, mesh.shape().cp, mesh.shape().tp};
        BOOST_TEST(static_cast<int64_t>(ranks.size()) == coordinate(shape, axis));
        for (size_t i = 0; i < ranks.size(); ++i) {
          coordinate(place, axis) = static_cast<int64_t>(i);
          BOOST_TEST(mesh.rank_at(place) == ranks[i]);
        }
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(names_leave_out_what_is_one) {
  BOOST_TEST(Mesh().name() == "one rank");
  BOOST_TEST(Mesh({2, 2, 1, 1}).name() == "pp 2 x dp 2");
  BOOST_TEST(Mesh({1, 3, 1, 1}).name() == "dp 3");
  BOOST_TEST(Mesh({1, 1, 2, 4}).name() == "cp 2 x tp 4");
}

BOOST_AUTO_TEST_CASE(ranks_and_places_outside_are_refused) {
  const Mesh mesh({2, 2, 1, 1});
  check_error<StateError>([&] { mesh.place(4); }, {"rank 4", "4 ranks"});
  check_error<StateError>([&] { mesh.place(-1); }, {"rank -1"});
  check_error<StateError>([&] { mesh.rank_at({0, 2, 0, 0}); }, {"dp 2", "pp 2 x dp 2"});
  check_error<StateError>([&] { mesh.rank_at({0, 0, 0, -1}); }, {"tp -1"});
}

BOOST_AUTO_TEST_CASE(a_world_of_another_size_is_refused_with_the_arithmetic) {
  for_shapes([](const Mesh& mesh) { BOOST_CHECK_NO_THROW(check_world_size(mesh.shape(), mesh.shape().ranks())); });
  check_error<ConfigError>([] { check_world_size({2, 2, 1, 1}, 3); },
                           {"pp 2 x dp 2 x cp 1 x tp 1 = 4 ranks", "the world has 3", "--ranks 4", "one replica takes 2"});
  check_error<ConfigError>([] { check_world_size({2, 1, 1, 1}, 6); }, {"= 2 ranks", "the world has 6", "distributed.dp_replicate to 6 / 2 = 3"});
  check_error<ConfigError>([] { check_world_size({1, 1, 1, 1}, 2); }, {"= 1 rank,", "the world has 2"});
  check_error<ConfigError>([] { check_world_size({2, 0, 1, 1}, 0); }, {"dp 0", "1 or more"});
  check_error<ConfigError>([] { check_world_size({-2, -2, 1, 1}, 4); }, {"pp -2", "1 or more"});
}

BOOST_AUTO_TEST_CASE(groups_hold_the_ranks_that_share_a_microbatch_and_those_that_share_parameters) {
  const MeshShape shape{.pp = 2, .dp = 3, .cp = 2};
  run_local(static_cast<int>(shape.ranks()), {}, [&](Communicator& world) {
    const Groups groups = make_groups(world, shape);
    const MeshPlace place = groups.place;
    const auto require = [&](bool right, const char* what) {
      if (!right) throw std::runtime_error(what);
    };
    const Mesh& mesh = groups.mesh;
    require(groups.pipeline->size() == 2 && groups.pipeline->rank() == place.pp, "stages");
    require(groups.context->size() == 2 && groups.context->rank() == place.cp, "context ranks");
    require(groups.replicas->size() == 6 && groups.replicas->rank() == place.dp * 2 + place.cp, "ranks with the same parameters");
    for (int r = 0; r < 2; ++r) require(groups.context->world_rank(r) == mesh.rank_at({.pp = place.pp, .dp = place.dp, .cp = r}), "a context rank");
    for (int r = 0; r < 6; ++r) require(groups.replicas->world_rank(r) == mesh.rank_at({.pp = place.pp, .dp = r / 2, .cp = r % 2}), "a rank with the same parameters");
  });
}

BOOST_AUTO_TEST_SUITE_END()
