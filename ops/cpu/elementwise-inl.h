// Loads, stores and loops of the elementwise kernels; compiled once for each instruction set (include after hwy/highway.h).
// A vector holds values of the accumulator's type, whatever the storage type. What does not fill a vector goes through a
// buffer, so that the last elements meet the same instructions, and get the same bits, as all others.
#if defined(QUIRE_OPS_CPU_ELEMENTWISE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_OPS_CPU_ELEMENTWISE_INL_H
#undef QUIRE_OPS_CPU_ELEMENTWISE_INL_H
#else
#define QUIRE_OPS_CPU_ELEMENTWISE_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// Vectors in which values stored as T are computed.
template <class T> using Tag = hn::ScalableTag<AccumulatorType<T>>;

template <class D> HWY_INLINE int64_t lanes_of(D d) { return static_cast<int64_t>(hn::Lanes(d)); }

template <class D> HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p) { return hn::LoadU(d, p); }
template <class D> HWY_INLINE hn::Vec<D> load(D d, const bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)))));
}

template <class D> HWY_INLINE void store(D d, hn::Vec<D> v, hn::TFromD<D>* p) { hn::StoreU(v, d, p); }
/// Rounds to nearest even as runtime/dtype.h does.
template <class D> HWY_INLINE void store([[maybe_unused]] D d, hn::Vec<D> v, bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const hn::Rebind<int32_t, D> di32;
  const auto u = hn::BitCast(d32, v);
  const auto upper = hn::ShiftRight<16>(u);
  const auto bias = hn::Add(hn::And(upper, hn::Set(d32, 1)), hn::Set(d32, 0x7fff));
  const auto nearest_even = hn::ShiftRight<16>(hn::Add(u, bias));
  const auto quiet = hn::Or(upper, hn::Set(d32, 0x40));
  const auto bits = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, nearest_even);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di32, bits)), d16, reinterpret_cast<uint16_t*>(p));
}

/// The first n (at most a vector's lanes) elements; the other lanes are `filler`.
template <class D, class T> HWY_INLINE hn::Vec<D> load_first(D d, const T* p, int64_t n, T filler = T{}) {
  if (n == lanes_of(d)) return load(d, p);
  T buffer[hn::MaxLanes(D())];
  std::fill(buffer, buffer + hn::MaxLanes(D()), filler);
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(d, buffer);
}
template <class D, class T> HWY_INLINE void store_first(D d, hn::Vec<D> v, T* p, int64_t n) {
  if (n == lanes_of(d)) return store(d, v, p);
  T buffer[hn::MaxLanes(D())];
  store(d, v, buffer);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

/// Calls f(i, n) for consecutive vectors [i, i + n) of [0, count); n is less than a vector's lanes only for the last one.
template <class D, class F> HWY_INLINE void for_each_vector(D d, int64_t count, F&& f) {
  const int64_t lanes = lanes_of(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) f(i, lanes);
  if (i < count) f(i, count - i);
}

/// Sum over i in [0, count) of term(i, n), vectors whose lanes from n on are zero: four partial sums a lane, in an order that depends
/// on count alone.
template <class D, class F> HWY_INLINE hn::TFromD<D> sum_of(D d, int64_t count, F&& term) {
  const int64_t lanes = lanes_of(d);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    s0 = hn::Add(s0, term(i, lanes));
    s1 = hn::Add(s1, term(i + lanes, lanes));
    s2 = hn::Add(s2, term(i + 2 * lanes, lanes));
    s3 = hn::Add(s3, term(i + 3 * lanes, lanes));
  }
  for (; i + lanes <= count; i += lanes) s0 = hn::Add(s0, term(i, lanes));
  if (i < count) s1 = hn::Add(s1, term(i, count - i));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
