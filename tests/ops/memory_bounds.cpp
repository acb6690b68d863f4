// Matrix products and attention on memory that ends at a page that nobody may touch: kernels whose inner loops no sanitizer sees read and write what
// they are given, and no byte beside it. What lies between rows is NaN or infinite and stays as it is.
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <memory>

#include "ops/attention_case.h"
#include "ops/cpu/matmul.h"
#include "ops/fenced.h"
#include "runtime/dispatch.h"

namespace quire::test {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

struct Form {
  const char* name;
  bool a_transposed, b_transposed;
};
constexpr Form forms[] = {{"nn", false, false}, {"nt", false, true}, {"tn", true, false}, {"tt", true, true}};

int64_t below(std::mt19937_64& random, int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); }

/// Elements of `rows` rows that are `stride` apart: the last one ends with its width.
int64_t extent(int64_t rows, int64_t width, int64_t stride) { return (rows - 1) * stride + width; }

/// A matrix of small whole numbers, whose products have no rounding to disagree about, and of what must not count between its rows.
template <class T>
std::vector<T> whole_numbers(std::mt19937_64& random, int64_t rows, int64_t width, int64_t stride) {
  std::vector<T> values(static_cast<size_t>(extent(rows, width, stride)));
  for (size_t i = 0; i < values.size(); ++i) {
    const bool inside = static_cast<int64_t>(i) % stride < width;
    values[i] = inside ? T(static_cast<float>(below(random, 9) - 4)) : T(i % 3 == 0 ? infinity : i % 3 == 1 ? -infinity : nan);
  }
  return values;
}

/// What the product of the arguments is, by loops over its definition.
template <class T, class C>
std::vector<C> product(const MatmulArgs& args, const std::vector<T>& a, const std::vector<T>& b, const std::vector<C>& before) {
  const auto at = [](const std::vector<T>& x, int64_t place) { return static_cast<float>(x[static_cast<size_t>(place)]); };
  std::vector<C> c = before;
  for (int64_t i = 0; i < args.m; ++i)
    for (int64_t j = 0; j < args.n; ++j) {
      C& to = c[static_cast<size_t>(i * args.c_row + j)];
      float sum = 0;
      for (int64_t p = 0; p < args.k; ++p) sum += at(a, i * args.a_row + p * args.a_col) * at(b, p * args.b_row + j * args.b_col);
      to = C(args.accumulate ? static_cast<float>(to) + sum : sum);
    }
  return c;
}

template <class T>
bool same_bits(const T* a, const std::vector<T>& b) { return std::memcmp(a, b.data(), b.size() * sizeof(T)) == 0; }

/// Fenced memory of a product's operands.
template <class T, class C>
struct Fences {
  Fenced<T> a{4096}, b{4096};
  Fenced<C> c{4096};
};

/// One product in every instruction set.
template <class T, class C>
void check_product(std::mt19937_64& random, Fences<T, C>& fences, std::vector<std::unique_ptr<Rank>>& ranks, int64_t m, int64_t n, const Form& form) {
  const int64_t gap = below(random, 2) * 3, k = 1 + below(random, 40);
  const int64_t a_rows = form.a_transposed ? k : m, a_width = form.a_transposed ? m : k;
  const int64_t b_rows = form.b_transposed ? n : k, b_width = form.b_transposed ? k : n;
  const int64_t a_stride = a_width + gap, b_stride = b_width + gap, c_stride = n + gap;
  const std::vector<T> a = whole_numbers<T>(random, a_rows, a_width, a_stride), b = whole_numbers<T>(random, b_rows, b_width, b_stride);
  const std::vector<C> before = whole_numbers<C>(random, m, n, c_stride);
  const bool at_end = random() % 4 != 0;
  const T *a_data = fences.a.take(a, at_end), *b_data = fences.b.take(b, at_end);
  MatmulArgs args{dtype_of<T>::value, dtype_of<C>::value, m, n, k, a_data, form.a_transposed ? 1 : a_stride, form.a_transposed ? a_stride : 1,
                  b_data, form.b_transposed ? 1 : b_stride, form.b_transposed ? b_stride : 1, nullptr, c_stride, random() % 2 == 0};
  const std::vector<C> expected = product(args, a, b, before);
  for (const std::unique_ptr<Rank>& rank : ranks) {
    C* c = fences.c.take(before, at_end);
    args.c = c;
    matmul_packed(*rank, args);
    BOOST_TEST(same_bits(c, expected), rank->options().instruction_set << " " << form.name << " m " << m << " n " << n << " k " << k << " gap " << gap
                                                                       << " sizes " << sizeof(T) << ", " << sizeof(C));
  }
}

