// Matrix products for the tests of their kernels: random operands with forbidden surroundings, the rule for their errors, rows that must keep their bits. On the
// CPU and, by copies, on devices.
#pragma once
#include <cstring>
#include <functional>

#include "check.h"
#include "ops/kernels.h"
#include "runtime/tensor.h"
#include "values.h"

namespace quire::test {

using Run = std::function<void(Rank&, const MatmulArgs&)>;

struct Form {
  const char* name;
  bool a_transposed, b_transposed;
};
inline constexpr Form forms[] = {{"nn", false, false}, {"nt", false, true}, {"tn", true, false}, {"tt", true, true}};

template <class T> T not_a_number() { return T(std::numeric_limits<float>::quiet_NaN()); }

/// Runs a kernel on operands that lie in host vectors. A device gets copies of them, and c is brought back.
template <class T, class C>
void run_on(Rank& rank, const Run& kernel, MatmulArgs args, const std::vector<T>& a, const std::vector<T>& b, std::vector<C>& c) {
  if (rank.accelerator() == nullptr) return kernel(rank, args);
  const auto copy_of = [&](const auto& values) {
    using E = typename std::decay_t<decltype(values)>::value_type;
    return Tensor::from<E>(rank, {static_cast<int64_t>(values.size())}, values);
  };
  const auto moved = [](const void* in, const void* host, const Tensor& device) {
    return static_cast<char*>(device.raw()) + (static_cast<const char*>(in) - static_cast<const char*>(host));
  };
  const Tensor on_a = copy_of(a), on_b = copy_of(b), on_c = copy_of(c);
  args.a = moved(args.a, a.data(), on_a);
  args.b = moved(args.b, b.data(), on_b);
  args.c = moved(args.c, c.data(), on_c);
  kernel(rank, args);
  c = on_c.template to_vector<C>();
}

/// How operands lie: elements before C and behind all, and lines of a multiple of `multiple` elements with `gap` more.
struct Spacing {
  int64_t margin = 37, gap = 5, multiple = 1;
};
inline constexpr Spacing odd_spacing{}, aligned_spacing{64, 16, 16};

/// Random operands in memory whose gaps and margins are NaN, and C inside a border that must stay as it is.
template <class T, class C>
struct Operands {
  int64_t m, n, k;
  Form form;
  Spacing spacing;
  std::vector<T> a, b;
  std::vector<C> c, c_before;
  MatmulArgs args;

  Operands(std::mt19937_64& random, int64_t m_, int64_t n_, int64_t k_, Form form_, bool accumulate, Spacing spacing_ = {})
      : m(m_), n(n_), k(k_), form(form_), spacing(spacing_) {
    std::normal_distribution<float> normal;
    const auto fill = [&](auto& x, int64_t rows, int64_t columns, bool at_end) {
      using E = typename std::decay_t<decltype(x)>::value_type;
      x.assign(static_cast<size_t>(rows * stride(columns) + (at_end ? 0 : spacing.margin)), not_a_number<E>());
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) x[static_cast<size_t>(i * stride(columns) + j)] = E(normal(random));
    };
    fill(a, form.a_transposed ? k : m, form.a_transposed ? m : k, true);
    fill(b, form.b_transposed ? n : k, form.b_transposed ? k : n, true);
    fill(c, m, n, false);
    c.insert(c.begin(), static_cast<size_t>(spacing.margin), not_a_number<C>());
    c_before = c;
    const int64_t a_row = stride(form.a_transposed ? m : k), b_row = stride(form.b_transposed ? k : n);
    args = {dtype_of<T>::value, dtype_of<C>::value, m, n, k, a.data(), form.a_transposed ? 1 : a_row, form.a_transposed ? a_row : 1,
            b.data(), form.b_transposed ? 1 : b_row, form.b_transposed ? b_row : 1, c.data() + spacing.margin, stride(n), accumulate};
  }
  Operands(const Operands&) = delete;

