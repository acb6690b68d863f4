// The layers of the decoder.
#pragma once
#include "model/model.h"

namespace quire {

class EmbeddingLayer final : public Layer {
 public:
  explicit EmbeddingLayer(Parameter& table) : table_(table) {}
  const std::string& name() const override { return name_; }
  Value forward(Tape& tape, const Value& x, const Microbatch& microbatch, const ForwardOptions& options) override;
  std::vector<Parameter*> parameters() override { return {&table_}; }

 private:
  std::string name_ = "embedding";
  Parameter& table_;
};

/// x + attention(norm(x)), then + ffn(norm(.)).
class DecoderLayer final : public Layer {
 public:
  DecoderLayer(ParameterSet& parameters, const ModelConfig& config, int64_t index, const RotaryTable& rotary);
  const std::string& name() const override { return name_; }
  Value forward(Tape& tape, const Value& x, const Microbatch& microbatch, const ForwardOptions& options) override;
  std::vector<Parameter*> parameters() override;

 private:
  Value attention_block(Tape& tape, const Value& x, const Microbatch& microbatch, AttentionExecutor& executor);
  Value ffn_block(Tape& tape, const Value& normed);

  std::string name_;
  int64_t index_;
  double eps_;
  AttentionOptions options_;
  const RotaryTable& rotary_;
  Parameter *attention_norm_, *q_, *k_, *v_, *o_, *q_norm_ = nullptr, *k_norm_ = nullptr, *ffn_norm_, *gate_, *up_, *down_;
};

class NormLayer final : public Layer {
 public:
  NormLayer(Parameter& gain, double eps) : gain_(gain), eps_(eps) {}
  const std::string& name() const override { return name_; }
  Value forward(Tape& tape, const Value& x, const Microbatch& microbatch, const ForwardOptions& options) override;
  std::vector<Parameter*> parameters() override { return {&gain_}; }

 private:
  std::string name_ = "norm";
  Parameter& gain_;
  double eps_;
};

/// Hidden states to the summed loss.
class HeadLayer final : public Layer {
 public:
  HeadLayer(Parameter& weight, int use) : weight_(weight), use_(use) {}
  const std::string& name() const override { return name_; }
  Value forward(Tape& tape, const Value& x, const Microbatch& microbatch, const ForwardOptions& options) override;
  std::vector<Parameter*> parameters() override { return {&weight_}; }

 private:
  std::string name_ = "head";
  Parameter& weight_;
  int use_;
};

}  // namespace quire
