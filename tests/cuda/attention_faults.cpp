// FAULTS.md 16, 17, 25, 26, 31, 45 and 46 for `block` attention on an emulated device.
#include "cuda/attention_device.h"
#include "ops/attention_restricted.h"
#include "ops/cuda/attention_work.h"
#include "ops/cuda/boundary_search.h"
#include "runtime/accelerator.h"
#include "tier.h"

#include <numeric>

namespace quire::test {
namespace {

Documents part(const Documents& documents, int32_t begin, int32_t end) {
  std::vector<int32_t> indices(static_cast<size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  return Documents::shard(indices, {documents.starts().begin() + begin, documents.starts().begin() + end});
}

/// Runs of some documents, with rows between them that none covers.
std::vector<DocumentRun> random_runs(std::mt19937_64& random, int64_t tokens) {
  std::vector<DocumentRun> runs;
  for (const DocumentRun& run : Documents::from_lengths(random_lengths(random, tokens, 16)).runs())
    if (random() % 4 != 0) runs.push_back(run);
  return runs;
}

struct Table { std::vector<int32_t> global, start, tiles; bool operator==(const Table&) const = default; };
Table table_on(Rank& rank, const std::vector<DocumentRun>& runs, int64_t tokens) {
  const auto whole = [&](int64_t count) { return Tensor::from<int32_t>(rank, {count + 8}, std::vector<int32_t>(static_cast<size_t>(count + 8), -7)); };
  const Tensor list = Tensor::from<int32_t>(rank, {static_cast<int64_t>(runs.size()) * 4}, {reinterpret_cast<const int32_t*>(runs.data()), runs.size() * 4});
  const Tensor global = whole(tokens), start = whole(tokens), tiles = whole((tokens + 63) / 64 * 4);
  dispatch(rank, BoundaryTableArgs{tokens, static_cast<int64_t>(runs.size()), static_cast<const DocumentRun*>(list.raw()), global.data<int32_t>(), start.data<int32_t>(),
                                   static_cast<TileBoundaries*>(tiles.raw())});
  return {global.to_vector<int32_t>(), start.to_vector<int32_t>(), tiles.to_vector<int32_t>()};
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cuda_attention_faults, DeviceTest)

BOOST_AUTO_TEST_CASE(tables_equal_the_plain_ones) {
  Rank cpu(RankOptions{.poison = true});
  for (int time = 0; time < 24; ++time) {
    const int64_t tokens = time == 0 ? 1 : 1 + static_cast<int64_t>(random() % 600);
    const std::vector<DocumentRun> runs = time == 1 ? std::vector<DocumentRun>() : random_runs(random, tokens);
    emulation::order(eight_orders[time % 8].order, eight_orders[time % 8].seed);
    const Table plain = table_on(cpu, runs, tokens);
    BOOST_TEST((table_on(rank, runs, tokens) == plain));
    const std::vector<TileBoundaries> tiles = tile_boundaries(runs, tokens);
    for (size_t i = 0; i < tiles.size(); ++i) BOOST_TEST(std::memcmp(&tiles[i], &plain.tiles[4 * i], sizeof(TileBoundaries)) == 0);
  }
  BOOST_TEST((table_on(rank, {{0, 0, 9, 0}}, 10) != table_on(rank, {{0, 0, 10, 0}}, 10)));  // control
}

// Rows whose length nothing divides: poisoned memory changes no bit, and the last token of every document reads itself.
BOOST_AUTO_TEST_CASE(every_residue_is_right_16) {
  RankOptions options = device_rank();
  options.poison = false;
  Rank clean(options);
  for (int64_t tokens : {1, 2, 62, 63, 65, 66, 127, 129}) {
    AttentionCase c = rounded_case<bf16>(device_case(random, random_lengths(random, tokens, 8), {1, 1, tokens % 2 ? 64 : 8, 0}));
    const AttentionResult poisoned = both<bf16>(rank, c);
    BOOST_TEST(finite(poisoned));
    BOOST_TEST(same_result(poisoned, both<bf16>(clean, c)));
    std::fill(c.v.begin(), c.v.end(), 0.0);
    const std::vector<DocumentRun> runs = c.documents.runs();
    for (const DocumentRun& run : runs) std::fill_n(c.v.begin() + (run.global + run.length - 1) * c.key_width(), c.key_width(), 1.0);
    const AttentionForward last = forward<bf16>(rank, c);
    for (const DocumentRun& run : runs)
      for (int32_t i = run.global; i < run.global + run.length; ++i) {
        const double value = last.out[static_cast<size_t>(i * c.query_width())];
        BOOST_REQUIRE((i + 1 == run.global + run.length ? value > 1e-30 : value == 0));
      }
  }
}

// A thousand random length vectors (in the full tier), backward too.
BOOST_AUTO_TEST_CASE(random_length_vectors_stay_finite_17) {
  Rank cpu(RankOptions{.poison = true});
  const int rounds = all_tier() ? 1000 : 36;
  for (int round = 0; round < rounds; ++round) {
    const int64_t tokens = 1 + static_cast<int64_t>(random() % (round % 12 ? 70 : 200));
    const DeviceSizes s{2, 1, round % 3 == 0 ? 64 : 1 + static_cast<int64_t>(random() % 9), static_cast<int64_t>(random() % 3) * 7};
    const AttentionCase c = rounded_case<bf16>(device_case(random, random_lengths(random, tokens, 16), s));
    emulation::order(emulation::Order::random, random());
    const AttentionResult half = both<bf16>(rank, c), single = both<float>(rank, c), plain = both<float>(cpu, c);
    BOOST_REQUIRE(finite(half));
    BOOST_REQUIRE(finite(single));
    BOOST_TEST(relative_difference(single.forward.out, plain.forward.out) <= 1e-5);
    BOOST_TEST(relative_difference(half.forward.out, plain.forward.out) <= 2e-2);
    // Documents of one token have score gradients of 0 but for roundings: their size says nothing.
    if (c.documents.longest() > 1) {
      BOOST_TEST(relative_difference(single.backward.dq, plain.backward.dq) <= 1e-4);
      BOOST_TEST(relative_difference(single.backward.dk, plain.backward.dk) <= 1e-4);
    }
    BOOST_TEST(relative_difference(single.backward.dv, plain.backward.dv) <= 1e-4);
  }
}

// Bounds above the true ones: tensors with more rows than tokens, which hold NaN.
BOOST_AUTO_TEST_CASE(rows_beyond_the_tokens_do_not_matter_25_45) {
  const AttentionCase c = rounded_case<bf16>(device_case(random, std::vector<int64_t>{1, 33, 1, 1, 64}, {2, 1, 64, 0}));
  const AttentionForward exact = forward<bf16>(rank, c);
  const Rows<bf16> q(c.q, c.documents.indices(), c.query_width(), c.gap), k(c.k, c.documents.indices(), c.key_width(), c.gap), v(c.v, c.documents.indices(), c.key_width(), c.gap);
  const Tensor q_rows = q.on(rank), k_rows = k.on(rank), v_rows = v.on(rank);
  const auto longer = [&](int64_t tokens, int32_t last) {
    std::vector<DocumentRun> runs = c.documents.runs();
    runs.back().length += last;
    const auto list = std::make_shared<const RunList>(runs);
    const Rows<bf16> out(tokens, c.query_width(), c.gap);
    const Rows<float> lse(tokens, c.heads, 0);
    const Tensor out_rows = out.on(rank), lse_rows = lse.on(rank);
    dispatch(rank, AttentionForwardArgs{DType::bf16, c.heads, c.kv_heads, c.head_dim, tokens, tokens, *list, *list, 0, c.scale, q_rows.raw(), q.stride, k_rows.raw(), k.stride,
                                        v_rows.raw(), v.stride, out_rows.raw(), out.stride, lse_rows.raw(), false, false, list->table(rank, tokens), list->table(rank, tokens)});
    return std::pair(out.values(out_rows), lse.values(lse_rows));
  };
  const auto [out, lse] = longer(150, 0);
  BOOST_TEST(same_rows(out, exact.out, c.query_width(), 0, 100, 0));
  BOOST_TEST(same_rows(lse, exact.lse, c.heads, 0, 100, 0));
  for (size_t i = static_cast<size_t>(100 * c.query_width()); i < out.size(); ++i) BOOST_REQUIRE(std::isnan(out[i]));  // not written
  // Control: a run that claims one token more than there is reads the NaN.
  BOOST_TEST(std::isnan(longer(150, 1).second[static_cast<size_t>(100 * c.heads)]));
}

BOOST_AUTO_TEST_CASE(one_token_documents_return_their_value_26) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>(70, 1), std::vector<int64_t>{1, 0, 70, 1, 0, 1}})
    for (const int64_t head_dim : {64, 8}) {
      const AttentionCase c = rounded_case<bf16>(device_case(random, lengths, {1, 1, head_dim, 0}));
      const AttentionResult r = both<bf16>(rank, c);
      for (int64_t i = 0; i < c.tokens(); ++i)
        if (c.documents.starts()[static_cast<size_t>(i)] == i) BOOST_TEST(same_rows(r.forward.out, c.v, head_dim, i, i + 1, i));  // a first token reads itself alone
      if (lengths.size() == 70)
        for (double value : r.backward.dk) BOOST_REQUIRE_SMALL(value, 1e-4);
    }
}

