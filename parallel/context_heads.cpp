#include "parallel/context_pass.h"
namespace quire {
void check_head_exchange(int64_t, int64_t, int64_t) {}
Value attend_by_heads(const ContextPass&, Tape&, const Value&, const Value&, const Value&) { fail<UnsupportedError>("context", "heads"); }
}
