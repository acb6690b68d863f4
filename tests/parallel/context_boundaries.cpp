// Keys and values are masked with the boundaries that came with them; what is not as planned is noted, and computed with where it can be.
#include <cstring>

#include "parallel/boundary_record.h"
#include "in_rank.h"
#include "parallel/context_case.h"
#include "run/context_breaks.h"

using namespace quire;
using namespace quire::test;

namespace {

constexpr AttentionOptions boundary_options{.heads = 2, .kv_heads = 1, .head_dim = 4};

/// Changes every message of a kind.
ContextRun changing(MessageKind kind, std::function<Tensor(const Tensor&)> change, const char* purpose = "") {
  return {.wire = {.change = [=](const Tensor& message, int, const MessageLabel& label) {
    return label.kind == kind && (*purpose == '\0' || std::strcmp(label.purpose, purpose) == 0) ? change(message) : message;
  }}};
}

/// The same words, one of them changed.
Tensor with_word(const Tensor& record, size_t word, int32_t added) {
  static thread_local Rank rank;
  std::vector<int32_t> words = record.to_vector<int32_t>();
  words.at(word) += added;
  return Tensor::from<int32_t>(rank, record.shape(), words);
}

bool same(const ContextResult& a, const ContextResult& b) { return a.out == b.out && a.dq == b.dq && a.dk == b.dk && a.dv == b.dv; }

bool any_mismatch(const ContextResult& result) {
  return std::any_of(result.mismatches.begin(), result.mismatches.end(), [](const auto& mismatch) { return mismatch.has_value(); });
}

ContextCase two_documents(ContextLayout layout, ContextExchange exchange) {
  std::mt19937_64 random(7);
  return context_case(random, {10, 22}, boundary_options, layout, exchange);  // two ranks hold 16 tokens each, contiguous
}

}  // namespace

BOOST_AUTO_TEST_SUITE(context_boundaries)

