// The emulated machine: threads, barriers, meetings of lanes, and what it says of kernels that break the rules.
#include <gpu.h>

#include <numeric>

#include "check.h"
#include "on_device.h"

namespace quire::test {

namespace {

__global__ void add_numbers(const float* a, const float* b, float* sum, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) sum[i] = a[i] + b[i];
}

__global__ void mark_place(int* count) {
  const int64_t block = blockIdx.x + gridDim.x * (blockIdx.y + int64_t{gridDim.y} * blockIdx.z);
  const int64_t thread = threadIdx.x + blockDim.x * (threadIdx.y + int64_t{blockDim.y} * threadIdx.z);
  atomicAdd(&count[block * blockDim.x * blockDim.y * blockDim.z + thread], 1);
}

/// Sums 256 numbers per block through shared memory.
__global__ void sum_block(const int* in, int* out) {
  DYNAMIC_SMEM(memory);
  int* const part = reinterpret_cast<int*>(memory);
  const int i = static_cast<int>(threadIdx.x);
  part[i] = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int half = static_cast<int>(blockDim.x) / 2; half > 0; half /= 2) {
    __syncthreads();
    if (i < half) part[i] += part[i + half];
  }
  if (i == 0) out[blockIdx.x] = part[0];
}

/// One warp: what shuffles, votes and atomic operations give each lane.
__global__ void exchange(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  int* const mine = out + lane * 10;
  mine[0] = __shfl_sync(0xffffffffu, lane * 3, 5);
  mine[1] = __shfl_xor_sync(0xffffffffu, lane, 16);
  mine[2] = __shfl_down_sync(0xffffffffu, lane, 3);
  mine[3] = __shfl_up_sync(0xffffffffu, lane, 3, 8);
  mine[4] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 3 == 0));
  mine[5] = __any_sync(0xffffffffu, lane == 31) + 2 * __all_sync(0xffffffffu, lane < 31);
  double sum = lane;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  mine[6] = static_cast<int>(sum);
  if (lane < 8) mine[7] = __shfl_sync(0xffu, lane, 7);
  mine[8] = __syncthreads_count(lane < 5) + 100 * __syncthreads_or(lane == 7) + 1000 * __syncthreads_and(lane < 9);
  mine[9] = min(lane, 9) + max(lane, 30);
}

