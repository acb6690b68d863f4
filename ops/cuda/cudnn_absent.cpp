// A build with CUDA where cuDNN's header was not found.
#include "ops/attention.h"
#include "ops/cuda/attention_cudnn_calls.h"
#include "runtime/error.h"

namespace quire {

namespace {

[[noreturn]] void refuse() {
  fail<UnsupportedError>("attention", "model.attention_backend \"cudnn\": found: a build without cuDNN's header; needed: cudnn.h of version 9 where meson looks for the toolkit's; "
                         "allowed: the backend \"block\"");
}

}  // namespace

void check_cudnn_attention(Rank&, const AttentionOptions&) { refuse(); }
int64_t cudnn_attention_workspace(Rank&, const AttentionOptions&, int64_t, int64_t) { refuse(); }

namespace cudnn_attention {

void forward(Rank&, const AttentionForwardArgs&) { refuse(); }
void backward(Rank&, const AttentionBackwardArgs&) { refuse(); }
void backward_unordered(Rank&, const AttentionBackwardArgs&) { refuse(); }

}  // namespace cudnn_attention

}  // namespace quire
