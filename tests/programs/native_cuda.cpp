// A build for real devices, on a machine that may have none: what it needs to start, and its kernels as ptxas compiled them.
#include "programs/fixture.h"
#include "tier.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(native_cuda)

BOOST_AUTO_TEST_CASE(programs_start_without_any_library_of_cuda) {
  std::vector<std::string> files = {std::string(QUIRE_BUILD_ROOT) + "/libquire.so"};
  for (const char* name : {"train", "generate", "selfcheck", "plan"}) files.push_back(tool(name));
  for (const std::string& file : files) {
    const ProgramResult result = run_well({"/usr/bin/readelf", "-d", file});
    BOOST_TEST(result.out.find("(NEEDED)") != std::string::npos);
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);)
      if (line.find("(NEEDED)") != std::string::npos)
        for (const char* part : {"libcuda", "libcublas", "libcudnn", "libnccl", "libnv"}) BOOST_TEST(line.find(part) == std::string::npos, file << ": " << line);
  }
}

BOOST_AUTO_TEST_CASE(no_kernel_keeps_values_in_local_memory) {
  std::vector<std::string> args = {std::string(QUIRE_SOURCE_ROOT) + "/tests/cuda/ptxas_check"};
  for (const auto& entry : std::filesystem::directory_iterator(QUIRE_BUILD_ROOT))
    if (entry.path().extension() == ".ptxas") args.push_back(entry.path().string());
  const ProgramResult result = run_program(args);
  BOOST_TEST(result.status == 0, result.err);
  for (const char* architecture : {"sm_80 ", "sm_90a "}) BOOST_TEST(result.out.find(architecture) != std::string::npos, "no kernel for " << architecture);
}

// Broken on purpose: too few registers for what a kernel holds.
BOOST_AUTO_TEST_CASE(a_kernel_that_spills_is_found) {
  Scratch scratch;
  store(scratch.path("heavy.cu"), R"(__global__ void heavy(float* x, const float* y, int n) {
  float held[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) held[i] = y[threadIdx.x * 64 + i];
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int i = 0; i < 64; ++i) held[i] = held[i] * held[(i * 7 + 1) % 64] + y[k];
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) x[threadIdx.x * 64 + i] = held[i];
}
)");
  const auto checked = [&](const char* registers) {
    const std::string log = scratch.path("heavy.ptxas");
    const ProgramResult compiled = run_well({std::string(QUIRE_SOURCE_ROOT) + "/ops/cuda/compile", log, QUIRE_NVCC, "-Xptxas=-v", "-arch=sm_80", registers, "-c", scratch.path("heavy.cu"), "-o",
                                             scratch.path("heavy.o")});
    BOOST_TEST(compiled.err.find("Used") == std::string::npos, compiled.err);
    return run_program({std::string(QUIRE_SOURCE_ROOT) + "/tests/cuda/ptxas_check", log});
  };
  const ProgramResult enough = checked("-maxrregcount=128"), few = checked("-maxrregcount=32");
  BOOST_TEST(enough.status == 0, enough.err);
  BOOST_TEST(few.status == 1);
  BOOST_TEST(few.err.find("heavy(float*, float const*, int) for sm_80: found:") != std::string::npos, few.err);
}

// What tools/gpu_report builds on a machine with a card: its own list of sources, its own flags, no package but the toolkit. Minutes of nvcc.
BOOST_AUTO_TEST_CASE(the_program_of_gpu_report_builds_and_says_what_is_missing) {
  if (!all_tier()) return;
  Scratch scratch;
  const std::string toolkit = std::filesystem::path(QUIRE_NVCC).parent_path().parent_path().string();
  const std::vector<std::string> command = {std::string(QUIRE_SOURCE_ROOT) + "/tools/gpu_report", "--phases", "build", "--arch", "90a", "--toolkit", toolkit, "--out", scratch.path("out"),
                                            "--build", scratch.path("build"), "--limit", "build=1500"};
  run_well(command, {.patience_seconds = 1800});
  const std::string program = scratch.path("build/gpu_report");
  BOOST_TEST(std::filesystem::exists(program));
  // Nothing is made again where nothing has changed.
  const auto before = std::filesystem::last_write_time(scratch.path("build/objects/runtime_tensor.cpp.o"));
  run_well(command, {.patience_seconds = 1800});
  BOOST_TEST((std::filesystem::last_write_time(scratch.path("build/objects/runtime_tensor.cpp.o")) == before));
  if (std::filesystem::exists("/dev/nvidiactl")) return;
  for (const char* phase : {"device", "kernels"}) {
    const ProgramResult result = run_program({program, phase});
    BOOST_TEST(result.status == 1);
    BOOST_TEST(result.err.find("found: no CUDA driver") != std::string::npos, result.err);
  }
}

BOOST_AUTO_TEST_SUITE_END()
