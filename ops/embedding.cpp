#include "ops/embedding.h"

#include "ops/kernels.h"
#include "runtime/dispatch.h"

namespace quire {

namespace {

class EmbeddingNode final : public Node {
 public:
  EmbeddingNode(const Tensor& tokens, Parameter& table, int use) : table_(table), use_(use), tokens_(save(tokens, For::input_gradient)) {}
  std::string_view name() const override { return "embedding"; }

  void input_gradient(Tape& tape, const Tensor& grad) override {
    const Tensor& tokens = saved(tokens_);
    dispatch(tape.rank(), EmbeddingBackwardArgs{grad.dtype(), tokens.elements(), grad.size(1), table_.value.size(0), tokens.data<int32_t>(), grad.raw(),
                                                table_.gradients.at(static_cast<size_t>(use_)).raw()});
    tape.parameter_done(table_, use_);
  }

 private:
  Parameter& table_;
  int use_, tokens_;
};

}  // namespace

Value embedding(Tape& tape, const Tensor& tokens, Parameter& table, int use) {
  if (tokens.shape().dims() != 1 || table.value.shape().dims() != 2)
    fail<ShapeError>("embedding", "tokens {} with {} {}", describe(tokens), table.name, describe(table.value));
  const int64_t width = table.value.size(1);
  const Tensor y = Tensor::empty(tape.rank(), {tokens.elements(), width}, table.value.dtype());
  dispatch(tape.rank(), EmbeddingForwardArgs{table.value.dtype(), tokens.elements(), width, table.value.size(0), tokens.data<int32_t>(), table.value.raw(), y.raw()});
  if (!tape.must_record({}, true)) return tape.constant(y);
  return tape.record(std::make_unique<EmbeddingNode>(tokens, table, use), {}, y);
}

void check_tokens(std::span<const int32_t> tokens, int64_t vocabulary) {
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= vocabulary)
      fail<DataError>("tokens", "token {} has id {}; allowed: 0 to {} (the model's vocabulary)", i, tokens[i], vocabulary - 1);
}

}  // namespace quire
