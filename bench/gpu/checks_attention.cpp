// Attention's kernels against literal loops.
#include "bench/gpu/checks.h"
#include "ops/attention_isolation.h"
#include "ops/attention_rule.h"

namespace quire::gpu_report {
namespace {

using namespace quire::test;

struct Sizes {
  int64_t heads, kv_heads, head_dim, window;
};

AttentionCase made_case(std::mt19937_64& random, int64_t tokens, const Sizes& s) {
  AttentionCase c = random_case(random, random_lengths(random, tokens), s.heads, s.kv_heads, s.head_dim, s.window);
  c.gap = 8;  // rows as tensor cores read them
  return c;
}

template <class T>
void hold_the_rule(Rank& rank, int64_t tokens, std::initializer_list<Sizes> sizes, const char* kernel) {
  std::mt19937_64 random(7);
  AttentionRule rule;
  for (const Sizes& s : sizes) {
    const AttentionCase c = rounded_case<T>(made_case(random, tokens + static_cast<int64_t>(random() % 60), s));
    rule.add<T>(both<T>(rank, c), c);
    BOOST_TEST(rank.chosen_kernels()["attention_forward"] == kernel);
    BOOST_TEST(rank.chosen_kernels()["attention_backward"] == kernel);
  }
  rule.check();
}

bool alike(const AttentionResult& a, const AttentionResult& b) {
  const auto same = [](const std::vector<double>& x, const std::vector<double>& y) { return x.size() == y.size() && same_rows(x, y, 1, 0, static_cast<int64_t>(x.size()), 0); };
  return same(a.forward.out, b.forward.out) && same(a.forward.lse, b.forward.lse) && same(a.backward.dq, b.backward.dq) && same(a.backward.dk, b.backward.dk) &&
         same(a.backward.dv, b.backward.dv);
}

/// Runs that follow one another give the same bits.
template <class T>
void repeat(Rank& rank, int64_t tokens, int times) {
  std::mt19937_64 random(8);
  for (const Sizes& s : {Sizes{2, 1, 64, 0}, {1, 1, 128, 90}}) {
    const AttentionCase c = rounded_case<T>(made_case(random, tokens, s));
    const AttentionResult first = both<T>(rank, c);
    BOOST_TEST(finite(first));
    for (int i = 1; i < times; ++i) BOOST_TEST(alike(both<T>(rank, c), first), "run " << i + 1);
  }
}

/// Replaced tokens of one document change no bit of another's results.
template <class T>
void keep_apart(Rank& rank, const Sizes& s) {
  std::mt19937_64 random(9);
  const std::vector<int64_t> lengths = {20, 65, 1, 130, 34};
  AttentionCase c = random_case(random, lengths, s.heads, s.kv_heads, s.head_dim, s.window);
  c.gap = 8;
  c = rounded_case<T>(c);
  const AttentionResult before = both<T>(rank, c);
  AttentionCase other = c;
  const int64_t begin = 20, end = 85;
  for (std::vector<double>* values : {&other.q, &other.dout})
    for (int64_t i = begin * c.query_width(); i < end * c.query_width(); ++i) (*values)[static_cast<size_t>(i)] *= -2;
  for (std::vector<double>* values : {&other.k, &other.v})
    for (int64_t i = begin * c.key_width(); i < end * c.key_width(); ++i) (*values)[static_cast<size_t>(i)] *= -2;
  const AttentionResult after = both<T>(rank, other);
  const auto rows_alike = [&](int64_t from, int64_t to) {
    return same_rows(before.forward.out, after.forward.out, c.query_width(), from, to, from) && same_rows(before.backward.dq, after.backward.dq, c.query_width(), from, to, from) &&
           same_rows(before.backward.dk, after.backward.dk, c.key_width(), from, to, from) && same_rows(before.backward.dv, after.backward.dv, c.key_width(), from, to, from);
  };
  BOOST_TEST(rows_alike(0, begin));
  BOOST_TEST(rows_alike(end, c.tokens()));
  BOOST_TEST(!rows_alike(begin, end), "the control");
}

}  // namespace

std::vector<CheckCase> attention_checks(bool tiny) {
  const int64_t tokens = tiny ? 70 : 500;
  return {
    {"attention, tensor cores, head size 64", [=](Rank& rank) { hold_the_rule<bf16>(rank, tokens, {{tiny ? 1 : 4, 1, 64, 0}, {2, 2, 64, 33}}, "tensor_cores"); }},
    {"attention, tensor cores, head size 128", [=](Rank& rank) { hold_the_rule<bf16>(rank, tokens, {{tiny ? 1 : 4, 1, 128, 0}, {1, 1, 128, 70}}, "tensor_cores"); }},
    {"attention, f32 arithmetic", [=](Rank& rank) {
       hold_the_rule<float>(rank, tokens, {{2, 1, 64, 0}, {1, 1, 96, 40}}, "f32");
       hold_the_rule<bf16>(rank, tokens, {{1, 1, 80, 0}}, "f32");
     }},
    {"attention, runs repeated to the bit", [=](Rank& rank) {
       repeat<bf16>(rank, 2 * tokens, tiny ? 2 : 5);
       repeat<float>(rank, tokens, tiny ? 2 : 5);
     }},
    {"attention, documents kept apart to the bit", [](Rank& rank) {
       keep_apart<bf16>(rank, {2, 1, 64, 0});
       keep_apart<float>(rank, {1, 1, 128, 0});
     }},
    {"attention, shards merged", [=](Rank& rank) {
       std::mt19937_64 random(10);
       check_shards<float>(rank, made_case(random, tokens, {2, 1, 64, 0}), random, 1e-5);
     }},
  };
}

}  // namespace quire::gpu_report
