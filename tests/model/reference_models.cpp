// Models and references made outside this project (tests use them where they are present, beside the checkout): logits, losses, gradients and
// ten AdamW steps of stories260K, logits of a small Llama in one file and in shards.
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "check.h"
#include "files.h"
#include "model/huggingface.h"
#include "model/model.h"
#include "model/optimizer.h"
#include "ops/linear_cross_entropy.h"

using namespace quire;
using namespace quire::test;
using nlohmann::json;

namespace {

json read_json(const std::string& path) { return json::parse(read_text(disk(), path)); }

std::unique_ptr<Model> load(Rank& rank, const HuggingFaceModel& source, DType dtype) {
  auto model = std::make_unique<Model>(rank, source.config().model, dtype);
  for (Parameter& p : model->parameters()) source.read(p.name, p.master.dtype(), p.master.raw());
  model->parameters().values_from_masters(rank);
  return model;
}

/// A row of documents: each token but a document's last has the next as its target.
Microbatch row_of(Rank& rank, const std::vector<std::vector<int32_t>>& documents) {
  std::vector<int32_t> tokens, targets;
  std::vector<int64_t> lengths;
  for (const std::vector<int32_t>& document : documents) {
    tokens.insert(tokens.end(), document.begin(), document.end());
    targets.insert(targets.end(), document.begin() + 1, document.end());
    targets.push_back(ignored_target);
    lengths.push_back(static_cast<int64_t>(document.size()));
  }
  return Microbatch::make(rank, tokens, targets, Documents::from_lengths(lengths));
}

std::vector<std::vector<int32_t>> packed_documents(const json& reference) {
  std::vector<std::vector<int32_t>> documents;
  const auto ids = reference.at("ids").get<std::vector<int32_t>>(), doc_ids = reference.at("doc_ids").get<std::vector<int32_t>>();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i == 0 || doc_ids[i] != doc_ids[i - 1]) documents.emplace_back();
    documents.back().push_back(ids[i]);
  }
  return documents;
}

double nats(Rank& rank, Model& model, const Microbatch& microbatch) {
  Tape tape(rank, false);
  return model.loss(tape, microbatch).tensor.to_vector<double>().at(0);
}

/// Mean loss of the packed row with gradients in the parameters.
double mean_loss_with_gradients(Rank& rank, Model& model, const Microbatch& microbatch, Tensor& sum) {
  model.parameters().zero_gradients(rank);
  Tape tape(rank);
  const Value loss = model.loss(tape, microbatch);
  const double share[] = {1.0 / static_cast<double>(microbatch.valid)};
  const Tensor gradient = Tensor::from<double>(rank, {1}, share);
  tape.backward({&loss, 1}, {&gradient, 1});
  model.parameters().combine_uses(rank);
  sum = loss.tensor;
  return loss.tensor.to_vector<double>().at(0) * share[0];
}

HuggingFaceModel stories() { return open_huggingface(disk(), cases + "/stories260K/hf"); }

}  // namespace

BOOST_AUTO_TEST_SUITE(reference_models)

BOOST_AUTO_TEST_CASE(stories_losses_packed_and_alone) {
  if (!cases_present()) return;
  const json reference = read_json(cases + "/stories260K/import_check.json");
  for (const DType dtype : {DType::f64, DType::f32}) {
    const double tolerance = dtype == DType::f64 ? 1e-9 : 1e-5;
    Rank rank({.threads = 2});
    const auto model = load(rank, stories(), dtype);
    for (const auto& [name, text] : reference.at("texts").items()) {
      const double expected = text.at("sum_nll").get<double>();
      const double found = nats(rank, *model, row_of(rank, {text.at("ids").get<std::vector<int32_t>>()}));
      BOOST_TEST(std::abs(found - expected) <= tolerance * expected, name << ": " << found << " instead of " << expected);
    }
    const json& packed = reference.at("packed");
    const double expected = packed.at("sum_nll").get<double>(), leaking = packed.at("sum_nll_if_cross_document_attention_leaks").get<double>();
    const std::vector<std::vector<int32_t>> documents = packed_documents(packed);
    const double found = nats(rank, *model, row_of(rank, documents));
    BOOST_TEST(std::abs(found - expected) <= tolerance * expected, "packed: " << found << " instead of " << expected);

    // Control: the boundaries are dropped (targets are still masked there), which must show as the reference's leaking value.
    const Microbatch kept = row_of(rank, documents);
    const Microbatch leaky = Microbatch::make(rank, kept.tokens.to_vector<int32_t>(), kept.targets.to_vector<int32_t>(),
                                              Documents::from_lengths(std::vector<int64_t>{kept.size()}));
    const double leaked = nats(rank, *model, leaky);
    BOOST_TEST(std::abs(leaked - expected) > 1e-4 * expected);
    BOOST_TEST(std::abs(leaked - leaking) <= tolerance * leaking, "leaking: " << leaked << " instead of " << leaking);
  }
}

