// CUDA's matrix product by multiply-adds, the reference on the device.
#include "cuda/matmul_kernels.h"

namespace quire::test {

BOOST_AUTO_TEST_SUITE(cuda_matmul_tiles)

BOOST_AUTO_TEST_CASE(products_are_within_the_rule) {
  check_random_products<float, float>("tiles", 1, 10, {4, 16, 64, 128}, {4, 16, 32, 64}, 100, {odd_spacing, aligned_spacing});
  check_random_products<bf16, bf16>("tiles", 2, 4, {4, 16, 64}, {4, 16, 32, 64}, 70, {odd_spacing, aligned_spacing});
  check_random_products<bf16, float>("tiles", 3, 4, {4, 16, 64}, {4, 16, 32, 64}, 70, {odd_spacing, aligned_spacing});
}

BOOST_AUTO_TEST_CASE(orders_of_threads_do_not_change_bits) {
  check_orders<float, float>("tiles", {{1, 1, 1}, {5, 3, 17}, {65, 4, 33}}, odd_spacing);
  check_orders<bf16, bf16>("tiles", {{3, 66, 20}}, odd_spacing);
}

BOOST_AUTO_TEST_CASE(a_row_depends_on_its_own_row_alone) {
  check_rows<float, float>("tiles", {{70, 30, 50}, {130, 5, 33}}, odd_spacing);
  check_rows<bf16, bf16>("tiles", {{70, 30, 50}}, odd_spacing);
}

BOOST_AUTO_TEST_CASE(no_steps_give_zeros_or_leave_sums) {
  check_no_steps<float, float>("tiles", odd_spacing);
  check_no_steps<bf16, bf16>("tiles", odd_spacing);
}

BOOST_AUTO_TEST_CASE(sums_are_rounded_to_bf16_as_everywhere) {
  check_rounding("tiles", false);
  check_rounding("tiles", true);
}

BOOST_AUTO_TEST_CASE(kernels_refuse_types_they_do_not_know) {
  MatmulArgs args{DType::f32, DType::bf16, 1, 1, 1};
  for (const Kernel<MatmulArgs>& kernel : cuda_kernels<MatmulArgs>()) BOOST_TEST(!kernel.can_run(args));
  for (const DType type : {DType::i32, DType::f64}) {
    args.type = args.c_type = type;
    for (const Kernel<MatmulArgs>& kernel : cuda_kernels<MatmulArgs>()) BOOST_TEST(!kernel.can_run(args));
  }
  const auto rank = device_rank();
  check_error<UnsupportedError>([&] { dispatch(*rank, args); }, {"matmul", "cuda"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