BOOST_AUTO_TEST_CASE(any_word_of_a_header_that_differs_is_noted) {
  // Words of 4 bytes: magic 0, step 2, stage 4, microbatch 6, tokens 8, digest 10, plan 12, spare 14.
  for (const auto& [layout, exchange] : context_ways) {
    const ContextCase c = two_documents(layout, exchange);
    const ContextResult plain = run_ranks(c, 2);
    BOOST_TEST(!any_mismatch(plain));
    for (const size_t word : {0, 2, 4, 6, 8, 10, 12, 14}) {
      const ContextResult changed = run_ranks(c, 2, changing(MessageKind::boundaries, [=](const Tensor& record) { return with_word(record, word, 1); }));
      BOOST_TEST_CONTEXT(name_of(layout) << ", " << name_of(exchange) << ", word " << word) {
        BOOST_TEST(any_mismatch(changed) == (plain.traffic[0][MessageKind::boundaries].messages + plain.traffic[1][MessageKind::boundaries].messages > 0));
        for (const auto& mismatch : changed.mismatches)
          if (mismatch) BOOST_TEST((mismatch->stage == 1 && mismatch->microbatch == 2 && mismatch->layer == 3));
        // The documents are right, or can not be read and are the plan's. All own queries take part now, with no keys for some of them: no bit changes.
        BOOST_TEST(same(changed, plain));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(received_boundaries_are_what_masks) {
  // Tokens 10 to 15 of the second document go to rank 1, whose tokens 16 to 31 read them; on the wire 13 becomes the first of a document of its own.
  for (const ContextExchange exchange : {ContextExchange::ring, ContextExchange::gather}) {
    const ContextCase c = two_documents(ContextLayout::contiguous, exchange);
    const ContextResult single = run_single(c);
    const ContextResult changed = run_ranks(c, 2, changing(MessageKind::boundaries, [](const Tensor& record) {
      Tensor result = record;
      for (size_t token = 3; token < 6; ++token) result = with_word(result, static_cast<size_t>(boundary_header_words) + 6 + token, 3);
      return result;
    }));
    BOOST_TEST(changed.mismatches[1].has_value());
    BOOST_TEST(!changed.mismatches[0].has_value());
    // What rank 1 must have computed: keys 0 to 9, 10 to 12 and its own 16 to 31.
    Rank rank;
    const Documents whole = c.whole();
    const Tensor q = rows_tensor(rank, c.q, whole.indices(), 8, DType::f64), k = rows_tensor(rank, c.k, whole.indices(), 4, DType::f64),
                 v = rows_tensor(rank, c.v, whole.indices(), 4, DType::f64);
    const auto keys = std::make_shared<const RunList>(std::vector<DocumentRun>{{10, 10, 3, 10}, {16, 16, 16, 10}});
    const std::vector<double> expected = attention_partial(rank, q, k, v, shared_runs(whole), keys, boundary_options).out.to_vector<double>();
    const auto rows = [](const std::vector<double>& values, int64_t begin, int64_t end) {
      return std::vector<double>(values.begin() + begin * 8, values.begin() + end * 8);
    };
    BOOST_TEST(relative_difference(rows(changed.out, 16, 32), rows(expected, 16, 32)) <= 1e-13);
    BOOST_TEST(relative_difference(rows(changed.out, 16, 32), rows(single.out, 16, 32)) > 1e-3);
    BOOST_TEST(relative_difference(rows(changed.out, 0, 16), rows(single.out, 0, 16)) <= 1e-13);
  }
}

BOOST_AUTO_TEST_CASE(boundaries_that_can_not_be_are_replaced_by_the_plans) {
  for (const auto& [layout, exchange] : context_ways) {
    const ContextCase c = two_documents(layout, exchange);
    const ContextResult plain = run_ranks(c, 2);
    const ContextResult changed = run_ranks(c, 2, changing(MessageKind::boundaries, [](const Tensor& record) {
      return with_word(record, static_cast<size_t>(record.elements()) - 1, 1 << 20);  // a document that starts after its token
    }));
    BOOST_TEST(same(changed, plain));
    BOOST_TEST(any_mismatch(changed) == (plain.traffic[0][MessageKind::boundaries].messages + plain.traffic[1][MessageKind::boundaries].messages > 0));
  }
}

BOOST_AUTO_TEST_CASE(boundaries_of_another_microbatch_stay_finite) {
  // Records whose tokens claim other places and documents: nothing fails, all is noted.
  std::mt19937_64 random(8);
  for (const auto& [layout, exchange] : context_ways)
    for (int time = 0; time < 10; ++time) {
      const ContextCase c = context_case(random, random_lengths(random, 90, 16), {.heads = 3, .kv_heads = 3, .head_dim = 2}, layout, exchange);
      const ContextResult changed = run_ranks(c, 3, changing(MessageKind::boundaries, [](const Tensor& record) {
        static thread_local Rank rank;
        const int64_t tokens = record.to_vector<int32_t>().at(8);
        const BoundaryRecord read = read_boundary_record(record, tokens);
        std::vector<int32_t> indices, starts;
        for (int64_t i = 0; i < tokens; ++i) {
          indices.push_back(static_cast<int32_t>(2 * i + 1));
          starts.push_back(static_cast<int32_t>(2 * i + 1 - i % 2 * 2));
        }
        if (record.elements() == boundary_header_words + tokens) return with_word(record, 2, 1);
        return make_boundary_record(rank, read.header, Documents::shard(indices, starts));
      }));
      for (const std::vector<double>* values : {&changed.out, &changed.dq, &changed.dk, &changed.dv})
        for (double value : *values) BOOST_REQUIRE(std::isfinite(value));
    }
}

BOOST_AUTO_TEST_CASE(the_first_mismatch_is_kept_until_it_is_taken) {
  const ContextCase c = two_documents(ContextLayout::contiguous, ContextExchange::ring);
  ContextPlanner planner(2, c.context);
  run_local(2, {.watchdog_seconds = 60}, [&](Communicator& world) {
    Rank rank;
    int messages = 0;
    Wire wire(world, {.change = [&](const Tensor& message, int, const MessageLabel& label) {
      return label.kind == MessageKind::boundaries && ++messages > 1 ? with_word(message, 2, 1) : message;  // all but the first layer's
    }});
    ContextAttention executor(rank, wire, planner);
    const Documents whole = c.whole(), own = executor.shard(whole);
    Microbatch microbatch;
    microbatch.work = executor.begin(whole, own, 4, 0, 6);
    Tape tape(rank, false);
    const auto value = [&](const std::vector<double>& values, int64_t width) {
      return tape.constant(rows_tensor(rank, values, own.indices(), width, DType::f64));
    };
    for (int64_t layer = 0; layer < 4; ++layer) executor.attend(tape, layer, value(c.q, 8), value(c.k, 4), value(c.v, 4), microbatch, boundary_options);
    executor.finish();
    const auto mismatch = executor.take_mismatch();
    require_in_rank(mismatch.has_value() == (world.rank() == 1), "who saw it");
    if (mismatch) require_in_rank(mismatch->layer == 1 && mismatch->microbatch == 6, "where it was seen");
    require_in_rank(!executor.take_mismatch().has_value(), "it is told once");
  });
}

BOOST_AUTO_TEST_CASE(dropped_boundaries_change_results_and_are_no_mismatch) {
  std::mt19937_64 random(10);
  for (const char* broken : {"dropped", "ring_step"})
    for (const auto& [layout, exchange] : context_ways) {
      const std::vector<std::string> leaks = context_leaks(exchange);
      if (std::find(leaks.begin(), leaks.end(), broken) == leaks.end()) continue;
      const ContextCase c = context_case(random, {20, 20}, {.heads = 2, .kv_heads = 2, .head_dim = 4}, layout, exchange);
      const std::unique_ptr<ContextTamper> tamper = make_context_tamper(broken);
      const ContextResult many = run_ranks(c, 2, {.tamper = tamper.get()}), single = run_single(c);
      ContextCase joined = c;
      joined.lengths = {40};
      const ContextResult merged = run_single(joined);
      BOOST_TEST_CONTEXT(broken << ", " << name_of(layout) << ", " << name_of(exchange)) {
        BOOST_TEST(relative_difference(many.out, single.out) > 1e-3);
        BOOST_TEST((largest_difference(many, merged) <= 1e-11) == (std::string_view(broken) == "dropped" || layout != ContextLayout::zigzag));
        BOOST_TEST(!any_mismatch(many));
      }
    }
}

BOOST_AUTO_TEST_CASE(changed_keys_values_and_gradients_are_seen_in_results) {
  // Controls of the comparison with one process: each of these must be found by it.
  std::mt19937_64 random(9);
  const auto rotated = [](int64_t rows_part) {
    return [=](const Tensor& message) {
      static thread_local Rank rank;
      std::vector<double> values = message.to_vector<double>();
      std::rotate(values.begin(), values.begin() + message.size(-1) / rows_part, values.end());
      return Tensor::from<double>(rank, message.shape(), values);
    };
  };
  // Keys and values exchanged. (Rows exchanged would change nothing where queries read all of them: attention does not see the order of keys.)
  const auto halves = rotated(2), rows = rotated(1);
  for (const ContextExchange exchange : {ContextExchange::ring, ContextExchange::gather}) {
    const ContextCase c = context_case(random, {5, 43}, boundary_options, ContextLayout::zigzag, exchange);
    const ContextResult single = run_single(c);
    BOOST_TEST(largest_difference(run_ranks(c, 3), single) <= 1e-11);
    BOOST_TEST(relative_difference(run_ranks(c, 3, changing(MessageKind::keys_values, halves)).out, single.out) > 1e-3);
    const ContextResult returned = run_ranks(c, 3, changing(MessageKind::key_value_gradients, rows));
    BOOST_TEST(relative_difference(returned.out, single.out) <= 1e-11);
    BOOST_TEST(relative_difference(returned.dk, single.dk) > 1e-3);
  }
  const ContextCase heads = context_case(random, {5, 43}, {.heads = 3, .kv_heads = 3, .head_dim = 4}, ContextLayout::contiguous, ContextExchange::heads);
  for (const char* purpose : {"queries, keys and values", "outputs", "gradients of outputs", "gradients"})
    BOOST_TEST(largest_difference(run_ranks(heads, 3, changing(MessageKind::head_parts, rows, purpose)), run_single(heads)) > 1e-3);
}

BOOST_AUTO_TEST_SUITE_END()
