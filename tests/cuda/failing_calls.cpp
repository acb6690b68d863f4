// Each call of CUDA and its libraries that a run makes fails once: the run ends with one error that names it, leaves nothing behind that is broken, and goes on from its
// last checkpoint to the same bits.
#include "emulation.h"
#include "run/training_run.h"
#include "state.h"
#include "runtime/error.h"
#include "tier.h"

namespace quire::test {

namespace {

Config failing_config(const Scratch& scratch, const std::string& run) {
  return small_config(scratch, run, {"run.device=cuda", "train.max_steps=2", "checkpoint.interval=1", "eval.steps=1", "model.n_layers=1", "train.seq_len=16", "train.global_batch_size=2",
                                    "train.microbatch_size=1"});
}

/// Calls that end something, at a place that can not throw.
bool only_ends(const std::string& function) {
  return function == "cudaStreamDestroy" || function == "cudaEventDestroy" || function == "cudaFree" || function == "cudaFreeHost";
}
/// Calls whose failure has another way out than an error: another algorithm, what is told of the device, an end that needs no wait.
bool may_go_on(const std::string& function) {
  return function == "cublasLtMatmulAlgoCheck" || function == "cudaGetDeviceCount" || function == "cudaDriverGetVersion" || function == "cudaRuntimeGetVersion" ||
         function == "cudaEventSynchronize" || function == "cudaStreamSynchronize" || function == "cudaSetDevice";
}

/// Which of `count` calls fail: one in the middle of the run; where all tests are asked for also the first and the last and many between.
std::set<int64_t> chosen(int64_t count) {
  if (!all_tier()) return {(count + 1) / 2};
  constexpr int64_t wanted = 40;
  std::set<int64_t> all;
  for (int64_t i = 0; i < wanted; ++i) all.insert(1 + i * (count - 1) / (wanted - 1));
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_failing_calls)

BOOST_AUTO_TEST_CASE(every_call_of_a_run_fails_once) {
  const emulation::Fresh fresh;
  Scratch scratch;
  const Config whole = failing_config(scratch, "whole");
  emulation::reset_counters();
  run_training(whole);
  const std::map<std::string, int64_t> calls = emulation::calls();
  for (const char* function : {"cudaMalloc", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize", "cublasLtCreate", "cublasLtMatmul"})
    BOOST_TEST(calls.contains(function), function << " is never called");
  int runs = 0, told = 0;
  for (const auto& [function, count] : calls) {
    BOOST_TEST_MESSAGE(function << ": " << count << " calls");
    for (const int64_t nth : chosen(count)) {
      const std::string what = fmt::format("call {} of {} of {}", nth, count, function);
      const Config config = failing_config(scratch, fmt::format("run-{}", runs++));
      const size_t before = emulation::allocated();
      emulation::fail_call(function, static_cast<int>(nth), function.starts_with("cublas") ? 14 : cudaErrorUnknown);  // 14: CUBLAS_STATUS_INTERNAL_ERROR
      std::string said;
      try {
        run_training(config);
      } catch (const Error& error) {
        said = error.what();
      }
      emulation::recover();
      if (only_ends(function)) {
        BOOST_TEST(said == "", what << ": " << said);
      } else {
        BOOST_TEST(emulation::allocated() == before, what << ": memory of the device stays behind");
        BOOST_TEST((!said.empty() || may_go_on(function)), what << " is not told");
      }
      if (!said.empty()) {
        ++told;
        const std::string named = function == "cublasLtMatmulAlgoCheck" ? "cuBLASLt" : function;
        BOOST_TEST((said.front() == '[' && said.find('\n') == std::string::npos && said.find(named) != std::string::npos), what << ": " << said);
      }
      if (!all_tier() && function != "cudaLaunchKernel" && function != "cublasLtMatmul") continue;
      run_training(config);
      check_same_training(whole, config, what);
    }
  }
  BOOST_TEST(told >= 15);
}

// What a kernel's own failure, or the machine's, does: every later call of the device fails.
BOOST_AUTO_TEST_CASE(a_device_that_fails_within_a_step_ends_the_run_with_one_error) {
  const emulation::Fresh fresh;
  Scratch scratch;
  const Config whole = failing_config(scratch, "whole"), config = failing_config(scratch, "run");
  run_training(whole);
  const size_t before = emulation::allocated();
  const auto fail_after_one_step = [&] {
    Session session(config, disk(), quiet());
    take_step(session, session.next_batch());
    emulation::note_failure(0, "an uncorrectable error of the memory");
    take_step(session, session.next_batch());
    session.finish(0);
  };
  check_error<DeviceError>(fail_after_one_step, {"[cuda]", "unspecified launch failure: an uncorrectable error of the memory"});
  emulation::recover();
  BOOST_TEST(emulation::allocated() == before);
  run_training(config);
  check_same_training(whole, config, "after the failure");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
