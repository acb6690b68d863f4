// `run.device` where there is no CUDA device: named in one line, and `auto` computes on the CPU.
#include "programs/fixture.h"
#include "runtime/accelerator.h"

using namespace quire;
using namespace quire::test;

namespace {

/// Exit status 1 and one line in the house form that holds every one of `parts`.
void refused(const ProgramResult& result, const std::vector<std::string>& parts) {
  BOOST_TEST(result.status == 1);
  BOOST_TEST((!result.err.empty() && result.err[0] == '[' && result.err.find('\n') == result.err.size() - 1), "not one line in the house form: '" << result.err << "'");
  for (const std::string& part : parts) BOOST_TEST(result.err.find(part) != std::string::npos, "'" << result.err << "' lacks '" << part << "'");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(devices)

BOOST_AUTO_TEST_CASE(a_device_that_is_not_there_is_refused) {
  const CudaAvailability available = cuda_availability();
  if (available.devices > 0) return;  // a machine with a device has nothing to refuse
  Workshop workshop;
  for (const char* device : {"run.device=cuda"}) {
    refused(run_program(workshop.training("run", {device})), {"[device]", available.reason, "allowed: cpu"});
    refused(run_program({tool("selfcheck"), workshop.path("small.toml"), device}), {"[device]", available.reason, "allowed: cpu"});
    refused(run_program({tool("train"), workshop.path("small.toml"), device, "distributed.pp=2", "--ranks", "2"}), {"[device]", "2 ranks", available.reason, "allowed: cpu"});
    refused(run_program(workshop.training("run", {device, "train.mixed_precision=f64"})), {"run.device", "f64", "\"f32\" or \"bf16\""});
    refused(run_program(workshop.training("run", {device, "model.attention_backend=dense"})), {"run.device", "dense", "\"block\""});
  }
  for (const char* device : {"run.device=auto", "run.device=cpu"}) {
    const ProgramResult result = run_well(workshop.training(device, {device, "train.max_steps=2"}));
    BOOST_TEST(result.out.find("cuda") == std::string::npos, result.out);
  }
}

BOOST_AUTO_TEST_SUITE_END()
