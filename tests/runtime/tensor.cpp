// Tensors: views, strides, copies, and the null device.
#include "runtime/tensor.h"

#include <cstring>
#include <numeric>

#include "check.h"
#include "device.h"
#include "runtime/accelerator.h"

using namespace quire;
using namespace quire::test;

namespace {

Tensor counting(Rank& rank, const Shape& shape) {
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::from<float>(rank, shape, values);
}

using Floats = std::vector<float>;

}  // namespace

BOOST_AUTO_TEST_SUITE(tensor)

BOOST_AUTO_TEST_CASE(shapes) {
  const Shape shape{4, 128, 768};
  BOOST_TEST(shape.dims() == 3);
  BOOST_TEST(shape.back() == 768);
  BOOST_TEST(shape.elements() == 4 * 128 * 768);
  BOOST_TEST(to_string(shape) == "(4,128,768)");
  BOOST_TEST(Shape().elements() == 1);
  BOOST_TEST((Shape{2, 3} == Shape{2, 3}));
  BOOST_TEST(!(Shape{2, 3} == Shape{3, 2}));
  BOOST_TEST(!(Shape{2, 3} == Shape{2, 3, 1}));
  check_error<ShapeError>([] { Shape{1, 1, 1, 1, 1, 1, 1}; }, {"[shape]", "more than 6"});
  check_error<ShapeError>([] { Shape{2, -1}; }, {"[shape]", "-1"});
  check_error<ShapeError>([] { Shape{int64_t{1} << 40, int64_t{1} << 40}.elements(); }, {"[shape]", "63 bits"});
}

BOOST_AUTO_TEST_CASE(values_there_and_back_in_every_dtype) {
  Rank rank(on_device());
  const auto round_trip = [&]<class T>(T one, T two) {
    const std::vector<T> values = {one, two, one, two, two, one};
    const Tensor tensor = Tensor::from<T>(rank, {2, 3}, values);
    BOOST_TEST((tensor.dtype() == dtype_of<T>::value));
    BOOST_TEST(tensor.bytes() == static_cast<int64_t>(6 * sizeof(T)));
    const std::vector<T> back = tensor.template to_vector<T>();
    BOOST_TEST(std::equal(values.begin(), values.end(), back.begin(), [](const T& a, const T& b) { return std::memcmp(&a, &b, sizeof(T)) == 0; }));
  };
  round_trip(1.5, -2.0);
  round_trip(1.5f, -2.0f);
  round_trip(bf16(1.5f), bf16(-2.0f));
  round_trip(int32_t{1}, int32_t{-2});
  round_trip(int64_t{1}, int64_t{-2});
  check_error<ShapeError>([&] { Tensor::from<float>(rank, {2, 2}, Floats{1, 2, 3}); }, {"[tensor]", "3 values", "(2,2)"});
  const Tensor floats = counting(rank, {2});
  check_error<DTypeError>([&] { floats.data<double>(); }, {"[tensor]", "(2) f32", "f64"});
  check_error<DTypeError>([&] { floats.to_vector<int32_t>(); }, {"[tensor]", "(2) f32", "i32"});
  BOOST_TEST(describe(floats) == "(2) f32");
  BOOST_TEST(describe(Tensor()) == "undefined");
}

BOOST_AUTO_TEST_CASE(views_share_storage) {
  Rank rank(on_device());
  const Tensor whole = counting(rank, {4, 6});
  const Tensor rows = whole.slice(0, 1, 3), columns = whole.slice(1, 2, 4), again = rows.slice(1, 5, 6);
  BOOST_TEST(rows.shares_storage(whole));
  BOOST_TEST(rows.is_contiguous());
  BOOST_TEST(!columns.is_contiguous());
  BOOST_TEST((rows.to_vector<float>() == Floats{6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}));
  BOOST_TEST((columns.to_vector<float>() == Floats{2, 3, 8, 9, 14, 15, 20, 21}));
  BOOST_TEST((again.to_vector<float>() == Floats{11, 17}));
  write<float>(rank, again.slice(0, 0, 1), Floats{-1});
  BOOST_TEST(whole.to_vector<float>()[11] == -1);
  BOOST_TEST(whole.storage_users() == 4);
  const Tensor reshaped = rows.reshape({3, 2, 2});
  BOOST_TEST(reshaped.shares_storage(whole));
  BOOST_TEST(reshaped.slice(0, 2, 3).drop_first().to_vector<float>()[3] == 17);
  BOOST_TEST(whole.reshape({24}).slice(0, 23, 24).reshape({}).to_vector<float>()[0] == 23);
}

BOOST_AUTO_TEST_CASE(empty_tensors_and_slices) {
  Rank rank(on_device());
  const Tensor none = Tensor::zeros(rank, {0, 5}, DType::f32);
  BOOST_TEST(none.to_vector<float>().empty());
  BOOST_TEST(none.is_contiguous());
  const Tensor nothing = counting(rank, {3, 5}).slice(1, 2, 2);
  BOOST_TEST(nothing.elements() == 0);
  BOOST_TEST(nothing.reshape({0}).elements() == 0);
  copy(rank, nothing, Tensor::empty(rank, {3, 0}, DType::f32));
}

