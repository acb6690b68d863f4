// What a profile collects at the door to kernels.
#include "runtime/profile.h"

#include "check.h"
#include "ops/kernels.h"
#include "runtime/dispatch.h"

using namespace quire;
using namespace quire::test;

namespace {

void product(Rank& rank, bool transposed_a, bool transposed_b, bool accumulate) {
  std::vector<float> a(6, 1), b(12, 1), c(8);  // [2, 3] x [3, 4]
  dispatch(rank, MatmulArgs{DType::f32, DType::f32, 2, 4, 3, a.data(), transposed_a ? 1 : 3, transposed_a ? 2 : 1, b.data(), transposed_b ? 1 : 4,
                            transposed_b ? 3 : 1, c.data(), 4, accumulate});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(profile)

BOOST_AUTO_TEST_CASE(counts_every_call_under_its_name_with_the_time_it_took) {
  Rank rank;
  Profile profile;
  std::vector<float> from{1, 2}, into{3, 4};
  const auto add = [&] { dispatch(rank, AddArgs{DType::f32, 2, from.data(), into.data()}); };
  add();  // nobody listens yet
  rank.set_profile(&profile);
  const auto start = std::chrono::steady_clock::now();
  add();
  add();
  product(rank, false, true, false);
  const double most = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  rank.set_profile(nullptr);
  add();
  const Profile::Entries entries = profile.entries();
  BOOST_REQUIRE_EQUAL(entries.size(), 2);
  BOOST_TEST(entries.at("add").calls == 2);
  BOOST_TEST(entries.at("matmul nt").calls == 1);
  double sum = 0;
  for (const auto& [name, entry] : entries) {
    BOOST_TEST(entry.seconds >= 0, name);
    sum += entry.seconds;
  }
  BOOST_TEST(sum <= most);
  BOOST_TEST(sum > 0);
  BOOST_TEST(into[0] == 7);  // four additions: the profile changes nothing
  profile.clear();
  BOOST_TEST(profile.entries().empty());
}

BOOST_AUTO_TEST_CASE(tells_the_forms_of_products_apart) {
  Rank rank;
  Profile profile;
  rank.set_profile(&profile);
  for (const bool accumulate : {false, true}) {
    product(rank, false, false, accumulate);
    product(rank, false, true, accumulate);
    product(rank, true, false, accumulate);
  }
  std::vector<std::string> names;
  for (const auto& [name, entry] : profile.entries()) names.push_back(name);
  const std::vector<std::string> expected{"matmul nn", "matmul nn, added", "matmul nt", "matmul nt, added", "matmul tn", "matmul tn, added"};
  BOOST_TEST(names == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(an_operation_that_no_kernel_can_run_is_not_counted) {
  Rank rank(RankOptions{.kernels = {{"add", "none of this name"}}});
  Profile profile;
  rank.set_profile(&profile);
  std::vector<float> x{1};
  std::string names;
  for (const Kernel<AddArgs>& kernel : cpu_kernels<AddArgs>()) names += std::string(names.empty() ? "" : ", ") + kernel.name;
  check_error<ConfigError>([&] { dispatch(rank, AddArgs{DType::f32, 1, x.data(), x.data()}); }, {"[run.kernels]", "add has no kernel 'none of this name' on cpu; allowed: " + names});
  BOOST_TEST(profile.entries().empty());
}

BOOST_AUTO_TEST_CASE(a_kernel_that_is_not_there_is_refused_with_those_that_are) {
  const std::vector<KernelChoice> kernels{{"quick", false}, {"packed", true}, {"reference", true}};
  const auto refused = [&]<class E>(const char* wanted, std::initializer_list<std::string> parts) {
    Rank other(RankOptions{.kernels = {{"matmul", wanted}}});
    check_error<E>([&] { no_kernel(other, "matmul", kernels); }, parts);
  };
  refused.template operator()<UnsupportedError>("quick", {"[matmul]", "'quick'", "can not run this on cpu; allowed: packed, reference"});
  refused.template operator()<ConfigError>("pakked", {"matmul has no kernel 'pakked' on cpu; allowed: packed, reference; nearest: packed"});
}

BOOST_AUTO_TEST_SUITE_END()
