// What can be broken on purpose between context-parallel ranks: controls of selfcheck and of tests.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "parallel/context_attention.h"

namespace quire {

/// `dropped`: the microbatch is one document for attention and exchange alike. `ring_step`: own keys are masked rightly, received ones as if the microbatch were
/// one document ("causal"). `dkv_owner`: gradients of received keys and values go to other tokens than theirs. nullptr for other names.
std::unique_ptr<ContextTamper> make_context_tamper(const std::string& broken);

/// From now on the rank does with a microbatch what it would do if these were its boundaries.
void take_for(ContextWork& work, const Documents& whole);

/// So many tokens as one document.
Documents one_document(int64_t tokens);

/// The names among them that an exchange can have and that let documents leak: `heads` receives in no steps.
std::vector<std::string> context_leaks(ContextExchange exchange);

}  // namespace quire