BOOST_AUTO_TEST_CASE(wrong_views_are_refused) {
  Rank rank(on_device());
  const Tensor t = counting(rank, {4, 6});
  check_error<ShapeError>([&] { t.reshape({5, 5}); }, {"[reshape]", "(4,6)", "(5,5)", "24 and 25"});
  check_error<ShapeError>([&] { t.slice(1, 0, 2).reshape({8}); }, {"[reshape]", "(4,2) f32", "not contiguous", "contiguous()"});
  check_error<ShapeError>([&] { t.slice(0, 2, 5); }, {"[slice]", "[2, 5)", "dimension 0", "(4,6) f32"});
  check_error<ShapeError>([&] { t.slice(0, 3, 2); }, {"[slice]"});
  check_error<ShapeError>([&] { t.slice(0, -1, 2); }, {"[slice]"});
  check_error<ShapeError>([&] { t.slice(2, 0, 1); }, {"[slice]", "dimension 2"});
  check_error<ShapeError>([&] { t.drop_first(); }, {"[drop_first]", "(4,6) f32"});
  check_error<ShapeError>([&] { copy(rank, t, Tensor::empty(rank, {6, 4}, DType::f32)); }, {"[copy]", "(4,6) f32", "(6,4) f32"});
  check_error<ShapeError>([&] { copy(rank, t, Tensor::empty(rank, {4, 6}, DType::i32)); }, {"[copy]", "(4,6) i32"});
  check_error<ShapeError>([&] { fill_zero(rank, t.slice(1, 0, 2)); }, {"[fill_zero]", "not contiguous"});
}

BOOST_AUTO_TEST_CASE(strided_copies_equal_a_literal_loop) {
  std::mt19937_64 random(1);
  for (const int threads : {1, 3}) {
    Rank rank(on_device({.threads = threads, .poison = true}));
    for (int round = 0; round < 100; ++round) {
      const auto size = [&](int most) { return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
      Shape from_shape, to_shape;
      std::vector<std::pair<int64_t, int64_t>> from_range, to_range;
      const int dims = 1 + static_cast<int>(random() % 4);
      for (int d = 0; d < dims; ++d) {
        const int64_t length = size(d + 1 == dims && round == 0 ? 100'000 : 7);
        const int64_t before1 = size(3) - 1, after1 = size(3) - 1, before2 = size(3) - 1, after2 = size(3) - 1;
        from_shape.push_back(before1 + length + after1);
        to_shape.push_back(before2 + length + after2);
        from_range.emplace_back(before1, before1 + length);
        to_range.emplace_back(before2, before2 + length);
      }
      const Tensor from_whole = counting(rank, from_shape), to_whole = Tensor::zeros(rank, to_shape, DType::f32);
      Tensor from = from_whole, to = to_whole;
      for (int d = 0; d < dims; ++d) {
        from = from.slice(d, from_range[static_cast<size_t>(d)].first, from_range[static_cast<size_t>(d)].second);
        to = to.slice(d, to_range[static_cast<size_t>(d)].first, to_range[static_cast<size_t>(d)].second);
      }
      copy(rank, from, to);
      BOOST_REQUIRE(to.to_vector<float>() == from.to_vector<float>());
      // Nothing beside the view was touched: the sums of the whole and of the view agree.
      double whole_sum = 0, view_sum = 0;
      for (const float v : to_whole.to_vector<float>()) whole_sum += v;
      for (const float v : to.to_vector<float>()) view_sum += v;
      BOOST_REQUIRE_EQUAL(whole_sum, view_sum);
      const Tensor packed = contiguous(rank, from);
      BOOST_REQUIRE(packed.is_contiguous());
      BOOST_REQUIRE(packed.to_vector<float>() == from.to_vector<float>());
      BOOST_REQUIRE_EQUAL(packed.shares_storage(from_whole), from.is_contiguous());
    }
  }
}

BOOST_AUTO_TEST_CASE(memory_goes_back_with_the_last_view) {
  Rank rank(on_device());
  const int64_t before = rank.allocator().in_use();
  {
    Tensor view;
    {
      const Tensor whole = Tensor::zeros(rank, {1000, 1000}, DType::f32, Category::data);
      view = whole.slice(0, 3, 4);
    }
    BOOST_TEST(rank.allocator().counters(Category::data).current >= 4'000'000);
    for (const float v : view.to_vector<float>()) BOOST_REQUIRE_EQUAL(v, 0);
  }
  BOOST_TEST(rank.allocator().in_use() == before);
}

BOOST_AUTO_TEST_CASE(tensors_may_outlive_their_rank) {
  Tensor survivor;
  {
    Rank rank(on_device());
    survivor = counting(rank, {3});
  }
  BOOST_TEST((survivor.to_vector<float>() == Floats{0, 1, 2}));
}

BOOST_AUTO_TEST_CASE(the_null_device_plans_shapes_and_memory_and_touches_nothing) {
  Rank rank(RankOptions{.device = {DeviceKind::null, 0}, .poison = true});
  BOOST_TEST(!rank.computes());
  const Tensor huge = Tensor::zeros(rank, {1 << 20, 1 << 20}, DType::f32, Category::parameters);  // 4 TiB
  BOOST_TEST(rank.allocator().counters(Category::parameters).current == int64_t{1} << 42);
  const Tensor other = Tensor::empty(rank, {1 << 20, 1 << 20}, DType::f32);
  copy(rank, huge, other);
  copy(rank, huge.slice(1, 0, 5), other.slice(1, 1, 6));
  BOOST_TEST(contiguous(rank, huge.slice(1, 0, 5)).is_contiguous());
  check_error<StateError>([&] { huge.to_vector<float>(); }, {"[tensor]", "null device"});
  BOOST_TEST(to_string(rank.device()) == "null");
  if (cuda_availability().devices == 0)
    check_error<UnsupportedError>([] { Rank cuda(RankOptions{.device = {DeviceKind::cuda, 0}}); }, {"[device]", "cuda", "allowed: cpu"});
}

BOOST_AUTO_TEST_SUITE_END()
