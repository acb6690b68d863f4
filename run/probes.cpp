#include "run/probes.h"

#include <algorithm>

#include "data/loader.h"
#include "ops/embedding.h"
#include "run/trainer.h"

namespace quire {

namespace {

ProbeInput to_input(HostBatch batch) { return {std::move(batch.tokens), std::move(batch.targets), std::move(batch.documents)}; }

/// The documents' first tokens only, so that at most `tokens` are left and the first document does not take them all.
ProbeInput cut(const ProbeInput& input, int64_t tokens) {
  if (input.documents.tokens() <= tokens) return input;
  ProbeInput result;
  std::vector<int64_t> lengths;
  int64_t left = tokens;
  for (const DocumentRun& run : input.documents.runs()) {
    const int64_t length = std::min({int64_t{run.length}, std::max<int64_t>(tokens / 2, 1), left});
    if (length == 0) break;
    const auto copy = [&](const std::vector<int32_t>& from, std::vector<int32_t>& to) { to.insert(to.end(), from.begin() + run.local, from.begin() + run.local + length); };
    copy(input.tokens, result.tokens);
    copy(input.targets, result.targets);
    lengths.push_back(length);
    left -= length;
  }
  result.documents = Documents::from_lengths(lengths);
  return result;
}

}  // namespace

Value ProbeAttention::attend(Tape& tape, int64_t, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch, const AttentionOptions& options) {
  AttentionOptions own = options;
  own.backend = mode_.backend;
  if (mode_.broken != "dropped") return attention(tape, q, k, v, microbatch.runs, own);
  const std::vector<DocumentRun> one = {{0, 0, static_cast<int32_t>(microbatch.size()), 0}};
  return attention(tape, q, k, v, std::make_shared<const RunList>(one), own);
}

std::vector<double> host_values(const Tensor& tensor) {
  const auto widened = [&]<class T>(T) {
    const std::vector<T> values = tensor.to_vector<T>();
    std::vector<double> result(values.size());
    std::transform(values.begin(), values.end(), result.begin(), [](T x) { return static_cast<double>(static_cast<std::conditional_t<std::is_same_v<T, bf16>, float, T>>(x)); });
    return result;
  };
  switch (tensor.dtype()) {
    case DType::f64: return tensor.to_vector<double>();
    case DType::f32: return widened(float{});
    default: return widened(bf16{});
  }
}

double probe_tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64: return 1e-12;
    case DType::f32: return 1e-5;
    default: return 2e-2;
  }
}

SingleLayout::SingleLayout(Rank& rank, Model& model, const ForwardOptions& forward) : rank_(rank), model_(model), forward_(forward) {}

double SingleLayout::tolerance() const { return probe_tolerance(model_.dtype()); }

std::vector<double> SingleLayout::logits(const ProbeInput& input, const ProbeMode& mode) {
  const Microbatch microbatch = Microbatch::make(rank_, input.tokens, input.targets, input.documents);
  ProbeAttention executor(mode);
  ForwardOptions forward = forward_;
  forward.attention = &executor;
  Tape tape(rank_, false);
  return host_values(model_.logits(rank_, model_.hidden(tape, microbatch, forward).tensor));
}

std::vector<double> SingleLayout::embedding_gradient(const ProbeInput& input, const ProbeMode& mode) {
  const Microbatch microbatch = Microbatch::make(rank_, input.tokens, input.targets, input.documents);
  ProbeAttention executor(mode);
  ForwardOptions forward = forward_;
  forward.attention = &executor;
  Tape before(rank_, false), tape(rank_);
  const Value embedded = tape.leaf(model_.forward(before, {}, microbatch, forward, 0, 1).tensor);
  const Value loss = model_.forward(tape, embedded, microbatch, forward, 1, model_.layers().size());
  const double one = 1;
  const Tensor gradient = Tensor::from<double>(rank_, {1}, std::span(&one, 1));
  tape.backward(std::span(&loss, 1), std::span(&gradient, 1));
  const Tensor result = tape.take_gradient(embedded);
  return result.defined() ? host_values(result) : std::vector<double>(static_cast<size_t>(embedded.tensor.elements()));
}

ProbeRow packed_probe_row(const Config& config, std::shared_ptr<const Corpus> corpus, int64_t tokens) {
  LoaderSettings settings = loader_settings(config);
  settings.prefetch = 0;
  // Rows come in one order, so the first microbatch is the same in a smaller step.
  settings.global_batch_size = settings.microbatch_size;
  Loader loader(corpus, settings);
  std::vector<Row> rows;
  const auto pieces = [&] {
    size_t count = 0;
    for (const Row& row : rows) count += row.size();
    return count;
  };
  for (LoadedStep step = loader.next_step(); !step.empty(); step = loader.next_step()) {
    rows.insert(rows.end(), step.plan.rows.begin(), step.plan.rows.end());
    if (rows.size() == step.plan.rows.size() && pieces() > 1) {
      check_tokens(step.microbatches.at(0).tokens, config.model.vocab_size);
      return {"packed row", cut(to_input(std::move(step.microbatches.at(0))), tokens)};
    }
    if (pieces() > 1) break;
  }
  if (pieces() == 1) rows.push_back(rows.front());  // a corpus of one short document
  ProbeInput input = to_input(load_rows(*corpus, rows));
  check_tokens(input.tokens, config.model.vocab_size);
  return {"packed row", cut(input, tokens)};
}

ProbeRow equal_probe_row(const ModelConfig& model, const ProbeInput& from, int64_t tokens) {
  const int64_t most = std::min({model.max_seq_len, tokens / 2, int64_t{128}});
  const int64_t length = std::max<int64_t>(most / 2 * 2, 1), first = from.documents.runs().at(0).length;
  ProbeInput input;
  for (int64_t i = 0; i < 2 * length; ++i) input.tokens.push_back(from.tokens[static_cast<size_t>(i % length % first)]);
  for (int64_t i = 0; i < 2 * length; ++i) input.targets.push_back(i % length == length - 1 ? ignored_target : input.tokens[static_cast<size_t>(i + 1)]);
  const int64_t lengths[] = {length, length};
  input.documents = Documents::from_lengths(lengths);
  return {"two equal documents", std::move(input)};
}

int64_t influence_reach(const ModelConfig& model) {
  int64_t reach = 0;
  for (int64_t layer = 0; layer < model.n_layers; ++layer) {
    const int64_t window = model.window(layer);
    if (window == 0) return -1;
    reach += window - 1;
  }
  return reach;
}

}  // namespace quire
