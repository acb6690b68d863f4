#include "run/attention_workspace.h"

#include <algorithm>

#include "ops/attention.h"
#include "run/pipeline_report.h"
#include "run/rank_options.h"
#include "runtime/accelerator.h"
#include "runtime/error.h"

namespace quire {

namespace {

bool any_by_cudnn(const Config& config) {
  for (int64_t layer = 0; layer < config.model.n_layers; ++layer)
    if (attends_by_cudnn(config, layer)) return true;
  return false;
}

}  // namespace

bool attends_by_cudnn(const Config& config, int64_t layer) {
  return config.model.attention_backend == "cudnn" && config.model.window(layer) == 0;
}

int64_t attention_workspace(Rank& rank, const Config& config, int64_t longest) {
  if (!any_by_cudnn(config)) return 0;
  const ModelConfig model = config.model.resolved();
  return attention_workspace(rank, {.heads = model.n_heads, .kv_heads = model.n_kv_heads, .head_dim = model.head_dim, .backend = AttentionBackend::cudnn}, config.dtype(),
                             std::min(longest, config.train.seq_len), config.train.microbatch_size * config.train.seq_len);
}

PlannedWorkspace planned_workspace(const Config& config, std::span<const Documents> microbatches) {
  if (!any_by_cudnn(config)) return {};
  int64_t longest = 1;
  for (const Documents& documents : microbatches)
    for (const DocumentRun& run : documents.runs()) longest = std::max<int64_t>(longest, run.length);
  PlannedWorkspace workspace;
  try {
    const CudaAvailability cuda = cuda_availability();
    if (cuda.devices == 0) throw UnsupportedError(cuda.reason);
    RankOptions options = rank_options(config);
    options.device = {DeviceKind::cuda, 0};
    Rank rank(options);
    workspace.bytes = attention_workspace(rank, config, longest);
    workspace.note = fmt::format("of the buffers {} are cuDNN's while it attends, for documents of up to {} tokens, as the library plans for {}", memory_text(workspace.bytes), longest,
                                 rank.accelerator()->description());
  } catch (const Error& error) {
    workspace.known = false;
    workspace.note = fmt::format("not counted: what cuDNN takes while it attends, which grows with the square of the longest document (here {} tokens) unless run.kernels has "
                                 "\"attention_backward=cudnn_unordered\"; it can not be asked here: {}", longest, error.what());
  }
  return workspace;
}

}  // namespace quire