/// Every number of rows with every number of columns, in all forms with some of them; depths at random.
template <class T, class C>
void check_products(uint64_t seed) {
  std::mt19937_64 random(seed);
  Fences<T, C> fences;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const RankOptions& options : poisoned_ranks()) ranks.push_back(std::make_unique<Rank>(options));
  for (int64_t m = 1; m <= 30; ++m)
    for (int64_t n = 1; n <= 60; ++n) {
      const Form& form = forms[below(random, 4)];
      check_product(random, fences, ranks, m, n, form);
      if (m * n % 5 == 0)
        for (const Form& each : forms) check_product(random, fences, ranks, m, n, each);
    }
}

/// Packing into memory that holds no more than it says, and tiles that read from there.
template <class T>
void check_packed_parts(uint64_t seed) {
  using A = Accumulator<T>;
  std::mt19937_64 random(seed);
  Fenced<T> a_memory(4096), b_memory(4096);
  Fenced<A> rows_memory(packed_rows_size(30, 16)), panels_memory(40 * 128), c_memory(30 * 64);
  for (const RankOptions& options : poisoned_ranks()) {
    const Rank rank(options);
    const MatmulTiles tiles = matmul_tiles(rank, dtype_of<T>::value);
    const MatmulPacking packing = matmul_packing(rank, dtype_of<T>::value);
    for (int trial = 0; trial < 1000; ++trial) {
      const int64_t m = 1 + below(random, 30), n = 1 + below(random, 60), k = 1 + below(random, 40), panels = chunks_of(n, tiles.panel_columns);
      const Form& form = forms[below(random, 4)];
      const std::vector<T> a = whole_numbers<T>(random, form.a_transposed ? k : m, form.a_transposed ? m : k, form.a_transposed ? m : k);
      const std::vector<T> b = whole_numbers<T>(random, form.b_transposed ? n : k, form.b_transposed ? k : n, form.b_transposed ? k : n);
      const std::vector<A> before = whole_numbers<A>(random, m, n, n);
      const MatmulArgs args{dtype_of<A>::value, dtype_of<A>::value, m, n, k, nullptr, form.a_transposed ? 1 : k, form.a_transposed ? m : 1,
                            nullptr, form.b_transposed ? 1 : n, form.b_transposed ? k : 1, nullptr, n, random() % 2 == 0};
      A* const panel = panels_memory.take(panels * k * tiles.panel_columns);
      packing.pack_b(b_memory.take(b), args.b_row, args.b_col, k, n, panel);
      // A tile's rows lie depth * tile_rows apart, and 16 more that whole vectors may write.
      const MatmulRows rows = packing.pack_a(a_memory.take(a), args.a_row, args.a_col, m, m, k,
                                             rows_memory.take(chunks_of(m, tiles.tile_rows) * (k * tiles.tile_rows + 16)));
      A* const c = c_memory.take(before);
      for (int64_t j = 0; j < n; j += tiles.panel_columns)
        tiles.multiply(rows, panel + j * k, nullptr, k, m, std::min(tiles.panel_columns, n - j), c + j, n, args.accumulate);
      const std::vector<A> expected = product(args, std::vector<A>(a.begin(), a.end()), std::vector<A>(b.begin(), b.end()), before);
      BOOST_TEST(same_bits(c, expected), options.instruction_set << " " << form.name << " m " << m << " n " << n << " k " << k << " size " << sizeof(T));
    }
  }
}

/// How a child that does this ends: 0, or the signal that killed it.
int signal_of(const std::function<void()>& work) {
  const pid_t child = ::fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    for (const int each : {SIGSEGV, SIGBUS}) ::signal(each, SIG_DFL);
    work();
    ::_exit(0);
  }
  int status = 0;
  BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/// Attention's operands in memory that ends with the last row's values; between rows is NaN.
template <class T>
class FencedAttention {
  using A = Accumulator<T>;