// Kernels that break a rule; `say_how` picks one.
__global__ void break_a_rule(int how, int* out) {
  DYNAMIC_SMEM(memory);
  const int i = static_cast<int>(threadIdx.x);
  switch (how) {
    case 0:
      if (i < 32) __syncthreads();  // the others have ended
      return;
    case 1:
      if (i < 32) __syncthreads();
      else __syncthreads();
      return;
    case 2:
      if (i % 2 == 0) out[i] = __shfl_sync(0xffffffffu, i, 0);  // half the lanes never come
      return;
    case 3:
      if (i == 0) out[0] = __shfl_sync(0xfffffffeu, i, 1);  // not in its own mask
      return;
    case 4:
      out[i] = __shfl_sync(i < 32 ? 0x1u << (i % 32) : 0xffffffffu, i, 3);  // reads outside the mask
      return;
    case 5:
      if (i % 2 == 0) __syncwarp();
      else out[i] = __any_sync(0xffffffffu, 1);
      return;
    case 6: gpu::cp_async16(gpu::smem_addr(memory) + 8, out, 16); return;
    case 7: gpu::cp_async16(gpu::smem_addr(memory) + 1024, out, 16); return;
    case 8: gpu::cp_async16(gpu::smem_addr(memory), out + 1, 16); return;
    case 9: gpu::cp_async16(gpu::smem_addr(memory), out, 16); return;  // never waited for
    case 10: memory[1024 + i] = 0; return;
    default: out[i] = how;
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(emulation_machine)

BOOST_AUTO_TEST_CASE(a_loop_over_the_grid_reaches_every_element) {
  OnDevice device;
  const size_t n = 131072 + 17;
  const float* const a = device.upload(std::vector<float>(n, 1.5f));
  float* const sum = device.empty<float>(n);
  gpu::launch(add_numbers, dim3(64), dim3(256), 0, device.stream, a, a, sum, static_cast<int64_t>(n));
  BOOST_TEST((device.download(sum, n) == std::vector<float>(n, 3.0f)));
  BOOST_TEST(emulation::counters().kernels == 1);
}

BOOST_AUTO_TEST_CASE(every_thread_runs_once_in_every_order) {
  for (const auto order : all_orders)
    for (const dim3 grid : {dim3(1), dim3(7), dim3(3, 4, 5), dim3(1, 2, 1)}) {
      OnDevice device;
      emulation::order(order, 9);
      const size_t threads = size_t{grid.x} * grid.y * grid.z * 90;
      int* const count = device.upload(std::vector<int>(threads, 0));
      gpu::launch(mark_place, grid, dim3(5, 6, 3), 0, device.stream, count);
      BOOST_TEST((device.download(count, threads) == std::vector<int>(threads, 1)));
    }
}

BOOST_AUTO_TEST_CASE(barriers_order_threads_in_every_order) {
  OnDevice device;
  std::vector<int> values(4 * 256);
  std::iota(values.begin(), values.end(), 0);
  const int* const in = device.upload(values);
  for (const auto order : all_orders) {
    emulation::order(order, 3);
    int* const out = device.empty<int>(4);
    gpu::launch(sum_block, dim3(4), dim3(256), 256 * sizeof(int), device.stream, in, out);
    BOOST_TEST((device.download(out, 4) == std::vector<int>{32640, 98176, 163712, 229248}));
  }
}

BOOST_AUTO_TEST_CASE(lanes_exchange_what_cuda_says) {
  for (const auto order : all_orders) {
    OnDevice device;
    emulation::order(order, 4);
    int* const out = device.upload(std::vector<int>(320, -1));
    gpu::launch(exchange, dim3(1), dim3(32), 0, device.stream, out);
    const std::vector<int> seen = device.download(out, 320);
    for (int lane = 0; lane < 32; ++lane) {
      const std::vector<int> mine(seen.begin() + lane * 10, seen.begin() + lane * 10 + 10);
      const std::vector<int> expected = {15, lane ^ 16, lane + 3 < 32 ? lane + 3 : lane, lane % 8 >= 3 ? lane - 3 : lane, 0x49249249, 1, 496, lane < 8 ? 7 : -1,
                                         105, std::min(lane, 9) + std::max(lane, 30)};
      BOOST_TEST(mine == expected, boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_CASE(broken_rules_are_named_and_stop_the_stream) {
  const std::pair<const char*, int> rules[] = {
      {"some threads have ended while the others wait at line", 0},
      {"meet at __syncthreads of different lines", 1},
      {"waits in a shuffle of line", 2},
      {"not in its own mask", 3},
      {"which is not in its mask", 4},
      {"lanes of one warp meet at", 5},
      {"is not a multiple of 16", 6},
      {"lies outside the block's 1024 bytes", 7},
      {"cp.async: the address in global memory", 8},
      {"asynchronous copies that it has not waited for", 9},
  };
  for (const auto& [text, how] : rules) {
    OnDevice device;
    int* const out = device.upload(std::vector<int>(64, 0));
    gpu::launch(break_a_rule, dim3(1), dim3(64), 1024, device.stream, how, out);
    BOOST_TEST(cudaStreamSynchronize(device.stream) == cudaErrorLaunchFailure);
    BOOST_TEST(device.failure().find(text) != std::string::npos, how << ": " << device.failure());
    BOOST_TEST(std::string(cudaGetErrorString(cudaErrorLaunchFailure)).find(text) != std::string::npos);
    void* memory = nullptr;
    BOOST_TEST(cudaMalloc(&memory, 16) == cudaErrorLaunchFailure);  // the error stays
    emulation::recover();
    gpu::launch(break_a_rule, dim3(1), dim3(64), 1024, device.stream, 99, out);
    BOOST_TEST((device.download(out, 64) == std::vector<int>(64, 99)));
  }
}

BOOST_AUTO_TEST_CASE(writes_behind_shared_memory_are_seen) {
  if (emulation::address_sanitizer) return;  // which ends the program there
  OnDevice device;
  gpu::launch(break_a_rule, dim3(1), dim3(64), 1024, device.stream, 10, device.empty<int>(1));
  BOOST_TEST(device.failure().find("wrote behind the block's 1024 bytes of shared memory, at byte 1024") != std::string::npos, device.failure());
}

BOOST_AUTO_TEST_CASE(impossible_launches_are_refused_at_once) {
  OnDevice device;
  int* const out = device.empty<int>(1);
  const auto refused = [&](dim3 grid, dim3 block, size_t shared, const char* text) {
    BOOST_CHECK_EXCEPTION(gpu::launch(break_a_rule, grid, block, shared, device.stream, 99, out), Error, [&](const Error& error) {
      return std::string(error.what()).find(text) != std::string::npos;
    });
  };
  refused(dim3(1), dim3(1025), 0, "invalid configuration argument");
  refused(dim3(1), dim3(0), 0, "invalid configuration argument");
  refused(dim3(0), dim3(32), 0, "invalid configuration argument");
  refused(dim3(1, 65536), dim3(32), 0, "invalid configuration argument");
  refused(dim3(1), dim3(32), 232449, "invalid argument");
  BOOST_TEST(device.failure() == "");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
