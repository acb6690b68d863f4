// What cuDNN's attention does not do: refused with the reason, or done by `block` by rule.
#include "cuda/cudnn_case.h"
#include "runtime/cuda/shared_library.h"
#include "runtime/cuda/versions.h"

namespace quire::test {
namespace {

struct RefusedTest : DeviceTest {
  const bool there = has_cudnn();
  AttentionOptions options{.heads = 4, .kv_heads = 2, .head_dim = 64, .backend = AttentionBackend::cudnn};
};

/// Attention of a few tokens; the kernel that ran.
std::string attended(Rank& rank, const AttentionOptions& options, DType dtype = DType::bf16) {
  const DocumentRuns runs = shared_runs(Documents::from_lengths(std::vector<int64_t>{3, 4}));
  const Tensor q = Tensor::zeros(rank, {7, options.heads * options.head_dim}, dtype), k = Tensor::zeros(rank, {7, options.kv_heads * options.head_dim}, dtype);
  Tape tape(rank, false);
  attention(tape, tape.constant(q), tape.constant(k), tape.constant(k), runs, options);
  return rank.chosen_kernels()["attention_forward"];
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cuda_cudnn_refused, RefusedTest)

BOOST_AUTO_TEST_CASE(the_library_is_missing_or_too_old) {
  check_cudnn_version(91100);
  for (const size_t old : {80907, 90100, 91002})
    check_error<UnsupportedError>([&] { check_cudnn_version(old); }, {"[cuda]", "found: cuDNN " + library_version_text(old), "needed: 9.11.0", "\"block\""});
  emulation::Settings settings = emulation::settings();
  settings.libraries = false;
  emulation::set(settings);
  check_error<UnsupportedError>([] { SharedLibrary({"libcudnn.so.9"}, "model.attention_backend = \"cudnn\""); }, {"[cuda]", "libcudnn.so.9", "attention_backend"});
  Rank without(device_rank());  // which starts, and computes with the other backend
  BOOST_TEST(attended(without, {.heads = 1, .kv_heads = 1, .head_dim = 64}) == "tensor_cores");
}

BOOST_AUTO_TEST_CASE(devices_and_types_that_it_is_not_for) {
  Rank cpu;
  check_error<UnsupportedError>([&] { check_attention_backend(cpu, options, DType::bf16); }, {"[attention]", "found: the CPU", "needed: a CUDA device", "\"block\""});
  check_error<UnsupportedError>([&] { attended(cpu, options); }, {"attention_forward", "cpu"});  // nor does another backend step in
  check_error<UnsupportedError>([&] { check_attention_backend(rank, options, DType::f32); }, {"found: f32", "needed: bf16"});
  if (!there) return;
  check_error<UnsupportedError>([&] { attended(rank, options, DType::f32); }, {"found: f32", "needed: bf16"});
  check_attention_backend(rank, options, DType::bf16);
  options.backend = AttentionBackend::block;
  check_attention_backend(cpu, options, DType::f64);
  options.backend = AttentionBackend::cudnn;
  emulation::Settings settings = emulation::settings();
  settings.major = 8;
  emulation::set(settings);
  Rank older(RankOptions{.device = {DeviceKind::cuda, 1}});
  check_error<UnsupportedError>([&] { check_attention_backend(older, options, DType::bf16); }, {"found: compute capability 8.0", "needed: 9.0", "\"block\""});
}

BOOST_AUTO_TEST_CASE(head_sizes_are_refused_with_the_librarys_reason) {
  if (!there) return;
  for (const int64_t head_dim : {20, 100, 300}) {
    options.head_dim = head_dim;
    const std::string text = fmt::format("4 heads of {} over 2 key/value heads", head_dim);
    check_error<UnsupportedError>([&] { check_attention_backend(rank, options, DType::bf16); }, {"[attention]", "cuDNN 9.", "has no forward", text, "(\"", "d_qk", "\"block\""});
  }
  options.head_dim = 300;
  check_error<UnsupportedError>([&] { attended(rank, options); }, {"has no forward", "heads of 300"});
}

BOOST_AUTO_TEST_CASE(rows_off_alignment_are_refused) {
  if (!there) return;
  const AttentionCase c = cudnn_case(random, std::vector<int64_t>{5}, 1, 1, 64, 3);
  check_error<UnsupportedError>([&] { cudnn_both(rank, c); }, {"[attention]", "rows of q 67 elements apart", "multiples of 16 bytes"});
}

BOOST_AUTO_TEST_CASE(windows_and_partial_results_are_blocks) {
  if (!there) return;
  BOOST_TEST(attended(rank, options) == "cudnn");
  BOOST_TEST(rank.accelerator()->take_notes().empty());
  options.window = 5;
  BOOST_TEST(attended(rank, options) == "tensor_cores");
  BOOST_TEST(attended(rank, options) == "tensor_cores");
  const std::vector<std::string> notes = rank.accelerator()->take_notes();
  BOOST_TEST_REQUIRE(notes.size() == 1u);  // once, for the log
  BOOST_TEST(notes[0].find("sliding window") != std::string::npos);
  BOOST_TEST(rank.accelerator()->choices().at("attention.windows") == "block");
  // A cache's keys, and other ranks'.
  options.window = 0;
  const DocumentRuns runs = shared_runs(Documents::from_lengths(std::vector<int64_t>{3, 4}));
  const Tensor q = Tensor::zeros(rank, {7, 256}, DType::bf16), k = Tensor::zeros(rank, {7, 128}, DType::bf16);
  attention_partial(rank, q, k, k, runs, runs, options);
  BOOST_TEST(rank.chosen_kernels()["attention_forward"] == "tensor_cores");
}

BOOST_AUTO_TEST_CASE(failed_calls_are_named) {
  if (!there) return;
  for (const char* function : {"cudnnCreate", "cudnnSetStream", "cudnnBackendCreateDescriptor", "cudnnBackendFinalize", "cudnnBackendExecute"}) {
    Rank other(device_rank());
    emulation::fail_call(function, 1, CUDNN_STATUS_INTERNAL_ERROR);
    check_error<DeviceError>([&] { attended(other, options); }, {"[cudnn]", function});
    BOOST_TEST(attended(other, options) == "cudnn");
  }
  // The one engine that the library proposes for backward does not compile.
  Rank other(device_rank());
  emulation::fail_call("plan", 2, CUDNN_STATUS_NOT_SUPPORTED);
  check_error<UnsupportedError>([&] { cudnn_both(other, cudnn_case(random, std::vector<int64_t>{5}, 1, 1, 64)); }, {"has no backward for 1 heads of 64"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
