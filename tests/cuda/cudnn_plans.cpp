// Plans of cuDNN's attention: the real library makes them for an H200, for every family that is offered; engines that are recorded and chosen again.
#include "cuda/cudnn_case.h"
#include "ops/cuda/attention_cudnn_graphs.h"
#include "run/attention_workspace.h"
#include "run/memory_case.h"
#include "runtime/cuda/device.h"
#include "tier.h"

namespace quire::test {
namespace {

using cudnn_attention::CudnnFamily;
using Choices = Accelerator::Choices;

struct PlanTest : DeviceTest {
  const bool there = has_cudnn();
  cudnnHandle_t handle = nullptr;
  PlanTest() {
    if (there) cudnn().cudnnCreate(&handle);
  }
  ~PlanTest() {
    if (there) cudnn().cudnnDestroy(handle);
  }
  void compile_plans() {
    emulation::Settings settings = emulation::settings();
    settings.cudnn_plans = true;
    emulation::set(settings);
  }
  std::vector<cudnn_graph::Engine> engines(const CudnnFamily& family) const {
    return cudnn_graph::engines(handle, family.backward ? cudnn_backward_graph(family) : cudnn_forward_graph(family));
  }
};

CudnnFamily family(int64_t head_dim, int64_t group, int64_t longest, bool backward, bool unordered) {
  const int64_t heads = 8, kv_heads = heads / group;
  return {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .longest = longest, .places = std::max<int64_t>(batch_tokens / longest, 1), .q_row = heads * head_dim,
          .k_row = kv_heads * head_dim, .v_row = kv_heads * head_dim, .out_row = heads * head_dim, .dout_row = backward ? heads * head_dim : 0, .backward = backward,
          .unordered = unordered};
}

std::string named(const CudnnFamily& f) {
  return fmt::format("{}{}, heads of {}, {} over {}, up to {} tokens", f.backward ? "backward" : "forward", f.unordered ? " unordered" : "", f.head_dim, f.heads, f.kv_heads, f.longest);
}

Choices choices_of(Rank& rank) { return rank.accelerator()->choices(); }

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cuda_cudnn_plans, PlanTest)

BOOST_AUTO_TEST_CASE(every_family_has_engines) {
  if (!there) return;
  for (const int64_t head_dim : {64, 128})
    for (const int64_t group : {1, 2, 4, 8})
      for (const int64_t longest : all_tier() ? std::vector<int64_t>{128, 512, 4096, 32768} : std::vector<int64_t>{128, 4096})
        for (const auto& [backward, unordered] : {std::pair{false, false}, {true, false}, {true, true}}) {
          const CudnnFamily f = family(head_dim, group, longest, backward, unordered);
          BOOST_TEST(!engines(f).empty(), named(f) << ": " << cudnn_reason());
        }
}

// Compiling takes a second of a plan: two families, or all of them.
BOOST_AUTO_TEST_CASE(plans_compile) {
  if (!there) return;
  compile_plans();
  std::vector<std::pair<int64_t, int64_t>> shapes = {{64, 4}, {128, 1}};
  if (all_tier()) shapes = {{64, 1}, {64, 2}, {64, 4}, {64, 8}, {128, 1}, {128, 2}, {128, 4}, {128, 8}};
  for (const auto& [head_dim, group] : shapes)
    for (const int64_t longest : all_tier() ? std::vector<int64_t>{128, 2048, 16384} : std::vector<int64_t>{2048})
      for (const auto& [backward, unordered] : {std::pair{false, false}, {true, false}, {true, true}}) {
        if (unordered && group == 1 && !all_tier()) continue;
        const CudnnFamily f = family(head_dim, group, longest, backward, unordered);
        const std::vector<cudnn_graph::Engine> all = engines(f);
        BOOST_TEST_REQUIRE(!all.empty(), named(f));
        const cudnn_graph::Plan plan = compile(handle, all.front());
        BOOST_TEST_REQUIRE(plan.plan != nullptr, named(f) << ": " << cudnn_reason());
        // That sums of queries' gradients are taken in one order shows in the room for all of ds (bf16), which they are made of. Without, they meet in memory.
        const int64_t ds = f.places * f.heads * longest * longest * 2;
        if (f.backward) BOOST_TEST((plan.workspace_bytes >= ds) == !unordered, named(f) << ": " << plan.workspace_bytes << " bytes of workspace, ds has " << ds);
      }
}

// What plans of memory count for a run that attends by cuDNN.
BOOST_AUTO_TEST_CASE(the_workspace_of_a_run_is_known_before_it_attends) {
  if (!there) return;
  const AttentionOptions options{.heads = 2, .kv_heads = 1, .head_dim = 64, .backend = AttentionBackend::cudnn};
  const AttentionCase c = cudnn_case(random, std::vector<int64_t>{100, 128, 30, 7, 1}, 2, 1, 64);
  const int64_t counted = attention_workspace(rank, options, DType::bf16, 128, c.tokens());
  Rank other(device_rank());
  cudnn_both(other, c);
  const int64_t tables = 1 << 14;  // of offsets and lengths, and what lies between
  BOOST_TEST(other.stack().peak() >= counted);
  BOOST_TEST(other.stack().peak() <= counted + tables);
  AttentionOptions others = options;
  others.window = 5;
  BOOST_TEST(attention_workspace(rank, others, DType::bf16, 128, c.tokens()) == 0);  // a window is block's
  others = {.heads = 2, .kv_heads = 1, .head_dim = 64};
  BOOST_TEST(attention_workspace(rank, others, DType::bf16, 128, c.tokens()) == 0);
  // As compiled: all of ds, which grows with the square of the longest document, unless gradients may be summed in any order.
  compile_plans();
  Rank ordered(device_rank()), unordered(RankOptions{.device = {DeviceKind::cuda, 0}, .kernels = {{"attention_backward", "cudnn_unordered"}}});
  const int64_t longest = 16384, ds = options.heads * longest * longest * 2;
  BOOST_TEST(attention_workspace(ordered, options, DType::bf16, longest - 100, longest) > ds);
  BOOST_TEST(attention_workspace(unordered, options, DType::bf16, longest - 100, longest) < ds / 8);
}

BOOST_AUTO_TEST_CASE(the_advice_where_memory_lacks_counts_the_workspace) {
  if (!there) return;
  compile_plans();
  const Scratch scratch;
  const auto config_with = [&](const std::string& backend) {
    return memory_config(scratch, "run", {"model.head_dim=64", "model.max_seq_len=2048", "train.seq_len=2048", "train.global_batch_size=1", "train.microbatch_size=1", "train.mixed_precision=bf16", "run.device=cuda",
                                          "model.attention_backend=" + backend});
  };
  const Config cudnn = config_with("cudnn"), block = config_with("block");
  constexpr int64_t longest = 2048;
  const int64_t workspace = attention_workspace(rank, cudnn, longest);
  Config least = cudnn;
  least.train.activation_checkpointing = "full";
  int64_t needed = 1 << 16;
  while (!fits_memory(least, longest, needed)) needed += needed / 16;
  BOOST_TEST_REQUIRE(needed < workspace / 2);
  // All of it would do for the tensors and for what other kernels take, but not for cuDNN's as well.
  const int64_t limit = needed + workspace / 2;
  Rank limited(RankOptions{.device = {DeviceKind::cuda, 0}, .memory_limit = limit}), wide(RankOptions{.device = {DeviceKind::cuda, 0}, .memory_limit = needed + workspace * 2});
  const std::string fits = "; what would fit: train.activation_checkpointing=";
  BOOST_TEST(memory_advice(limited, block, longest).starts_with(fits));
  BOOST_TEST(memory_advice(limited, cudnn, longest).find("makes it fit") != std::string::npos);
  BOOST_TEST(memory_advice(wide, cudnn, longest).starts_with(fits));
}

BOOST_AUTO_TEST_CASE(engines_are_recorded_and_chosen_again) {
  if (!there) return;
  const AttentionCase c = cudnn_case(random, std::vector<int64_t>{20, 30}, 2, 1, 64);
  const AttentionResult result = cudnn_both(rank, c);
  const Choices made = choices_of(rank);
  const std::string forward_key = "attention.forward.heads=2.kv_heads=1.head_dim=64.longest=128", backward_key = "attention.backward.heads=2.kv_heads=1.head_dim=64.longest=128";
  BOOST_TEST_REQUIRE((made.size() == 2u && made.contains(forward_key) && made.contains(backward_key)));
  const std::string prefix = fmt::format("library={} device=90 engine=", cudnn().cudnnGetVersion());
  BOOST_TEST(made.at(forward_key).starts_with(prefix), made.at(forward_key));

  // Another engine than the first is recorded where that can not be compiled, and chosen again though it could be.
  emulation::fail_call("plan", 1, CUDNN_STATUS_NOT_SUPPORTED);
  Rank second(device_rank());
  cudnn_both(second, c);
  const Choices recorded = choices_of(second);
  BOOST_TEST(recorded.at(forward_key) != made.at(forward_key));
  BOOST_TEST(recorded.at(backward_key) == made.at(backward_key));
  Rank resumed(device_rank());
  resumed.accelerator()->replay(recorded);
  const AttentionResult again = cudnn_both(resumed, c);
  BOOST_TEST((choices_of(resumed) == recorded));
  BOOST_TEST(resumed.accelerator()->take_notes().empty());
  BOOST_TEST(same_result(again, result));

  // Other strides of the same family keep to the engine.
  AttentionCase spaced = c;
  spaced.gap = 8;
  cudnn_both(resumed, spaced);
  BOOST_TEST((choices_of(resumed) == recorded));
}

BOOST_AUTO_TEST_CASE(records_of_another_library_or_device_are_refused_with_a_note) {
  if (!there) return;
  const AttentionCase c = cudnn_case(random, std::vector<int64_t>{20}, 1, 1, 64);
  cudnn_both(rank, c);
  const Choices made = choices_of(rank);
  const std::string key = made.rbegin()->first, good = made.rbegin()->second;
  for (const std::string& bad : {"library=90100" + good.substr(good.find(' ')), good + "1", std::string("nonsense"), std::string()}) {
    Rank other(device_rank());
    other.accelerator()->replay({{key, bad}});
    cudnn_both(other, c);
    BOOST_TEST((choices_of(other) == made), bad);
    const std::vector<std::string> notes = other.accelerator()->take_notes();
    BOOST_TEST_REQUIRE(notes.size() == 1u, bad);
    for (const std::string& part : {key, "`" + bad + "`", std::string("last bits")}) BOOST_TEST(notes[0].find(part) != std::string::npos, notes[0]);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
