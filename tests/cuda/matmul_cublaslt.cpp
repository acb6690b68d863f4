// Matrix products through cuBLASLt: one algorithm per form, types, n and k; choices that are recorded and made again; what the library refuses.
#include <cublasLt.h>
#include <fmt/format.h>

#include "cuda/matmul_kernels.h"
#include "runtime/cuda/libraries.h"

namespace quire::test {

namespace {

using Choices = Accelerator::Choices;

template <class T, class C>
std::vector<C> product(Rank& rank, Sizes sizes, const Form& form, uint64_t seed = 30, const Spacing& spacing = aligned_spacing) {
  std::mt19937_64 random(seed);
  Operands<T, C> operands(random, sizes.m, sizes.n, sizes.k, form, false, spacing);
  operands.run(cuda_kernel("cublaslt"), rank);
  BOOST_TEST(operands.accurate());
  return operands.rows(0, sizes.m);
}

Choices choices_of(Rank& rank) { return rank.accelerator()->choices(); }

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  BOOST_REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_matmul_cublaslt)

BOOST_AUTO_TEST_CASE(products_are_within_the_rule) {
  check_random_products<float, float>("cublaslt", 21, 8, {4, 16, 64, 128}, {4, 16, 32, 256}, 130, {odd_spacing, aligned_spacing});
  check_random_products<bf16, bf16>("cublaslt", 22, 8, {4, 16, 64, 128}, {4, 16, 32, 256}, 130, {odd_spacing, aligned_spacing});
  check_random_products<bf16, float>("cublaslt", 23, 8, {4, 16, 64, 128}, {4, 16, 32, 256}, 130, {odd_spacing, aligned_spacing});
}

BOOST_AUTO_TEST_CASE(a_row_depends_on_its_own_row_alone) {
  check_rows<float, float>("cublaslt", {{131, 77, 300}, {14, 16, 600}}, odd_spacing);
  check_rows<bf16, bf16>("cublaslt", {{131, 77, 300}, {14, 16, 64}}, aligned_spacing);
  check_rows<bf16, float>("cublaslt", {{40, 33, 90}}, odd_spacing);
}

BOOST_AUTO_TEST_CASE(no_steps_give_zeros_or_leave_sums) {
  check_no_steps<float, float>("cublaslt", odd_spacing);
  check_no_steps<bf16, bf16>("cublaslt", aligned_spacing);
}

BOOST_AUTO_TEST_CASE(sums_are_rounded_to_bf16_as_everywhere) {
  check_rounding("cublaslt", false);
  check_rounding("cublaslt", true);
}

BOOST_AUTO_TEST_CASE(it_is_the_kernel_that_runs_unless_another_is_named) {
  const emulation::Fresh fresh;
  std::mt19937_64 random(31);
  for (const char* name : {"", "tiles"}) {
    RankOptions options{.device = {DeviceKind::cuda, 0}, .poison = true};
    if (*name != '\0') options.kernels["matmul"] = name;
    Rank rank(options);
    Operands<float, float> operands(random, 9, 8, 12, forms[1], false);
    operands.run([](Rank& on, const MatmulArgs& args) { dispatch(on, args); }, rank);
    BOOST_TEST(operands.accurate());
    BOOST_TEST(rank.chosen_kernels().at("matmul") == (*name != '\0' ? name : "cublaslt"));
  }
}

// The choice is a function of form, types, n and k: neither rows nor strides nor what came before have a part in it.
BOOST_AUTO_TEST_CASE(there_is_one_choice_for_all_rows_and_strides) {
  const emulation::Fresh fresh;
  const auto rank = device_rank();
  for (const int64_t m : {1, 5, 64, 100})
    for (const Spacing& spacing : {odd_spacing, aligned_spacing}) product<bf16, bf16>(*rank, {m, 24, 40}, forms[1], 30, spacing);
  BOOST_TEST(choices_of(*rank).size() == 1u);
  product<bf16, float>(*rank, {3, 24, 40}, forms[1]);
  product<float, float>(*rank, {3, 24, 40}, forms[0]);
  for (const int64_t tokens : {33, 50, 64}) product<bf16, float>(*rank, {16, 24, tokens}, forms[2]);  // k counts tokens: up to the next power of two
  product<bf16, float>(*rank, {16, 24, 65}, forms[2]);
  const Choices choices = choices_of(*rank);
  std::vector<std::string> keys;
  for (const auto& [key, text] : choices) keys.push_back(key);
  BOOST_TEST(keys == (std::vector<std::string>{"matmul.nn.f32.f32.n=24.k=40", "matmul.nt.bf16.bf16.n=24.k=40", "matmul.nt.bf16.f32.n=24.k=40", "matmul.tn.bf16.f32.n=24.k<=128",
                                               "matmul.tn.bf16.f32.n=24.k<=64"}),
             boost::test_tools::per_element());
  const std::string& text = choices.at("matmul.nt.bf16.bf16.n=24.k=40");
  const std::string words = fmt::format("library={} device=90 algorithm=66 tile=18 stages=4 split_k=1 reduction=0 swizzle=0 custom=0 inner=0 cluster=0 data=", cublaslt().cublasLtGetVersion());
  BOOST_TEST(text.substr(0, words.size()) == words);
  BOOST_TEST(text.size() == words.size() + 2 * sizeof(cublasLtMatmulAlgo_t));
  BOOST_TEST(rank->accelerator()->take_notes().empty());
}

BOOST_AUTO_TEST_CASE(recorded_choices_are_made_again) {
  const emulation::Fresh fresh;
  const auto first = device_rank();
  emulation::fail_call("cublasLtMatmulAlgoCheck", 1, CUBLAS_STATUS_NOT_SUPPORTED);  // so that it is not what another run would choose
  const std::vector<float> result = product<float, float>(*first, {20, 24, 40}, forms[1]);
  const Choices recorded = choices_of(*first);
  BOOST_TEST(recorded.begin()->second.find("algorithm=21 ") != std::string::npos);  // the second splits k
  BOOST_TEST(recorded.begin()->second.find("split_k=1 ") != std::string::npos);

  const auto second = device_rank();
  BOOST_TEST(same_bits(product<float, float>(*second, {20, 24, 40}, forms[1]), result));
  BOOST_TEST((choices_of(*second) != recorded));
  const auto resumed = device_rank();
  resumed->accelerator()->replay(recorded);
  BOOST_TEST(same_bits(product<float, float>(*resumed, {20, 24, 40}, forms[1]), result));
  BOOST_TEST((choices_of(*resumed) == recorded));
  BOOST_TEST(resumed->accelerator()->take_notes().empty());
}

// Each record here can not be replayed: a note says so, and a new choice is made.
BOOST_AUTO_TEST_CASE(records_of_another_library_or_device_are_refused_with_a_note) {
  const emulation::Fresh fresh;
  const auto first = device_rank();
  product<float, float>(*first, {20, 24, 40}, forms[1]);
  const Choices made = choices_of(*first);
  const auto& [key, good] = *made.begin();
  const std::string library = fmt::format("library={}", cublaslt().cublasLtGetVersion()), nothing(128, '0');
  std::vector<std::string> bad = {replaced(good, library, "library=120800"), replaced(good, "device=90", "device=80"), replaced(good, "tile=18", "tile=19"), replaced(good, " stages=4", ""),
                                  good + "0", good.substr(0, good.size() - 1), replaced(good, "data=", "data"), good.substr(0, good.find("data=") + 5) + nothing,
                                  good.substr(0, good.size() - 1) + "x", "nonsense", ""};
  // Whole records of algorithms that split k, and that need more room than there is.
  using Change = std::pair<cublasLtMatmulAlgoConfigAttributes_t, uint32_t>;
  for (const auto& [attribute, value] : {Change{CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4}, Change{CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 2}, Change{CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 64}}) {
    cublasLtMatmulAlgo_t algorithm{};
    for (size_t word = 0; word < 8; ++word) algorithm.data[word] = std::stoull(good.substr(good.find("data=") + 5 + 16 * word, 16), nullptr, 16);
    BOOST_TEST(cublaslt().cublasLtMatmulAlgoConfigSetAttribute(&algorithm, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS);
    const char* const word = attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? "split_k=" : attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME ? "reduction=" : "custom=";
    std::string text = good.substr(0, good.find("data=") + 5);
    text.replace(text.find(word), std::string(word).size() + 1, word + std::to_string(value));
    bad.push_back(text + fmt::format("{:016x}", fmt::join(algorithm.data, "")));
  }
  for (const std::string& record : bad) {
    const auto rank = device_rank();
    rank->accelerator()->replay({{key, record}});
    product<float, float>(*rank, {20, 24, 40}, forms[1]);
    BOOST_TEST(choices_of(*rank).at(key) == good, record);
    const std::vector<std::string> notes = rank->accelerator()->take_notes();
    BOOST_TEST_REQUIRE(notes.size() == 1u, record);
    for (const std::string& part : {key, "`" + record + "`", library}) BOOST_TEST(notes.front().find(part) != std::string::npos, notes.front());
    BOOST_TEST(rank->accelerator()->take_notes().empty());
  }
  const auto rank = device_rank();
  rank->accelerator()->replay({{key, good}});
  emulation::fail_call("cublasLtMatmulAlgoCheck", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  product<float, float>(*rank, {20, 24, 40}, forms[1]);
  BOOST_TEST(rank->accelerator()->take_notes().size() == 1u);
}

BOOST_AUTO_TEST_CASE(without_an_algorithm_a_hand_written_kernel_runs_and_is_recorded) {
  const emulation::Fresh fresh;
  Choices recorded;
  {
    const auto rank = device_rank();
    emulation::fail_call("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_NOT_SUPPORTED);
    product<float, float>(*rank, {5, 24, 40}, forms[1]);
    BOOST_TEST(rank->chosen_kernels().at("matmul") == "tiles");
    const std::vector<std::string> notes = rank->accelerator()->take_notes();
    BOOST_REQUIRE_EQUAL(notes.size(), 1u);
    BOOST_TEST(notes.front().find("matmul.nt.f32.f32.n=24.k=40") != std::string::npos, notes.front());
    product<float, float>(*rank, {9, 24, 40}, forms[1]);  // and stays with it
    BOOST_TEST(emulation::counters().products == 0);
    emulation::fail_call("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_NOT_SUPPORTED);
    product<bf16, float>(*rank, {5, 24, 40}, forms[1]);
    BOOST_TEST(rank->chosen_kernels().at("matmul") == "mma");
    recorded = choices_of(*rank);
    BOOST_TEST(recorded.at("matmul.nt.f32.f32.n=24.k=40") == "hand-written");
  }
  emulation::reset_counters();
  const auto resumed = device_rank();
  resumed->accelerator()->replay(recorded);
  product<float, float>(*resumed, {5, 24, 40}, forms[1]);
  product<bf16, float>(*resumed, {5, 24, 40}, forms[1]);
  BOOST_TEST(emulation::counters().products == 0);
  BOOST_TEST((choices_of(*resumed) == recorded));
}

BOOST_AUTO_TEST_CASE(algorithms_get_the_workspace_they_ask_for) {
  const emulation::Fresh fresh;
  const auto rank = device_rank();
  product<float, float>(*rank, {20, 24, 40}, forms[0]);
  BOOST_TEST(rank->stack().peak() < (int64_t{1} << 20));
  emulation::fail_call("cublasLtMatmulAlgoCheck", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  product<float, float>(*rank, {20, 24, 40}, forms[1]);
  BOOST_TEST(rank->stack().peak() >= (int64_t{32} << 20));
}

BOOST_AUTO_TEST_CASE(what_the_library_refuses_is_an_error_with_its_call) {
  const emulation::Fresh fresh;
  const auto run = [](Rank& rank) { return [&rank] { product<float, float>(rank, {5, 8, 8}, forms[1]); }; };
  const auto rank = device_rank();
  emulation::fail_call("cublasLtCreate", 1, CUBLAS_STATUS_NOT_INITIALIZED);
  check_error<DeviceError>(run(*rank), {"[cublaslt] cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED"});
  emulation::fail_call("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_INTERNAL_ERROR);
  check_error<DeviceError>(run(*rank), {"cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_INTERNAL_ERROR"});
  emulation::fail_call("cublasLtMatmul", 1, CUBLAS_STATUS_EXECUTION_FAILED);
  check_error<DeviceError>(run(*rank), {"cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED"});
  run(*rank)();
  // Rows for which the algorithm chosen can not run are an error, not another algorithm.
  emulation::fail_call("cublasLtMatmulAlgoCheck", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  check_error<DeviceError>(run(*rank), {"[matmul]", "matmul.nt.f32.f32.n=8.k=8", "algorithm=66", "m 5", "CUBLAS_STATUS_NOT_SUPPORTED", "`tiles`"});
}

// A planted mistake: an operand of host memory is refused by the library, under the name of the call.
BOOST_AUTO_TEST_CASE(host_memory_is_refused) {
  const emulation::Fresh fresh;
  const auto rank = device_rank();
  const std::vector<float> host(64, 1.0f);
  const Tensor b = Tensor::zeros(*rank, {8, 8}, DType::f32), c = Tensor::zeros(*rank, {8, 8}, DType::f32);
  MatmulArgs args{DType::f32, DType::f32, 8, 8, 8, b.raw(), 8, 1, b.raw(), 8, 1, c.raw(), 8};
  cuda_kernel("cublaslt")(*rank, args);
  args.a = host.data();
  check_error<DeviceError>([&] { cuda_kernel("cublaslt")(*rank, args); }, {"cublasLtMatmul: CUBLAS_STATUS_INVALID_VALUE"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
