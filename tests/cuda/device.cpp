// Tensors on an emulated device.
#include "check.h"
#include "runtime/accelerator.h"
#include "runtime/tensor.h"

namespace quire::test {

BOOST_AUTO_TEST_SUITE(cuda_device)

BOOST_AUTO_TEST_CASE(values_go_to_the_device_and_come_back) {
  Rank rank(RankOptions{.device = {DeviceKind::cuda, 0}, .poison = true});
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const Tensor tensor = Tensor::from<float>(rank, {2, 3}, values);
  BOOST_TEST(tensor.to_vector<float>() == values, boost::test_tools::per_element());
  BOOST_TEST(tensor.slice(1, 1, 3).to_vector<float>() == (std::vector<float>{2, 3, 5, 6}), boost::test_tools::per_element());
  BOOST_TEST(contiguous(rank, tensor.slice(1, 1, 3)).to_vector<float>() == (std::vector<float>{2, 3, 5, 6}), boost::test_tools::per_element());
  BOOST_TEST(Tensor::zeros(rank, {3}, DType::f32).to_vector<float>() == (std::vector<float>{0, 0, 0}), boost::test_tools::per_element());
  Readback later(rank, tensor);
  write<float>(rank, tensor, std::vector<float>(6, 7.0f));
  BOOST_TEST(later.values<float>() == values, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
