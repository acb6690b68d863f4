// What attention on a device promises about bits and rows: documents do not see each other, shards add up, rows in no run take no part, tiles that no
// document crosses are not touched, and what was computed is counted.
#include "ops/attention_isolation.h"

#include "cuda/attention_device.h"
#include "ops/attention_restricted.h"
#include "ops/cuda/attention_work.h"

namespace quire::test {
namespace {

/// The summaries of tiles, token by token.
std::vector<TileBoundaries> enumerated_tiles(const Documents& documents) {
  std::vector<TileBoundaries> tiles(static_cast<size_t>((documents.tokens() + boundary_tile - 1) / boundary_tile), TileBoundaries{std::numeric_limits<int32_t>::max(), -1, std::numeric_limits<int32_t>::max(), -1});
  for (int64_t i = 0; i < documents.tokens(); ++i) {
    const int32_t start = documents.starts()[static_cast<size_t>(i)], global = documents.indices()[static_cast<size_t>(i)];
    TileBoundaries& t = tiles[static_cast<size_t>(i / boundary_tile)];
    t = {std::min(t.first_start, start), std::max(t.last_start, start), std::min(t.first_global, global), std::max(t.last_global, global)};
  }
  return tiles;
}

/// Pairs that attend, and those of tiles in which kernels compute, by looking at each.
std::pair<int64_t, int64_t> enumerated_pairs(const Documents& queries, const Documents& keys, int64_t window) {
  int64_t attended = 0, computed = 0;
  for (int64_t i = 0; i < queries.tokens(); ++i)
    for (int64_t j = 0; j < keys.tokens(); ++j) {
      const int32_t gi = queries.indices()[static_cast<size_t>(i)], gj = keys.indices()[static_cast<size_t>(j)];
      attended += queries.starts()[static_cast<size_t>(i)] == keys.starts()[static_cast<size_t>(j)] && gj <= gi && (window == 0 || gj > gi - window);
    }
  const std::vector<TileBoundaries> query_tiles = enumerated_tiles(queries), key_tiles = enumerated_tiles(keys);
  for (const TileBoundaries& q : query_tiles)
    for (const TileBoundaries& k : key_tiles) {
      const bool documents = k.first_start <= q.last_start && k.last_start >= q.first_start;  // some document has tokens in both, or lies between
      computed += documents && k.first_global <= q.last_global && (window == 0 || k.last_global > q.first_global - window);
    }
  return {attended, computed * boundary_tile * boundary_tile};
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cuda_attention_isolation, DeviceTest)

BOOST_AUTO_TEST_CASE(no_bit_of_another_document_changes) {
  for (const DeviceSizes& s : {DeviceSizes{2, 1, 64, 0}, {1, 1, 128, 40}}) check_leak<bf16>(rank, device_case(random, std::vector<int64_t>{20, 65, 1, 130, 34}, s), random);
  for (int64_t window : {0, 40}) check_leak<float>(rank, device_case(random, std::vector<int64_t>{20, 65, 1, 130, 34}, {2, 1, 6, window}), random);
}

BOOST_AUTO_TEST_CASE(shards_add_up_to_the_whole) {
  for (int round = 0; round < 3; ++round) {
    AttentionCase c = device_case(random, random_lengths(random, 150), {2, 1, 5, round % 2 ? 70 : 0});
    check_shards<float>(rank, c, random, 1e-5);
  }
  for (const DeviceSizes& s : {DeviceSizes{2, 1, 64, 0}, {1, 1, 128, 70}}) {
    const AttentionCase c = rounded_case<bf16>(device_case(random, random_lengths(random, 130), s));
    check_shards<bf16>(rank, c, random, 1e-2);
  }
}

BOOST_AUTO_TEST_CASE(one_list_of_runs_serves_tensors_of_different_lengths) {
  // A cache has room behind its tokens: the same runs, more rows. Each length needs a table of its own.
  const int64_t tokens = 70, room = 130, width = 8;
  const AttentionOptions options{.heads = 1, .kv_heads = 1, .head_dim = width};
  const DocumentRuns runs = shared_runs(Documents::from_lengths(std::vector<int64_t>{5, 64, 1}));
  const auto values = [&] { return random_values(random, tokens * width); };
  const std::vector<double> q = values(), k = values(), v = values();
  const auto attend = [&](int64_t rows) {
    const auto with_room = [&](std::vector<double> some) {
      some.resize(static_cast<size_t>(rows * width), std::numeric_limits<double>::quiet_NaN());
      return shaped<float>(rank, {rows, width}, some);
    };
    return values_of<float>(attention_partial(rank, shaped<float>(rank, {tokens, width}, q), with_room(k), with_room(v), runs, runs, options).out);
  };
  const std::vector<double> expected = attend(tokens);
  BOOST_TEST((attend(tokens + room) == expected));
  BOOST_TEST((attend(tokens) == expected));
}

BOOST_AUTO_TEST_CASE(queries_in_no_run_are_neither_read_nor_written) {
  for (int time = 0; time < 5; ++time) {
    const int64_t tokens = 1 + static_cast<int64_t>(random() % 140);
    check_restricted<float>(rank, random, tokens, {.heads = 2, .kv_heads = 1, .head_dim = 4, .window = time % 2 * 9});
    check_restricted<bf16>(rank, random, tokens, {.heads = 2, .kv_heads = 1, .head_dim = time == 4 ? 128 : 64, .window = time % 2 * 9});
    BOOST_TEST(rank.chosen_kernels()["attention_backward"] == "tensor_cores");
  }
}

BOOST_AUTO_TEST_CASE(keys_in_no_run_are_not_read) {
  // A cache with room: keys behind the ones at hand, and between them, are NaN.
  const int64_t tokens = 100, room = 170;
  const auto check = [&]<class T>(T, int64_t head_dim) {
    using A = Accumulator<T>;
    const AttentionOptions options{.heads = 2, .kv_heads = 1, .head_dim = head_dim};
    const std::vector<double> queries = random_values(random, tokens * 2 * head_dim);
    std::vector<double> keys(static_cast<size_t>(room * head_dim), std::numeric_limits<double>::quiet_NaN()), few;
    const std::vector<DocumentRun> near = {{0, 0, 60, 0}, {60, 60, 40, 60}}, far = {{5, 0, 60, 0}, {90, 60, 40, 60}};
    for (const DocumentRun& run : far)
      for (int64_t i = run.local * head_dim; i < (run.local + run.length) * head_dim; ++i) few.push_back(keys[static_cast<size_t>(i)] = rounded<T>(random_values(random, 1)[0]));
    const DocumentRuns near_runs = std::make_shared<const RunList>(near), far_runs = std::make_shared<const RunList>(far);
    const Tensor q = shaped<T>(rank, {tokens, 2 * head_dim}, queries), k = shaped<T>(rank, {room, head_dim}, keys), dense = shaped<T>(rank, {tokens, head_dim}, few);
    const AttentionPartial a = attention_partial(rank, q, k, k, near_runs, far_runs, options), b = attention_partial(rank, q, dense, dense, near_runs, near_runs, options);
    BOOST_TEST(relative_difference(values_of<A>(a.out), values_of<A>(b.out)) <= 1e-2);  // tiles are cut elsewhere
    const Tensor delta = attention_delta(rank, a.out, a.out, options), dq = filled<A>(rank, q.shape(), 0), dk = filled<A>(rank, k.shape(), untouched), dv = filled<A>(rank, k.shape(), untouched);
    attention_backward(rank, q, k, k, near_runs, far_runs, q, a.lse, delta, options, dq, dk, dv);
    const std::vector<bool> covered = covered_rows(far_runs, room);
    for (const Tensor& gradient : {dk, dv}) {
      const std::vector<double> values = values_of<A>(gradient);
      for (size_t i = 0; i < values.size(); ++i) BOOST_REQUIRE((covered[i / static_cast<size_t>(head_dim)] ? std::isfinite(values[i]) : values[i] == untouched));
    }
    for (const double x : values_of<A>(dq)) BOOST_REQUIRE(std::isfinite(x));
  };
  check(bf16(), 64);
  check(float(), 5);
}

BOOST_AUTO_TEST_CASE(rows_in_no_run_are_not_merged) {
  for (int time = 0; time < 5; ++time) check_merge_of_rows<float>(rank, random, 1 + static_cast<int64_t>(random() % 150));
}

BOOST_AUTO_TEST_CASE(merging_keeps_empty_rows_empty) {
  const AttentionCase c = random_case(random, std::vector<int64_t>{2}, 1, 1, 3);
  const double none = -std::numeric_limits<double>::infinity();
  AttentionForward a{{0, 0, 0, 1, 2, 3}, {none, 1}};
  merge<bf16>(rank, c, a, {{0, 0, 0, 0, 0, 0}, {none, none}});
  BOOST_TEST((a.lse == std::vector<double>{none, 1}));
  BOOST_TEST((a.out == std::vector<double>{0, 0, 0, 1, 2, 3}));
  merge<bf16>(rank, c, a, {{4, 5, 6, 3, 2, 1}, {7, 1}});
  BOOST_TEST(a.lse[0] == 7);
  BOOST_TEST(std::abs(a.lse[1] - (1 + std::log(2.0))) < 1e-6);
  BOOST_TEST((a.out == std::vector<double>{4, 5, 6, 2, 2, 2}));
}

BOOST_AUTO_TEST_CASE(work_is_counted_as_it_is_done) {
  for (int time = 0; time < 200; ++time) {  // the count, without a device
    const Documents documents = Documents::from_lengths(random_lengths(random, 1 + static_cast<int64_t>(random() % 700)));
    const std::vector<Documents> queries = random_shards(random, documents, 1 + time % 3), keys = random_shards(random, documents, 1 + time % 2);
    const int64_t window = time % 4 == 0 ? 1 + static_cast<int64_t>(random() % 200) : 0;
    const AttentionWork work = attention_work(queries[0].runs(), keys[0].runs(), queries[0].tokens(), keys[0].tokens(), window);
    const auto [attended, computed] = enumerated_pairs(queries[0], keys[0], window);
    BOOST_TEST(work.attended_pairs == attended);
    BOOST_TEST(work.computed_pairs == computed);
    BOOST_TEST(work.computed_pairs >= work.attended_pairs);
  }
  const AttentionCase c = device_case(random, random_lengths(random, 150), {2, 1, 4, 20});  // and on the rank
  const AttentionForward result = forward<float>(rank, c);
  const auto [attended, computed] = enumerated_pairs(c.documents, c.documents, 20);
  BOOST_TEST(rank.work().attended_pairs == 2 * attended);
  BOOST_TEST(rank.work().attended_pairs == 2 * c.documents.useful_pairs(20));
  BOOST_TEST(rank.work().computed_pairs == 2 * computed);
  backward<float>(rank, c, result);
  BOOST_TEST(rank.work().attended_pairs == 4 * attended);
}

// A masked pair of a tile that is computed has weight 0, and 0 times NaN shows: so it can be seen which tiles were.
BOOST_AUTO_TEST_CASE(tiles_that_do_not_meet_are_not_computed) {
  const auto check = [&]<class T>(T, const DeviceSizes& s) {
    const AttentionCase clean = rounded_case<T>(device_case(random, std::vector<int64_t>{64, 100, 92, 64}, s));
    const std::vector<TileBoundaries> tiles = enumerated_tiles(clean.documents);
    const AttentionResult expected = both<T>(rank, clean);
    for (size_t spoiled = 0; spoiled < tiles.size(); ++spoiled) {
      AttentionCase c = clean;
      const auto fill = [&](std::vector<double>& values, int64_t width) {
        std::fill_n(values.begin() + static_cast<int64_t>(spoiled) * 64 * width, 64 * width, std::numeric_limits<double>::quiet_NaN());
      };
      fill(c.v, c.key_width());
      const AttentionForward f = forward<T>(rank, c);
      const AttentionBackward keys_spoiled = backward<T>(rank, c, expected.forward);
      AttentionCase d = clean;
      fill(d.dout, d.query_width());
      const AttentionBackward queries_spoiled = backward<T>(rank, d, c.documents, c.documents, expected.forward.lse, std::vector<double>(expected.forward.lse.size(), 0));
      for (size_t i = 0; i < tiles.size(); ++i) {
        const auto has_nan = [&](const std::vector<double>& values, int64_t width) {
          const auto begin = values.begin() + static_cast<int64_t>(i) * 64 * width;
          return std::any_of(begin, begin + 64 * width, [](double x) { return std::isnan(x); });
        };
        const bool reads = key_tile_place(tiles[i], tiles[spoiled], kernel_window(s.window)) == KeyTilePlace::meets;
        const bool is_read = key_tile_place(tiles[spoiled], tiles[i], kernel_window(s.window)) == KeyTilePlace::meets;
        BOOST_TEST(has_nan(f.out, c.query_width()) == reads);
        BOOST_TEST(has_nan(keys_spoiled.dq, c.query_width()) == reads);
        BOOST_TEST(has_nan(queries_spoiled.dv, c.key_width()) == is_read);
        BOOST_TEST(has_nan(queries_spoiled.dk, c.key_width()) == is_read);
      }
    }
  };
  check(bf16(), {1, 1, 64, 0});
  check(bf16(), {1, 1, 64, 30});
  check(float(), {1, 1, 4, 30});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
