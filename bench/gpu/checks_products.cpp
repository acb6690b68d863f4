// Matrix products against literal loops, by each kernel.
#include "bench/gpu/checks.h"
#include "ops/matmul_case.h"
#include "runtime/cuda/device.h"

namespace quire::gpu_report {
namespace {

using namespace quire::test;

Run kernel_named(const std::string& name) {
  for (const Kernel<MatmulArgs>& kernel : cuda_kernels<MatmulArgs>())
    if (kernel.name == name)
      return [&kernel](Rank& rank, const MatmulArgs& args) {
        BOOST_REQUIRE(kernel.can_run(args));
        kernel.run(rank, args);
      };
  BOOST_FAIL("no kernel " << name);
  return {};
}

struct Sizes {
  int64_t m, n, k;
};

template <class T, class C>
void check_products(Rank& rank, const Run& kernel, std::initializer_list<Sizes> all, const Spacing& spacing) {
  std::mt19937_64 random(11);
  for (const Form& form : forms)
    for (const Sizes& s : all) {
      Operands<T, C> operands(random, s.m, s.n, s.k, form, random() % 2 == 0, spacing);
      operands.run(kernel, rank);
      const std::vector<C> first = operands.c;
      BOOST_TEST(operands.accurate(), form.name << " m " << s.m << " n " << s.n << " k " << s.k);
      BOOST_TEST(operands.border_untouched(), form.name << " m " << s.m << " n " << s.n << " k " << s.k);
      operands.run(kernel, rank);
      BOOST_TEST(same_bits(operands.c, first), form.name << " m " << s.m << " n " << s.n << " k " << s.k << ", again");
    }
}

/// `rows_contiguous`: not where A is transposed, as a kernel that reads lines of 16 bytes can not begin at any row of it.
template <class T, class C>
void check_rows(Rank& rank, const Run& kernel, const Sizes& s, const Spacing& spacing, bool rows_contiguous) {
  std::mt19937_64 random(12);
  for (const Form& form : forms)
    if (!rows_contiguous || !form.a_transposed) BOOST_TEST((rows_keep_their_bits<T, C>(kernel, rank, random, s.m, s.n, s.k, form, false, spacing)), form.name);
}

}  // namespace

std::vector<CheckCase> product_checks(Rank& device, bool tiny) {
  std::vector<CheckCase> cases;
  for (const std::string name : {"cublaslt", "wgmma", "mma", "tiles"}) {
    if (name == "wgmma" && cuda(device).compute_capability() != 90) continue;
    const Spacing spacing = name == "wgmma" || name == "cublaslt" ? aligned_spacing : odd_spacing;
    cases.push_back({"products, " + name, [=](Rank& rank) {
                       const Run kernel = kernel_named(name);
                       if (tiny) {
                         check_products<bf16, bf16>(rank, kernel, {{20, 70, 40}}, spacing);
                         check_products<bf16, float>(rank, kernel, {{20, 70, 40}}, spacing);
                         return;
                       }
                       check_products<bf16, bf16>(rank, kernel, {{300, 520, 200}, {129, 257, 1100}, {1, 130, 70}}, spacing);
                       check_products<bf16, float>(rank, kernel, {{260, 384, 320}}, spacing);
                       if (name == "cublaslt" || name == "tiles") check_products<float, float>(rank, kernel, {{130, 200, 150}}, spacing);
                     }});
    cases.push_back({"products, " + name + ", rows alone to the bit", [=](Rank& rank) {
                       check_rows<bf16, bf16>(rank, kernel_named(name), tiny ? Sizes{30, 40, 40} : Sizes{500, 320, 256}, spacing, name == "wgmma");
                     }});
  }
  return cases;
}

}  // namespace quire::gpu_report
