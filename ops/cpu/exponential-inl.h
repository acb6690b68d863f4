// Exponentials and the logistic function on vectors; compiled once for each instruction set (include after hwy/highway.h).
#if defined(QUIRE_OPS_CPU_EXPONENTIAL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_OPS_CPU_EXPONENTIAL_INL_H
#undef QUIRE_OPS_CPU_EXPONENTIAL_INL_H
#else
#define QUIRE_OPS_CPU_EXPONENTIAL_INL_H
#endif

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

/// e^x for x up to about 88 (f32) or 706 (f64), to one unit in the last place; NaN stays NaN (Highway's Exp makes it 0).
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V exponential(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

template <class V>
struct Logistic {
  V value;       ///< 1 / (1 + e^-x)
  V complement;  ///< 1 - value, without cancellation
};

/// Both from e^-|x|, which never overflows.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE Logistic<V> logistic(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const auto one = hn::Set(d, hn::TFromD<D>(1));
  const auto small = exponential(d, hn::Neg(hn::Abs(x)));
  const auto sum = hn::Add(one, small);
  const auto negative = hn::Lt(x, hn::Zero(d));
  return {hn::Div(hn::IfThenElse(negative, small, one), sum), hn::Div(hn::IfThenElse(negative, one, small), sum)};
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
