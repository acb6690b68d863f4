// CUDA's matrix product of bf16 by wgmma and TMA, for compute capability 9.0.
#include <driver_types.h>

#include "cuda/matmul_kernels.h"

namespace quire::test {

namespace {

bool can_run(const MatmulArgs& args) {
  for (const Kernel<MatmulArgs>& kernel : cuda_kernels<MatmulArgs>())
    if (std::string_view(kernel.name) == "wgmma") return kernel.can_run(args);
  return false;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_matmul_wgmma)

BOOST_AUTO_TEST_CASE(products_are_within_the_rule) {
  check_random_products<bf16, bf16>("wgmma", 51, 6, {8, 16, 64, 128}, {8, 16, 64, 128}, 140, {aligned_spacing});
  check_random_products<bf16, float>("wgmma", 52, 6, {8, 16, 64, 128}, {8, 16, 64, 128}, 140, {aligned_spacing});
}

// Several tiles of both widths, more rounds than stages, and more tiles than multiprocessors, so that blocks go from one tile to the next.
BOOST_AUTO_TEST_CASE(larger_products_are_within_the_rule) {
  const emulation::Fresh fresh;
  emulation::Settings settings = emulation::settings();
  settings.multiprocessors = 3;
  emulation::set(settings);
  const auto rank = device_rank();
  std::mt19937_64 random(53);
  check_product<bf16, bf16>(*rank, "wgmma", random, {1200, 20, 40}, forms[1], false, aligned_spacing);
  for (const Form& form : forms) check_product<bf16, float>(*rank, "wgmma", random, {260, 264, 130}, form, true, aligned_spacing);
  for (const Form& form : forms) check_product<bf16, bf16>(*rank, "wgmma", random, {9, 33, 650}, form, false, aligned_spacing);
}

BOOST_AUTO_TEST_CASE(orders_of_threads_do_not_change_bits) {
  check_orders<bf16, float>("wgmma", {{5, 3, 17}}, aligned_spacing);
  check_orders<bf16, bf16>("wgmma", {{66, 20, 150}}, aligned_spacing, std::span(forms).subspan(1, 2));
}

BOOST_AUTO_TEST_CASE(a_row_depends_on_its_own_row_alone) {
  check_rows<bf16, bf16>("wgmma", {{70, 30, 50}}, aligned_spacing, std::span(forms).first(2));  // a row of tn begins between multiples of 16 bytes
  check_rows<bf16, float>("wgmma", {{130, 24, 72}}, aligned_spacing, std::span(forms).first(2));
}

BOOST_AUTO_TEST_CASE(no_steps_give_zeros_or_leave_sums) {
  check_no_steps<bf16, bf16>("wgmma", aligned_spacing);
  check_no_steps<bf16, float>("wgmma", aligned_spacing);
}

BOOST_AUTO_TEST_CASE(sums_are_rounded_to_bf16_as_everywhere) { check_rounding("wgmma", true); }

BOOST_AUTO_TEST_CASE(it_refuses_f32_and_what_tma_can_not_read) {
  alignas(16) static char memory[64];
  const MatmulArgs right{DType::bf16, DType::f32, 16, 16, 16, memory, 16, 1, memory, 1, 16, memory, 16};
  BOOST_TEST(can_run(right));
  const auto refused = [&](auto change) {
    MatmulArgs args = right;
    change(args);
    return !can_run(args);
  };
  BOOST_TEST(refused([](MatmulArgs& args) { args.type = DType::f32; }));
  BOOST_TEST(refused([](MatmulArgs& args) { args.a = memory + 8; }));
  BOOST_TEST(refused([](MatmulArgs& args) { args.b = memory + 2; }));
  BOOST_TEST(refused([](MatmulArgs& args) { args.a_row = 20; }));
  BOOST_TEST(refused([](MatmulArgs& args) { args.b_col = 17; }));
  BOOST_TEST(refused([](MatmulArgs& args) { args.m = int64_t{1} << 31; }));
  BOOST_TEST(!refused([](MatmulArgs& args) { args.c = memory + 2, args.c_row = 17; }));
}

BOOST_AUTO_TEST_CASE(devices_before_and_after_9_0_are_refused) {
  const emulation::Fresh fresh;
  for (const int major : {8, 10}) {
    emulation::Settings settings = emulation::settings();
    settings.major = major;
    emulation::set(settings);
    RankOptions options{.device = {DeviceKind::cuda, 0}};
    options.kernels["matmul"] = "wgmma";
    Rank rank(options);
    const Tensor x = Tensor::zeros(rank, {16, 16}, DType::bf16);
    check_error<UnsupportedError>([&] { dispatch(rank, MatmulArgs{DType::bf16, DType::bf16, 16, 16, 16, x.raw(), 16, 1, x.raw(), 16, 1, x.raw(), 16}); },
                                  {"[matmul]", "'wgmma'", "9.0", std::to_string(major) + ".0", "'mma'"});
  }
}

BOOST_AUTO_TEST_CASE(what_the_driver_refuses_is_an_error) {
  const emulation::Fresh fresh;
  const auto rank = device_rank();
  const Tensor x = Tensor::zeros(*rank, {16, 16}, DType::bf16), y = Tensor::zeros(*rank, {16, 16}, DType::bf16);
  const MatmulArgs args{DType::bf16, DType::bf16, 16, 16, 16, x.raw(), 16, 1, x.raw(), 16, 1, y.raw(), 16};
  emulation::fail_call("cudaGetDriverEntryPointByVersion", 1, cudaErrorInvalidValue);
  check_error<DeviceError>([&] { cuda_kernel("wgmma")(*rank, args); }, {"cudaGetDriverEntryPointByVersion"});
  alignas(16) const bf16 host[16 * 16] = {};
  MatmulArgs of_host = args;
  of_host.a = host;
  check_error<DeviceError>([&] { cuda_kernel("wgmma")(*rank, of_host); }, {"cuTensorMapEncodeTiled: error 1", "16 lines of 16"});
  cuda_kernel("wgmma")(*rank, args);
  for (const bf16 value : y.to_vector<bf16>()) BOOST_TEST(value.bits == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