  int64_t stride(int64_t columns) const { return (columns + spacing.multiple - 1) / spacing.multiple * spacing.multiple + spacing.gap; }
  double a_at(int64_t i, int64_t p) const { return to_double(a[static_cast<size_t>(i * args.a_row + p * args.a_col)]); }
  double b_at(int64_t p, int64_t j) const { return to_double(b[static_cast<size_t>(p * args.b_row + j * args.b_col)]); }
  size_t c_index(int64_t i, int64_t j) const { return static_cast<size_t>(spacing.margin + i * stride(n) + j); }

  void run(const Run& kernel, Rank& rank) {
    c = c_before;
    args.c = c.data() + spacing.margin;
    run_on(rank, kernel, args, a, b, c);
  }

  /// The result's rows [first, first + count) as bytes.
  std::vector<C> rows(int64_t first, int64_t count) const {
    std::vector<C> result;
    for (int64_t i = first; i < first + count; ++i)
      for (int64_t j = 0; j < n; ++j) result.push_back(c[c_index(i, j)]);
    return result;
  }

  bool border_untouched() const {
    std::vector<C> now = c, before = c_before;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) now[c_index(i, j)] = before[c_index(i, j)] = C(0.0f);
    return now.empty() || std::memcmp(now.data(), before.data(), now.size() * sizeof(C)) == 0;
  }

  /// The rule of DESIGN section 6: at most twice the error of the plain computation, or 4 units in the last place of the largest magnitude.
  bool accurate() const {
    using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const double last_place = std::is_same_v<C, double> ? 0x1p-52 : std::is_same_v<C, float> ? 0x1p-23 : 0x1p-7;
    long double error = 0, plain_error = 0, largest = 0;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const double before = args.accumulate ? to_double(c_before[c_index(i, j)]) : 0;
        long double exact = 0;
        A plain = 0;
        for (int64_t p = 0; p < k; ++p) {
          exact += static_cast<long double>(a_at(i, p)) * b_at(p, j);
          plain += static_cast<A>(a_at(i, p)) * static_cast<A>(b_at(p, j));
        }
        exact += before;
        const double got = to_double(c[c_index(i, j)]);
        if (!std::isfinite(got)) return false;
        error = std::max(error, std::abs(got - exact));
        plain_error = std::max(plain_error, std::abs(to_double(C(static_cast<A>(before) + plain)) - exact));
        largest = std::max(largest, std::abs(exact));
      }
    return error <= std::max(2 * plain_error, 4 * last_place * largest);
  }
};

/// A size that is 0, 1, near the edges of tiles, panels and blocks, or anything small.
inline int64_t random_size(std::mt19937_64& random, std::initializer_list<int64_t> edges, int64_t most) {
  switch (random() % 8) {
    case 0: return random() % 3 == 0 ? 0 : 1;
    case 1: case 2: return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most));
    default: return std::max<int64_t>(1, *(edges.begin() + static_cast<int64_t>(random() % edges.size())) + static_cast<int64_t>(random() % 3) - 1);
  }
}

/// Whether rows of a product have the bits they have when computed alone or among fewer rows, at another place.
template <class T, class C>
bool rows_keep_their_bits(const Run& kernel, Rank& rank, std::mt19937_64& random, int64_t m, int64_t n, int64_t k, Form form, bool accumulate,
                          Spacing spacing = {}) {
  Operands<T, C> all(random, m, n, k, form, accumulate, spacing);
  all.run(kernel, rank);
  for (int trial = 0; trial < 4; ++trial) {
    const int64_t count = trial == 0 ? 1 : 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(m));
    const int64_t first = static_cast<int64_t>(random() % static_cast<uint64_t>(m - count + 1));
    std::vector<C> c;
    for (int64_t i = first; i < first + count; ++i)
      for (int64_t j = 0; j < n; ++j) c.push_back(all.c_before[all.c_index(i, j)]);
    MatmulArgs some = all.args;
    some.m = count;
    some.a = all.a.data() + first * all.args.a_row;
    some.c = c.data();
    some.c_row = n;
    run_on(rank, kernel, some, all.a, all.b, c);
    if (!same_bits(c, all.rows(first, count))) return false;
  }
  return true;
}

}  // namespace quire::test
