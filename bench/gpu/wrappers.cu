// The wrappers of gpu.h on fixed inputs.
#include <gpu.h>

#include "bench/gpu/wrapper_inputs.h"
#include "bench/gpu/wrappers.h"
#include "runtime/cuda/launch.h"

namespace quire::gpu_report {
namespace {

constexpr int warp = 32;

/// Each thread rounds two f32 to bf16, alone and as a pair, and widens them again.
__global__ void convert(const uint32_t* in, uint32_t* out) {
  const int i = static_cast<int>(threadIdx.x);
  const float low = __uint_as_float(in[2 * i]), high = __uint_as_float(in[2 * i + 1]);
  const gpu::bf16 alone = gpu::from_float<gpu::bf16>(low);
  const uint32_t pair = gpu::pack_bf16(low, high);
  out[4 * i] = pair;
  out[4 * i + 1] = __float_as_uint(gpu::bf16_low(pair));
  out[4 * i + 2] = __float_as_uint(gpu::bf16_high(pair));
  out[4 * i + 3] = __float_as_uint(gpu::to_float(alone));
}

/// Half of the lanes copy 16 bytes each, in an order of their own; the others fill with zeros.
__global__ void copy(const uint32_t* in, uint32_t* out) {
  DYNAMIC_SMEM(memory);
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t* const words = reinterpret_cast<uint32_t*>(memory);
  for (int i = 0; i < 4; ++i) words[4 * lane + i] = 0xababababu;
  __syncthreads();
  gpu::cp_async16(gpu::smem_addr(memory) + static_cast<uint32_t>(lane) * 16, in + 4 * (lane ^ 5), lane % 2 == 0 ? 16 : 0);
  gpu::cp_async_commit();
  gpu::cp_async_wait<0>();
  __syncthreads();
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = words[4 * (warp - 1 - lane) + i];
}

/// Four matrices, whose rows lie in an order that lanes give by their addresses.
__global__ void load_matrices(const uint32_t* in, uint32_t* out, bool transposed) {
  DYNAMIC_SMEM(memory);
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t* const words = reinterpret_cast<uint32_t*>(memory);
  for (int i = 0; i < 4; ++i) words[4 * lane + i] = in[4 * lane + i];
  __syncthreads();
  const uint32_t row = gpu::smem_addr(memory) + static_cast<uint32_t>(lane ^ 3) * 16;
  uint32_t registers[4];
  if (transposed) gpu::ldmatrix_x4_trans(registers, row);
  else gpu::ldmatrix_x4(registers, row);
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = registers[i];
}

/// Registers as they are: what each lane has of a and b, and gets of d.
__global__ void multiply(const uint32_t* a, const uint32_t* b, uint32_t* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const uint32_t left[4] = {a[4 * lane], a[4 * lane + 1], a[4 * lane + 2], a[4 * lane + 3]};
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = static_cast<float>(lane) * 0.5f - static_cast<float>(i);
  gpu::mma_16816(d, left, b[2 * lane], b[2 * lane + 1]);
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = __float_as_uint(d[i]);
}

/// What lanes tell one another.
__global__ void exchange(const uint32_t* in, uint32_t* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const uint32_t word = in[lane];
  out[4 * lane] = __shfl_xor_sync(0xffffffffu, word, 9);
  out[4 * lane + 1] = __shfl_sync(0xffffffffu, word, lane / 3);
  out[4 * lane + 2] = __ballot_sync(0xffffffffu, word & 1);
  out[4 * lane + 3] = __shfl_down_sync(0xffffffffu, word, 7) + __shfl_up_sync(0xffffffffu, word, 3);
}

/// The functions that kernels take from CUDA's library, which rounds them as it likes: of 2^x, e^x, log x and 1 / sqrt x.
__global__ void functions(const uint32_t* in, uint32_t* out, int which) {
  const int i = static_cast<int>(threadIdx.x);
  const float x = static_cast<float>(in[i]) * 0x1p-32f;
  const float y = which == 0 ? exp2f(-20.0f * x) : which == 1 ? expf(-20.0f * x) : which == 2 ? logf(x * 1000.0f + 0.001f) : 1.0f / sqrtf(x + 0.001f);
  out[i] = __float_as_uint(y);
}

std::vector<int32_t> made_words(uint32_t stream, int64_t count) {
  std::vector<int32_t> words;
  for (int64_t i = 0; i < count; ++i) words.push_back(std::bit_cast<int32_t>(made_word(stream, static_cast<uint32_t>(i))));
  return words;
}

/// f32 of all magnitudes, ties of bf16 and the largest that stay finite among them; no NaN, whose bits are nobody's promise.
std::vector<int32_t> numbers_to_round() {
  std::vector<int32_t> words = made_words(1, 2 * warp);
  for (int32_t& word : words)
    if ((std::bit_cast<uint32_t>(word) & 0x7f800000u) == 0x7f800000u) word ^= 0x40000000;
  const uint32_t chosen[] = {0x3f808000u, 0x3f818000u, 0x3f807fffu, 0x3f808001u, 0x00000001u, 0x80008000u, 0x7f7fffffu, 0x7f800000u, 0xff800000u, 0x80000000u};
  for (size_t i = 0; i < std::size(chosen); ++i) words[i] = std::bit_cast<int32_t>(chosen[i]);
  return words;
}

constexpr size_t shared_bytes = 1024;

}  // namespace

std::vector<WrapperCase> wrapper_cases() {
  std::vector<WrapperCase> cases;
  cases.push_back({"bf16", [](Rank& rank) {
                     const Tensor in = words_on(rank, numbers_to_round()), out = unwritten_words(rank, 4 * warp);
                     gpu::launch(convert, dim3(1), dim3(warp), 0, stream_of(rank), words_of(in), words_of(out));
                     return golden("bf16", 0, out);
                   }});
  cases.push_back({"cp_async16", [](Rank& rank) {
                     const Tensor in = words_on(rank, made_words(2, 4 * warp)), out = unwritten_words(rank, 4 * warp);
                     gpu::launch(copy, dim3(1), dim3(warp), shared_bytes, stream_of(rank), words_of(in), words_of(out));
                     return golden("cp_async16", 0, out);
                   }});
  for (const bool transposed : {false, true}) {
    const std::string name = transposed ? "ldmatrix_x4_trans" : "ldmatrix_x4";
    cases.push_back({name, [name, transposed](Rank& rank) {
                       const Tensor in = words_on(rank, made_words(3, 4 * warp)), out = unwritten_words(rank, 4 * warp);
                       gpu::launch(load_matrices, dim3(1), dim3(warp), shared_bytes, stream_of(rank), words_of(in), words_of(out), transposed);
                       return golden(name, 0, out);
                     }});
  }
  for (const bool exact : {true, false}) {
    const std::string name = exact ? "mma_16816" : "mma_16816_rounding";
    cases.push_back({name, [name, exact](Rank& rank) {
                       const Tensor a = words_on(rank, exact ? exact_pairs(4, 4 * warp) : rough_pairs(4, 4 * warp)), b = words_on(rank, exact ? exact_pairs(5, 2 * warp) : rough_pairs(5, 2 * warp)),
                                    out = unwritten_words(rank, 4 * warp);
                       gpu::launch(multiply, dim3(1), dim3(warp), 0, stream_of(rank), words_of(a), words_of(b), words_of(out));
                       return golden(name, exact ? 0 : 1e-5, out);
                     }});
  }
  cases.push_back({"shuffles", [](Rank& rank) {
                     const Tensor in = words_on(rank, made_words(6, warp)), out = unwritten_words(rank, 4 * warp);
                     gpu::launch(exchange, dim3(1), dim3(warp), 0, stream_of(rank), words_of(in), words_of(out));
                     return golden("shuffles", 0, out);
                   }});
  const char* const names[] = {"exp2f", "expf", "logf", "rsqrtf"};
  for (int which = 0; which < 4; ++which) {
    const std::string name = names[which];
    cases.push_back({name, [name, which](Rank& rank) {
                       const Tensor in = words_on(rank, made_words(7, 2 * warp)), out = unwritten_words(rank, 2 * warp);
                       gpu::launch(functions, dim3(1), dim3(2 * warp), 0, stream_of(rank), words_of(in), words_of(out), which);
                       return golden(name, 1e-6, out);
                     }});
  }
  return cases;
}

Goldens run_wrappers(Rank& rank, const std::function<void(const Golden&)>& found) {
  Goldens goldens;
  const auto run = [&](const std::vector<WrapperCase>& cases) {
    for (const WrapperCase& each : cases) {
      goldens.outputs.push_back(each.run(rank));
      if (found) found(goldens.outputs.back());
    }
  };
  run(wrapper_cases());
  if (compute_capability_of(rank) == 90) run(hopper_wrapper_cases());
  return goldens;
}

}  // namespace quire::gpu_report
