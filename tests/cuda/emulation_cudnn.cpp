// The emulated cuDNN itself: what it refuses, and how its operations compute.
#include "check.h"
#include "cuda/cudnn_there.h"
#include "cuda/on_device.h"
#include "ops/cuda/attention_cudnn_graphs.h"

namespace quire::test {
namespace {

using namespace cudnn_attention;
using cudnn_graph::Binding;

/// Attention in two documents, of 5 and 3 tokens: all values are ones.
struct Documents2 : OnDevice {
  static constexpr int64_t width = 64;
  const bool there = has_cudnn();
  const cudnn_attention::CudnnFamily family{.heads = 1, .kv_heads = 1, .head_dim = width, .longest = 128, .places = 2, .q_row = width, .k_row = width, .v_row = width, .out_row = width,
                                            .dout_row = 0, .backward = false, .unordered = false};
  cudnnHandle_t handle = nullptr;
  const std::vector<uint16_t> ones = std::vector<uint16_t>(8 * width, 0x3f80);
  uint16_t* const q = upload(ones);
  uint16_t* const out = empty<uint16_t>(8 * width);
  float* const lse = empty<float>(8);
  int64_t* const offsets = upload(std::vector<int64_t>{0, 5 * width, 8 * width, 0});
  int64_t* const lse_offsets = upload(std::vector<int64_t>{0, 5, 8, 0});
  int32_t* const lengths = upload(std::vector<int32_t>{5, 3, 0, 0});
  const float scale = 1, infinity = -std::numeric_limits<float>::infinity();

  Documents2() {
    if (!there) return;
    cudnn().cudnnCreate(&handle);
    cudnn().cudnnSetStream(handle, stream);
  }
  ~Documents2() {
    if (there) cudnn().cudnnDestroy(handle);
  }

  std::vector<Binding> bindings() const {
    std::vector<Binding> all = {{q_id, q}, {k_id, q}, {v_id, q}, {out_id, out}, {lse_id, lse}, {scale_id, &scale}, {infinity_id, &infinity}, {query_lengths_id, lengths}, {key_lengths_id, lengths}};
    for (const int64_t id : {q_id, k_id, v_id, out_id}) all.push_back({offsets_id + id, offsets});
    all.push_back({offsets_id + lse_id, lse_offsets});
    return all;
  }
  std::vector<Binding> with(std::map<int64_t, const void*> changed) const {
    std::vector<Binding> all = bindings();
    for (Binding& each : all)
      if (changed.contains(each.id)) each.data = changed.at(each.id);
    return all;
  }
  /// What the emulation says of this call, in its return or in the stream; "" for nothing.
  std::string said(const std::vector<Binding>& all, void* workspace) {
    try {
      const std::vector<cudnn_graph::Engine> engines = cudnn_graph::engines(handle, cudnn_forward_graph(family));
      if (engines.empty()) return "no engine: " + cudnn_reason();
      execute(handle, compile(handle, engines.front()), all, workspace);
    } catch (const DeviceError& error) {
      return error.what();
    }
    const std::string text = failure();
    emulation::recover();
    return text;
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cuda_emulation_cudnn, Documents2)

BOOST_AUTO_TEST_CASE(what_is_missing_or_misplaced_is_named) {
  if (!there) return;
  char* const workspace = empty<char>((1 << 16) + 1);
  BOOST_TEST_REQUIRE(said(bindings(), workspace) == "");
  for (const uint16_t value : download(out, 8 * width)) BOOST_REQUIRE(value == 0x3f80);  // the mean of ones
  const std::vector<float> sums = download(lse, 8);
  for (size_t i = 0; i < 8; ++i) BOOST_TEST(std::abs(sums[i] - (64 + std::log(i < 5 ? i + 1.0 : i - 4.0))) < 1e-5);

  const auto holds = [](const std::string& text, const char* part) {
    BOOST_TEST(text.find(part) != std::string::npos, "'" << text << "' lacks '" << part << "'");
  };
  std::vector<Binding> fewer = bindings();
  fewer.erase(fewer.begin());
  holds(said(fewer, workspace), "tensor 1 is not given");
  std::vector<Binding> more = bindings();
  more.push_back({999, q});
  holds(said(more, workspace), "tensor 999 is none of the graph's");
  more.back().id = q_id;
  holds(said(more, workspace), "tensor 1 is given twice");
  const std::vector<uint16_t> host(8 * width);
  holds(said(with({{q_id, host.data()}}), workspace), "tensor 1 lies on the wrong side");
  holds(said(with({{scale_id, q}}), workspace), "lies on the wrong side");
  holds(said(with({{q_id, q + 1}}), workspace), "tensor 1 is not aligned");
  holds(said(bindings(), nullptr), "a workspace that is too small");
  holds(said(bindings(), workspace + 2), "a workspace that is too small");
}

BOOST_AUTO_TEST_CASE(memory_offsets_and_lengths_are_checked) {
  if (!there) return;
  char* const workspace = empty<char>(1 << 16);
  const auto tables = [&](const std::vector<int64_t>& begins, const std::vector<int32_t>& tokens, const std::vector<int32_t>& keys) {
    return said(with({{query_lengths_id, upload(tokens)}, {key_lengths_id, upload(keys)}, {offsets_id + q_id, upload(begins)}}), workspace);
  };
  const int64_t w = width;
  const std::vector<int32_t> right = {5, 3, 0, 0};
  BOOST_TEST(tables({0, 5 * w, 8 * w}, right, right) == "");
  BOOST_TEST(tables({0, 5 * w, 8 * w}, {0, 3, 0, 0}, {0, 3, 0, 0}) == "");
  const auto refused = [&](const std::vector<int64_t>& begins, const std::vector<int32_t>& tokens, const std::vector<int32_t>& keys, const char* part) {
    const std::string text = tables(begins, tokens, keys);
    BOOST_TEST(text.find(part) != std::string::npos, "'" << text << "' lacks '" << part << "'");
  };
  refused({0, 6 * w, 8 * w}, right, right, "offsets leave a document of 3 tokens 128 elements");
  refused({0, 5 * w + 4, 9 * w}, right, right, "an offset breaks the alignment");
  refused({0, 5 * w, 400 * w}, {5, 300, 0, 0}, {5, 300, 0, 0}, "longer than the graph's longest");
  refused({0, 6 * w, 9 * w}, right, right, "tensor 1 ends before its last element");
  refused({0, 5 * w, 8 * w}, right, {5, 2, 0, 0}, "lengths of queries and of keys differ");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