 public:
  FencedAttention(const AttentionCase& c, int64_t gap)
      : case_(c), query_stride_(c.query_width() + gap), key_stride_(c.key_width() + gap), runs_(c.documents.runs()), lse_(c.tokens() * c.heads), delta_(lse_),
        q_(rows(c.q, c.query_width(), query_stride_)), k_(rows(c.k, c.key_width(), key_stride_)), v_(rows(c.v, c.key_width(), key_stride_)),
        dout_(rows(c.dout, c.query_width(), query_stride_)), queries_(static_cast<int64_t>(q_.size())), keys_(static_cast<int64_t>(k_.size())) {}

  void run(Rank& rank, bool overwrite) {
    Fenced<T> q(queries_), k(keys_), v(keys_), dout(queries_), out(queries_);
    Fenced<A> lse(lse_), delta(delta_), dq(queries_), dk(keys_), dv(keys_);
    const int64_t tokens = case_.tokens();
    // Gaps of outputs have numbers that are not written again.
    T* const out_rows = out.take(std::vector<T>(static_cast<size_t>(queries_), from_double<T>(7)));
    A *const lse_rows = lse.take(lse_), *const delta_rows = delta.take(delta_);
    dispatch(rank, AttentionForwardArgs{dtype_of<T>::value, case_.heads, case_.kv_heads, case_.head_dim, tokens, tokens, runs_, runs_, case_.window,
                                        case_.scale, q.take(q_), query_stride_, k.take(k_), key_stride_, v.take(v_), key_stride_, out_rows, query_stride_,
                                        lse_rows});
    const std::vector<double> result = values(out_rows, case_.query_width(), query_stride_);
    const std::vector<double> deltas = test::delta<T>(rank, case_, result);
    std::transform(deltas.begin(), deltas.end(), delta_rows, [](double x) { return static_cast<A>(x); });
    A* const dq_rows = dq.take(std::vector<A>(static_cast<size_t>(queries_), A{7}));
    A* const dk_rows = dk.take(std::vector<A>(static_cast<size_t>(keys_), A{7}));
    A* const dv_rows = dv.take(std::vector<A>(static_cast<size_t>(keys_), A{7}));
    AttentionBackwardArgs args{dtype_of<T>::value, case_.heads, case_.kv_heads, case_.head_dim, tokens, tokens, runs_, runs_, case_.window, case_.scale,
                               q.take(q_), query_stride_, k.take(k_), key_stride_, v.take(v_), key_stride_, dout.take(dout_), query_stride_, lse_rows,
                               delta_rows, dq_rows, query_stride_, dk_rows, key_stride_, dv_rows, key_stride_};
    args.overwrite = overwrite;
    dispatch(rank, args);
    // Elsewhere, in rows that lie otherwise, the same.
    const AttentionForward forward_elsewhere = forward<T>(rank, case_);
    const AttentionBackward elsewhere =
        backward<T>(rank, case_, case_.documents, case_.documents, forward_elsewhere.lse, deltas, overwrite ? 0 : 7, overwrite);
    BOOST_TEST(same(result, forward_elsewhere.out));
    BOOST_TEST(same(doubles(std::vector<A>(lse_rows, lse_rows + lse_)), forward_elsewhere.lse));
    BOOST_TEST(same(values(dq_rows, case_.query_width(), query_stride_), elsewhere.dq));
    BOOST_TEST(same(values(dk_rows, case_.key_width(), key_stride_), elsewhere.dk));
    BOOST_TEST(same(values(dv_rows, case_.key_width(), key_stride_), elsewhere.dv));
  }

 private:
  std::vector<T> rows(const std::vector<double>& from, int64_t width, int64_t stride) const {
    std::vector<T> result(static_cast<size_t>(extent(case_.tokens(), width, stride)), from_double<T>(std::numeric_limits<double>::quiet_NaN()));
    for (int64_t i = 0; i < case_.tokens(); ++i)
      for (int64_t j = 0; j < width; ++j) result[static_cast<size_t>(i * stride + j)] = from_double<T>(from[static_cast<size_t>(i * width + j)]);
    return result;
  }
  /// The rows without their gaps, which must still be 7.
  template <class V>
  std::vector<double> values(const V* from, int64_t width, int64_t stride) const {
    std::vector<double> result;
    bool untouched = true;
    for (int64_t i = 0; i < extent(case_.tokens(), width, stride); ++i) {
      if (i % stride < width) result.push_back(to_double(from[i]));
      else untouched = untouched && to_double(from[i]) == 7;
    }
    BOOST_TEST(untouched);
    return result;
  }
  static bool same(const std::vector<double>& a, const std::vector<double>& b) {
    const bool finite = std::all_of(a.begin(), a.end(), [](double x) { return std::isfinite(x); });
    return finite && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
  }

