// Exponentials and the logistic function on vectors; compiled once for each instruction set (include after hwy/highway.h).
#if defined(QUIRE_OPS_CPU_EXPONENTIAL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_OPS_CPU_EXPONENTIAL_INL_H
#undef QUIRE_OPS_CPU_EXPONENTIAL_INL_H
#else
#define QUIRE_OPS_CPU_EXPONENTIAL_INL_H
#endif

#ifndef QUIRE_UNROLL
#if defined(__clang__)
#define QUIRE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define QUIRE_UNROLL _Pragma("GCC unroll 16")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// x, but `low` where it is less; NaN stays NaN (scores that are not numbers must be seen).
template <class D, class V = hn::Vec<D>> HWY_INLINE V at_least(D d, hn::TFromD<D> low, V x) {
#if HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, low)), hn::Set(d, low), x);
#else
  return hn::Max(hn::Set(d, low), x);  // x86 gives the second operand where one is NaN
#endif
}

/// e^x to about 1 ulp for x up to 88 (f32) or 709 (f64), 0 where the result would be below the smallest normal number, NaN for NaN. x = (n + r) ln 2 with an
/// integer n: n and the bias of exponents are read from the low bits of a number so large that its last place is one; r enters a polynomial. Where
/// -x is so large that the biased exponent is 0, so is the power. r has the error that log2(e) rounded has, relative to x: nothing in absolute terms.
template <class V> HWY_INLINE V exponential(hn::ScalableTag<float> d, V x) {
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto log2_e = hn::Set(d, 1.44269504f), magic = hn::Set(d, 12582912.0f + 127);  // 1.5 * 2^23
  x = at_least(d, -88.0f, x);
  const auto shifted = hn::MulAdd(x, log2_e, magic);
  const auto r = hn::MulSub(x, log2_e, hn::Sub(shifted, magic));
  // 2^r = 1 + r q(r) by interpolation at Chebyshev's nodes in [-1/2, 1/2].
  auto p = hn::MulAdd(hn::Set(d, 1.5453163360e-04f), r, hn::Set(d, 1.3390863314e-03f));
  p = hn::MulAdd(p, r, hn::Set(d, 9.6180830151e-03f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.5503569543e-02f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.4022650719e-01f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.9314718246e-01f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted))));
}

template <class V> HWY_INLINE V exponential(hn::ScalableTag<double> d, V x) {
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto magic = hn::Set(d, 6755399441055744.0 + 1023);  // 1.5 * 2^52
  x = at_least(d, -709.0, x);
  const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896340736), magic);
  const auto n = hn::Sub(shifted, magic);
  auto r = hn::NegMulAdd(n, hn::Set(d, 6.93147180369123816490e-01), x);  // here the error would be seen: ln 2 in two parts (Cody and Waite)
  r = hn::NegMulAdd(n, hn::Set(d, 1.90821492927058770002e-10), r);
  constexpr double inverse_factorials[] = {1 / 6227020800.0, 1 / 479001600.0, 1 / 39916800.0, 1 / 3628800.0, 1 / 362880.0, 1 / 40320.0,
                                           1 / 5040.0,       1 / 720.0,       1 / 120.0,      1 / 24.0,      1 / 6.0,      1 / 2.0};
  auto p = hn::Set(d, inverse_factorials[0]);
  QUIRE_UNROLL
  for (int i = 1; i < 12; ++i) p = hn::MulAdd(p, r, hn::Set(d, inverse_factorials[i]));
  p = hn::MulAdd(p, hn::Mul(r, r), r);
  p = hn::Add(p, hn::Set(d, 1.0));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<52>(hn::BitCast(du, shifted))));
}

template <class V>
struct Logistic {
  V value;       ///< 1 / (1 + e^-x)
  V complement;  ///< 1 - value, without cancellation
};

/// Both from e^-|x|, which never overflows, and one division.
template <class D, class V = hn::Vec<D>> HWY_INLINE Logistic<V> logistic(D d, V x) {
  const auto one = hn::Set(d, hn::TFromD<D>(1));
  const auto small = exponential(d, hn::Neg(hn::Abs(x)));
  const auto larger = hn::Div(one, hn::Add(one, small)), smaller = hn::Mul(small, larger);
  const auto negative = hn::Lt(x, hn::Zero(d));
  return {hn::IfThenElse(negative, smaller, larger), hn::IfThenElse(negative, larger, smaller)};
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
