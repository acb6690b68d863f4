// CUDA's matrix product of bf16 by mma.sync.
#include "cuda/matmul_kernels.h"

namespace quire::test {

BOOST_AUTO_TEST_SUITE(cuda_matmul_mma)

BOOST_AUTO_TEST_CASE(products_are_within_the_rule) {
  check_random_products<bf16, bf16>("mma", 41, 6, {8, 16, 64, 128}, {8, 16, 32, 64, 128}, 140, {odd_spacing, aligned_spacing});
  check_random_products<bf16, float>("mma", 42, 5, {8, 16, 64, 128}, {8, 16, 32, 64, 128}, 140, {odd_spacing, aligned_spacing});
}

// Several tiles in both directions, and more rounds than stages.
BOOST_AUTO_TEST_CASE(larger_products_are_within_the_rule) {
  const emulation::Fresh fresh;
  const auto rank = device_rank();
  std::mt19937_64 random(43);
  check_product<bf16, bf16>(*rank, "mma", random, {1200, 129, 8}, forms[1], false, aligned_spacing);  // more rows of tiles than are walked together
  for (const Form& form : forms) check_product<bf16, float>(*rank, "mma", random, {130, 136, 333}, form, true, aligned_spacing);
}

BOOST_AUTO_TEST_CASE(orders_of_threads_do_not_change_bits) {
  check_orders<bf16, float>("mma", {{5, 3, 17}}, odd_spacing);
  check_orders<bf16, bf16>("mma", {{17, 20, 150}}, aligned_spacing);
}

BOOST_AUTO_TEST_CASE(a_row_depends_on_its_own_row_alone) {
  check_rows<bf16, bf16>("mma", {{70, 30, 50}}, odd_spacing);
  check_rows<bf16, float>("mma", {{130, 24, 72}}, aligned_spacing);
}

// Operands that lie on multiples of 16 bytes and others take other ways to shared memory, to the same bits.
BOOST_AUTO_TEST_CASE(alignment_does_not_change_bits) {
  const emulation::Fresh fresh;
  const auto rank = device_rank();
  for (const Form& form : forms) {
    std::mt19937_64 random(44), again(44);
    Operands<bf16, float> aligned(random, 50, 40, 75, form, false, aligned_spacing), odd(again, 50, 40, 75, form, false, odd_spacing);
    aligned.run(cuda_kernel("mma"), *rank);
    odd.run(cuda_kernel("mma"), *rank);
    BOOST_TEST(same_bits(aligned.rows(0, 50), odd.rows(0, 50)), form.name);
  }
}

BOOST_AUTO_TEST_CASE(no_steps_give_zeros_or_leave_sums) {
  check_no_steps<bf16, bf16>("mma", odd_spacing);
  check_no_steps<bf16, float>("mma", aligned_spacing);
}

BOOST_AUTO_TEST_CASE(sums_are_rounded_to_bf16_as_everywhere) {
  check_rounding("mma", false);
  check_rounding("mma", true);
}

BOOST_AUTO_TEST_CASE(it_refuses_f32) {
  for (const Kernel<MatmulArgs>& kernel : cuda_kernels<MatmulArgs>())
    if (std::string_view(kernel.name) == "mma") BOOST_TEST(!kernel.can_run({DType::f32, DType::f32, 1, 1, 1}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