BOOST_AUTO_TEST_CASE(every_output_is_written_without_keys_or_queries_45) {
  const auto check = [&]<class T>(T, const DeviceSizes& s) {
    const AttentionCase c = rounded_case<T>(device_case(random, std::vector<int64_t>{5, 60, 5}, s));
    const std::vector<double> lse = forward<T>(rank, c).lse, deltas(lse.size(), 1.0);
    // Keys after the queries, keys of another document, no keys at all: nothing is read, everything is written.
    for (const Documents& keys : {part(c.documents, 40, 65), part(c.documents, 65, 70), part(c.documents, 0, 5), Documents()}) {
      const AttentionForward r = forward<T>(rank, c, part(c.documents, 10, 40), keys);
      for (double value : r.lse) BOOST_REQUIRE(value == -std::numeric_limits<double>::infinity());
      for (double value : r.out) BOOST_REQUIRE(value == 0);
      const AttentionBackward g = backward<T>(rank, c, part(c.documents, 10, 40), keys, lse, deltas);
      for (const std::vector<double>* values : {&g.dq, &g.dk, &g.dv})
        for (double value : *values) BOOST_REQUIRE(value == 0);
    }
    BOOST_TEST(forward<T>(rank, c, Documents(), part(c.documents, 0, 70)).out.empty());
    BOOST_TEST(backward<T>(rank, c, Documents(), part(c.documents, 0, 70), lse, deltas).dq.empty());
    // Rows whose log-sum-exp is -infinity contribute nothing, even where keys are at hand.
    const std::vector<double> none(lse.size(), -std::numeric_limits<double>::infinity());
    const AttentionBackward g = backward<T>(rank, c, c.documents, c.documents, none, deltas);
    for (const std::vector<double>* values : {&g.dq, &g.dk, &g.dv})
      for (double value : *values) BOOST_REQUIRE(value == 0);
  };
  check(bf16(), {2, 1, 64, 0});
  check(float(), {2, 1, 8, 0});
}