BOOST_AUTO_TEST_CASE(stories_gradient_of_the_packed_loss) {
  if (!cases_present()) return;
  const json reference = read_json(cases + "/stories260K/stories260K_packed.json");
  const Safetensors expected(disk(), cases + "/stories260K/stories260K_packed.grads.safetensors");
  Rank rank({.threads = 2});
  const HuggingFaceModel source = stories();
  const auto model = load(rank, source, DType::f64);
  Tensor sum;
  const double loss = mean_loss_with_gradients(rank, *model, row_of(rank, packed_documents(reference)), sum);
  BOOST_TEST(std::abs(loss - reference.at("mean_nll").get<double>()) < 1e-9);
  for (const HuggingFaceTensor& tensor : source.tensors()) {
    const std::vector<double> found = model->parameters().find(tensor.name).gradients.at(0).to_vector<double>();
    std::vector<float> wanted(found.size());
    expected.read(tensor.huggingface_name, DType::f32, wanted.data());
    double largest = 0, worst = 0;
    for (float w : wanted) largest = std::max(largest, std::abs(static_cast<double>(w)));
    // The reference is stored in f32: half a unit in its last place comes on top of the tolerance.
    for (size_t i = 0; i < found.size(); ++i) {
      const double w = wanted[i], half_unit = std::abs(w) * 0x1p-24 + 0x1p-150;
      worst = std::max(worst, std::abs(found[i] - w) - half_unit);
    }
    BOOST_TEST(worst <= 1e-9 * largest, tensor.name << ": off by " << worst << ", largest " << largest);
  }
}

BOOST_AUTO_TEST_CASE(stories_ten_adamw_steps) {
  if (!cases_present()) return;
  const json reference = read_json(cases + "/stories260K/stories260K_packed.json");
  const auto expected = reference.at("adamw").at("mean_nll_before_each_of_steps_1_to_10_then_after").get<std::vector<double>>();
  for (const DType dtype : {DType::f64, DType::f32}) {
    Rank rank({.threads = 2});
    const auto model = load(rank, stories(), dtype);
    const Microbatch microbatch = row_of(rank, packed_documents(reference));
    AdamW optimizer(rank, model->parameters(), {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip_norm = 0});
    for (size_t step = 0; step < expected.size(); ++step) {
      Tensor sum;
      const double loss = mean_loss_with_gradients(rank, *model, microbatch, sum);
      BOOST_TEST(std::abs(loss - expected[step]) < 1e-5, name_of(dtype) << " step " << step + 1 << ": " << loss << " instead of " << expected[step]);
      optimizer.step(rank, sum, 1e-3);
      if (step == 0) BOOST_TEST(std::abs(optimizer.outcome().gradient_norm - reference.at("grad_norm").get<double>()) < 1e-5);
    }
  }
}

BOOST_AUTO_TEST_CASE(tiny_llama_logits_in_one_file_and_in_shards) {
  if (!cases_present()) return;
  const std::string folder = cases + "/tiny_llama";
  const json reference = read_json(folder + "/tiny_llama_logits.json");
  for (const char* weights : {"/tiny_llama.safetensors", "/tiny_llama.safetensors.index.json"})
    for (const DType dtype : {DType::f64, DType::f32}) {
      Rank rank;
      const auto model = load(rank, open_huggingface(disk(), folder + "/tiny_llama_config.json", folder + weights), dtype);
      for (size_t s = 0; s < reference.at("sequences").size(); ++s) {
        Tape tape(rank, false);
        const Microbatch microbatch = row_of(rank, {reference["sequences"][s].get<std::vector<int32_t>>()});
        const Tensor logits = model->logits(rank, model->hidden(tape, microbatch).tensor);
        std::vector<double> found, expected;
        if (dtype == DType::f64) found = logits.to_vector<double>();
        else for (float v : logits.to_vector<float>()) found.push_back(v);
        for (const json& row : reference["logits"][s])
          for (const json& v : row) expected.push_back(v.get<double>());
        BOOST_TEST(test::relative_difference(found, expected) <= (dtype == DType::f64 ? 1e-9 : 1e-5));
      }
    }
}

BOOST_AUTO_TEST_SUITE_END()
