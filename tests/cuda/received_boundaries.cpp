// Boundaries that came to an emulated device: compared, bounded and looked up there, against what the host reads of the same records.
#include "cuda/kernel_case.h"
#include "parallel/device_boundaries.h"

using namespace quire;
using namespace quire::test;

namespace {

struct Taken {
  std::vector<int32_t> global, start, positions;
  bool operator==(const Taken&) const = default;
};

Taken take(Rank& rank, const std::vector<int32_t>& indices, const std::vector<int32_t>& starts, const std::vector<int32_t>& expected_indices, const std::vector<int32_t>& expected_starts,
           const BoundaryLimits& limits) {
  const Placed<int32_t> on_indices(rank, indices), on_starts(rank, starts), due_indices(rank, expected_indices), due_starts(rank, expected_starts);
  const auto tokens = static_cast<int64_t>(starts.size());
  const Placed<int32_t> global(rank, tokens), start(rank, tokens), positions(rank, tokens);
  const bool whole = indices.empty() && tokens > 0;
  dispatch(rank, ReceivedBoundariesArgs{tokens, limits.microbatch_tokens, limits.positions, whole ? nullptr : on_indices.data(), on_starts.data(), whole ? nullptr : due_indices.data(),
                                        due_starts.data(), global.data(), start.data(), positions.data()});
  return {global.values(), start.values(), positions.values()};
}

std::vector<int32_t> tiles(Rank& rank, const std::vector<int32_t>& global, const std::vector<int32_t>& start) {
  const auto tokens = static_cast<int64_t>(global.size());
  const Placed<int32_t> on_global(rank, global), on_start(rank, start), result(rank, 4 * chunks_of(tokens, boundary_tile));
  dispatch(rank, BoundaryTilesArgs{tokens, on_global.data(), on_start.data(), reinterpret_cast<TileBoundaries*>(result.data())});
  return result.values();
}

std::vector<int32_t> list(std::span<const int32_t> values) { return {values.begin(), values.end()}; }

/// Every second token of a microbatch, or its halves the other way round.
Documents some_shard(const Documents& whole, int way) {
  std::vector<int32_t> indices, starts;
  const auto tokens = static_cast<int32_t>(whole.tokens());
  for (int32_t i = 0; i < tokens; i += way == 0 ? 2 : 1) indices.push_back(way == 0 ? i : (i + tokens / 2) % tokens);
  for (const int32_t index : indices) starts.push_back(whole.starts()[static_cast<size_t>(index)]);
  return Documents::shard(indices, starts);
}

double flag_of(Rank& rank, const Tensor& found, const Tensor& expected) {
  const Tensor flag = Tensor::zeros(rank, {1}, DType::f64);
  compare_boundary_records(rank, found, expected, flag, 5);
  return flag.to_vector<double>().at(0);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_received_boundaries)

BOOST_AUTO_TEST_CASE(what_can_be_is_taken_and_nothing_else) {
  std::mt19937_64 random(1);
  DeviceRank rank;
  Rank host;
  constexpr int32_t most = std::numeric_limits<int32_t>::max(), least = std::numeric_limits<int32_t>::min();
  for (const int64_t tokens : {0, 1, 2, 63, 64, 65, 300}) {
    const Documents due = Documents::from_lengths(random_lengths(random, tokens));
    const std::vector<int32_t> expected_indices = list(due.indices()), expected_starts = list(due.starts());
    for (const bool whole : {true, false}) {
      std::vector<int32_t> indices = expected_indices, starts = expected_starts;
      for (int64_t i = 0; i < tokens; ++i) {  // garbage in half of the places, of all kinds
        const auto at = static_cast<size_t>(i);
        const int32_t garbage[] = {least, -1, 0, static_cast<int32_t>(tokens) - 1, static_cast<int32_t>(tokens), most, static_cast<int32_t>(random() % 400)};
        if (random() % 2 == 0) starts[at] = garbage[random() % std::size(garbage)];
        if (random() % 2 == 0) indices[at] = garbage[random() % std::size(garbage)];
      }
      if (whole) indices.clear();
      const BoundaryLimits limits{tokens, 40};
      const Taken found = take(rank, indices, starts, expected_indices, expected_starts, limits);
      BOOST_TEST((found == take(host, indices, starts, expected_indices, expected_starts, limits)));
      for (int64_t i = 0; i < tokens; ++i) {
        const auto at = static_cast<size_t>(i);
        const int64_t index = whole ? i : indices[at], start = starts[at];
        const bool can_be = start >= 0 && start <= index && index < tokens && index - start < 40;
        BOOST_TEST(found.global[at] == (can_be ? index : i));
        BOOST_TEST(found.start[at] == (can_be ? start : expected_starts[at]));
        BOOST_TEST(found.positions[at] == found.global[at] - found.start[at]);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(control_a_kernel_that_takes_anything_is_seen) {
  DeviceRank rank;
  BOOST_TEST((take(rank, {}, {0, 99}, {}, {0, 0}, {2, 2}).start == std::vector<int32_t>{0, 0}));
  const emulation::Planted bug("received_boundaries.anything_accepted");
  BOOST_TEST((take(rank, {}, {0, 99}, {}, {0, 0}, {2, 2}).start == std::vector<int32_t>{0, 99}));
}

BOOST_AUTO_TEST_CASE(tiles_are_those_of_runs) {
  std::mt19937_64 random(2);
  DeviceRank rank;
  Rank host;
  for (const int64_t tokens : {0, 1, 63, 64, 65, 200, 1000})
    for (const int way : {0, 1, 2}) {
      const Documents whole = Documents::from_lengths(random_lengths(random, tokens)), documents = way == 2 ? whole : some_shard(whole, way);
      const std::vector<int32_t> global = list(documents.indices()), start = list(documents.starts());
      const std::vector<int32_t> found = tiles(rank, global, start);
      BOOST_TEST((found == tiles(host, global, start)));
      const int64_t count = documents.tokens();
      const std::vector<DocumentRun> runs = documents.runs();
      std::vector<int32_t> other_global(static_cast<size_t>(count)), other_start(other_global), expected(found.size());
      dispatch(host, BoundaryTableArgs{count, static_cast<int64_t>(runs.size()), runs.data(), other_global.data(), other_start.data(), reinterpret_cast<TileBoundaries*>(expected.data())});
      BOOST_TEST((found == expected));
      BOOST_TEST((global == other_global && start == other_start));
    }
  // Tokens of no document count for nothing.
  BOOST_TEST((tiles(rank, {-1, 4, -1}, {-1, 3, -1}) == std::vector<int32_t>{3, 3, 4, 4}));
  in_eight_orders([&] { BOOST_TEST((tiles(rank, {7, 4, 9}, {6, 3, 6}) == std::vector<int32_t>{3, 6, 4, 9})); });
}

BOOST_AUTO_TEST_CASE(a_record_made_on_the_device_is_the_hosts) {
  std::mt19937_64 random(3);
  DeviceRank rank;
  for (const int64_t tokens : {0, 1, 7, 300})
    for (const int way : {0, 1, 2}) {
      const Documents whole = Documents::from_lengths(random_lengths(random, tokens)), documents = way == 2 ? whole : some_shard(whole, way);
      const Tensor record = make_boundary_record(rank, {3, 1, 2, 77}, documents), expected = make_boundary_record(rank, {3, 2, 2, 77}, documents);
      const DeviceBoundaries boundaries = DeviceBoundaries::empty(rank, documents.tokens(), true);
      take_boundaries(rank, record, record, documents.tokens(), {tokens, tokens + 1}, boundaries);
      const Tensor passed_on = make_boundary_record(rank, {3, 2, 2, 77}, documents, boundaries);
      BOOST_TEST((passed_on.to_vector<int32_t>() == expected.to_vector<int32_t>()));
      BOOST_TEST(flag_of(rank, passed_on, expected) == 0);
      BOOST_TEST((boundaries.positions.to_vector<int32_t>() == documents.positions()));
    }
  // Another document is passed on as it came, with its own digest.
  const Documents due = Documents::from_lengths(std::vector<int64_t>{4, 4}), other = Documents::from_lengths(std::vector<int64_t>{3, 5});
  const Tensor found = make_boundary_record(rank, {3, 1, 2, 0}, other), expected = make_boundary_record(rank, {3, 1, 2, 0}, due);
  BOOST_TEST(flag_of(rank, found, expected) == 5);
  const DeviceBoundaries boundaries = DeviceBoundaries::empty(rank, 8, false);
  take_boundaries(rank, found, expected, 8, {8, 8}, boundaries);
  const BoundaryRecord read = read_boundary_record(make_boundary_record(rank, {3, 2, 2, 0}, due, boundaries), 8);
  BOOST_TEST((read.documents == other));
  BOOST_TEST(read.digest == other.digest());
  BOOST_TEST((read.header == BoundaryHeader{3, 2, 2, 0}));
}

BOOST_AUTO_TEST_CASE(attention_masks_with_what_came_and_not_with_what_was_expected) {
  std::mt19937_64 random(4);
  DeviceRank rank;
  const AttentionOptions options{.heads = 1, .kv_heads = 1, .head_dim = 8};
  const int64_t tokens = 70;
  const Tensor q = Tensor::from<float>(rank, {tokens, 8}, random_values<float>(random, tokens * 8));
  const Documents expected = Documents::from_lengths(std::vector<int64_t>{tokens}), came = Documents::from_lengths(std::vector<int64_t>{33, 37});
  const Tensor record = make_boundary_record(rank, {}, came);
  const DeviceBoundaries boundaries = DeviceBoundaries::empty(rank, tokens, false);
  take_boundaries(rank, record, make_boundary_record(rank, {}, expected), tokens, {tokens, tokens}, boundaries);
  const DocumentRuns runs = runs_of_boundaries(rank, expected.runs(), boundaries);
  const auto out = [&](const DocumentRuns& with) { return attention_partial(rank, q, q, q, with, with, options).out.to_vector<float>(); };
  BOOST_TEST((out(runs) == out(shared_runs(came))));
  BOOST_TEST((out(runs) != out(shared_runs(expected))));
}

BOOST_AUTO_TEST_CASE(codes_of_mismatches_are_told_apart) {
  std::set<double> codes;
  for (const int64_t stage : {0, 1, 4095})
    for (const int64_t microbatch : {0, 1, 100'000})
      for (const int64_t layer : {-1, 0, 1, 4000}) {
        const BoundaryMismatch mismatch{stage, microbatch, layer};
        BOOST_TEST(code_of(mismatch) >= 1);
        BOOST_TEST((mismatch_of(code_of(mismatch)) == mismatch));
        BOOST_TEST(codes.insert(code_of(mismatch)).second);
      }
}

BOOST_AUTO_TEST_SUITE_END()