BOOST_AUTO_TEST_CASE(kernels_asked_for_by_name_run_or_refuse_31) {
  const auto run = [&](const char* op, const char* kernel, bool dense, int64_t head_dim) {
    RankOptions options = device_rank();
    options.kernels[op] = kernel;
    Rank named(options);
    AttentionCase c = device_case(random, std::vector<int64_t>{3, 4}, {1, 1, head_dim, 0});
    c.dense = dense;
    both<bf16>(named, c);
    return named.chosen_kernels().at(op);
  };
  for (const char* op : {"attention_forward", "attention_backward"}) {
    BOOST_TEST(run(op, "tensor_cores", false, 64) == "tensor_cores");
    BOOST_TEST(run(op, "f32", false, 64) == "f32");
    check_error<UnsupportedError>([&] { run(op, "tensor_cores", false, 32); }, {op, "'tensor_cores'", "cuda"});
    check_error<ConfigError>([&] { run(op, "dense", false, 64); }, {"[run.kernels]", op, "'dense'", "cuda", "allowed: tensor_cores, f32"});
  }
  check_error<UnsupportedError>([&] { run("attention_forward", "f32", true, 64); }, {"attention_forward", "'f32'", "cuda"});
}

// The table is made once per microbatch, by work that grows as its tokens, and nothing is read back.
BOOST_AUTO_TEST_CASE(tables_are_made_once_per_microbatch_46) {
  const int64_t tokens = 90;
  const AttentionOptions options{.heads = 1, .kv_heads = 1, .head_dim = 4};
  const auto tables_of = [&](bool shared) {
    Profile profile;
    Rank own(device_rank());
    own.set_profile(&profile);
    const Documents documents = Documents::from_lengths(random_lengths(random, tokens));
    const DocumentRuns runs = shared_runs(documents);
    Tape tape(own);
    const Value x = tape.leaf(shaped<float>(own, {tokens, 4}, random_values(random, tokens * 4)));
    Value y = x;
    const int64_t reads = own.accelerator()->host_reads();
    for (int layer = 0; layer < 3; ++layer) y = attention(tape, y, y, y, shared ? runs : shared_runs(documents), options);
    BOOST_TEST(own.accelerator()->host_reads() == reads);
    return std::pair(profile.entries()["boundary_table"].calls, profile.entries()["attention_forward"].calls);
  };
  BOOST_TEST((tables_of(true) == std::pair<int64_t, int64_t>(1, 3)));
  BOOST_TEST((tables_of(false) == std::pair<int64_t, int64_t>(3, 3)));  // control: runs that are made again need a table again
  for (int time = 0; time < 100; ++time) {
    const int64_t count = 1 + static_cast<int64_t>(random() % 5000);
    const std::vector<DocumentRun> runs = random_runs(random, count);
    int64_t reads = 0;
    for (int64_t tile = 0; tile * boundary_tile < count; ++tile) {
      const auto end_of = [&](int32_t run) { ++reads; return int64_t{runs[static_cast<size_t>(run)].local} + runs[static_cast<size_t>(run)].length; };
      const int32_t first = first_run_beyond(end_of, static_cast<int32_t>(runs.size()), tile * boundary_tile);
      const auto beyond = std::find_if(runs.begin(), runs.end(), [&](const DocumentRun& r) { return int64_t{r.local} + r.length > tile * boundary_tile; });
      BOOST_TEST(first == beyond - runs.begin());
    }
    BOOST_TEST(reads <= count + 13);  // 13 per tile at most
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