  const AttentionCase& case_;
  int64_t query_stride_, key_stride_;
  std::vector<DocumentRun> runs_;
  int64_t lse_, delta_;
  std::vector<T> q_, k_, v_, dout_;
  int64_t queries_, keys_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(memory_bounds)

BOOST_AUTO_TEST_CASE(products_touch_their_matrices_alone) {
  check_products<float, float>(1);
  check_products<double, double>(2);
  check_products<bf16, bf16>(3);
  check_products<bf16, float>(4);
}

BOOST_AUTO_TEST_CASE(packing_and_tiles_touch_what_they_say) {
  check_packed_parts<float>(5);
  check_packed_parts<double>(6);
  check_packed_parts<bf16>(7);
}

BOOST_AUTO_TEST_CASE(attention_touches_its_rows_alone) {
  std::mt19937_64 random(8);
  const std::vector<int64_t> documents[] = {{1}, {7}, {5, 1, 13}, {65, 1, 31}, {131}, {64, 63, 3}};
  for (const RankOptions& options : poisoned_ranks()) {
    Rank rank(options);
    for (const int64_t head_dim : {8, 40, 64, 17})
      for (const std::vector<int64_t>& lengths : documents) {
        const int64_t kv_heads = 1 + below(random, 2), heads = kv_heads * (1 + below(random, 3)), gap = below(random, 2) * 3;
        const AttentionCase c = random_case(random, lengths, heads, kv_heads, head_dim, random() % 3 == 0 ? 9 : 0);
        BOOST_TEST_CONTEXT(options.instruction_set << ", " << lengths.size() << " documents from " << lengths.front() << ", " << head_dim << " a head") {
          FencedAttention<float>(c, gap).run(rank, random() % 2 == 0);
          FencedAttention<double>(c, gap).run(rank, random() % 2 == 0);
          FencedAttention<bf16>(c, gap).run(rank, random() % 2 == 0);
        }
      }
  }
}

// Negative control: a product of one row or column more than its matrices have, and attention of one token more, end at the fence.
BOOST_AUTO_TEST_CASE(the_fence_stops_who_goes_beyond) {
  std::mt19937_64 random(9);
  for (const RankOptions& options : poisoned_ranks()) {
    const auto multiply = [&](int64_t m, int64_t n, int64_t k, int64_t c_short) {
      Fenced<float> a(4096), b(4096), c(4096);
      Rank rank(options);
      const std::vector<float> values = whole_numbers<float>(random, 30, 30, 30);
      matmul_packed(rank, {DType::f32, DType::f32, m, n, k, a.take(std::span(values).first(13 * 21)), 21, 1, b.take(std::span(values).first(21 * 17)), 17, 1,
                           c.take(13 * 17 - c_short), 17, 1});
    };
    BOOST_TEST(signal_of([&] { multiply(13, 17, 21, 0); }) == 0);
    BOOST_TEST(signal_of([&] { multiply(14, 17, 21, 0); }) == SIGSEGV);
    BOOST_TEST(signal_of([&] { multiply(13, 18, 21, 0); }) == SIGSEGV);
    BOOST_TEST(signal_of([&] { multiply(13, 17, 22, 0); }) == SIGSEGV);
    BOOST_TEST(signal_of([&] { multiply(13, 17, 21, 1); }) == SIGSEGV);
    const auto attend = [&](int64_t keys) {
      Fenced<float> q(4096), k(4096), v(4096), out(4096), lse(4096);
      Rank rank(options);
      const std::vector<float> values = whole_numbers<float>(random, 33, 40, 40);
      const std::vector<DocumentRun> runs = Documents::from_lengths(std::vector<int64_t>{33}).runs();
      AttentionForwardArgs args{DType::f32, 1, 1, 40, 33, 33, runs, runs, 0, 0.5, q.take(values), 40, k.take(values), 40,
                                v.take(std::span(values).first(static_cast<size_t>(keys * 40))), 40, out.take(33 * 40), 40, lse.take(33)};
      dispatch(rank, args);
    };
    BOOST_TEST(signal_of([&] { attend(33); }) == 0);
    BOOST_TEST(signal_of([&] { attend(32); }) == SIGSEGV);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
