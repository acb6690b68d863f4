// The product of context-parallel ranks, alone and with pipelines and replicas: the same training as one process but for the order in which numbers are added.
//
// The reference is one process in f64 (rounding_product.h says what is compared and how far it may be off). Rows of 29 tokens, up to six in a microbatch, with documents of
// one token and of more than a shard; eight ranks hold less than four tokens each.
// - all ranks that hold the same weights have the same bits, and two trainings in one layout do.
// - attention visits what one process visits: every query meets every key of its document once.
// - one microbatch of six rows, or six of one: two of three replicas of the former have no work.
// Controls: a loss divided by each rank's own targets, received keys masked as one document, and gradients of keys and values given to the wrong owner, are far off.
// The full tier runs the full product of all parameters but the first six, whose values are drawn for each.
#include "rounding_product.h"
#include "run/context_breaks.h"

using namespace quire;
using namespace quire::test;

namespace {

const TestParameters& parameters() {
  static const TestParameters all{
      {"model", {"plain", "window", "windows", "norms"}},
      {"packing", {"concat", "bfd"}},
      {"threads", {"1", "2"}},
      {"tied", {"yes", "no"}},
      {"schedule", {"1f1b", "interleaved_1f1b 2", "1f1b split", "zb_v"}},
      {"rows", {"1", "2", "6"}},
      {"recomputation", {"none", "attention", "full"}},
      {"precision", {"f64", "f32", "bf16"}},
      {"context", {"balanced ring", "balanced gather", "contiguous heads", "contiguous ring", "contiguous gather", "zigzag ring", "zigzag gather"}},
      {"cp", {"2", "3", "4", "8"}},
      {"dp", {"1", "2"}},
      {"pp", {"1", "2"}},
      {"backend", {"block", "dense"}},
  };
  return all;
}

/// 24 heads of four (two would be normalised to such bad condition that one process in another order is 7e-10 off itself), which all of the rank numbers divide; for `heads` the key/value heads of one for all and of one for each are left, others become one for each rank.
Config config_of(const Combination& combination) {
  TestParameters others = parameters();  // the heads come first: not every exchange takes any
  std::erase_if(others, [](const TestParameter& p) { return p.name == "cp" || p.name == "context"; });
  Config config = layout_config(others, combination);
  const Config::Distributed& d = config.distributed;
  for (const char* name : {"cp", "context"}) set_layout_parameter(config, name, combination[name]);
  ModelConfig& model = config.model;
  const int64_t keys = model.n_kv_heads == model.n_heads ? 24 : model.n_kv_heads;
  model.n_heads = 24;
  model.head_dim = 4;
  model.n_kv_heads = d.cp_exchange == "heads" && keys % d.cp != 0 && d.cp % keys != 0 ? d.cp : keys;
  return resolved(config);
}

LayoutRunOptions with_break(const std::string& name, std::vector<std::unique_ptr<ContextTamper>>& tampers, std::mutex& mutex) {
  LayoutRunOptions options;
  options.prepare = [&, name](Trainer& trainer) {
    const std::lock_guard lock(mutex);
    tampers.push_back(make_context_tamper(name));
    trainer.context()->set_tamper(tampers.back().get());
  };
  return options;
}

void check(RoundingGroup& group, const Combination& combination) {
  group.check(combination);
  if (combination.is("precision", "bf16")) return;  // its own rounding is as large as these faults for some models
  const Config config = config_of(combination);
  LayoutRunOptions own;
  own.step = step_with_own_denominator;
  group.check_control(combination, config, own, "a denominator of each rank");
  std::vector<std::unique_ptr<ContextTamper>> tampers;
  std::mutex mutex;
  if (config.distributed.cp_exchange != "heads") group.check_control(combination, config, with_break("ring_step", tampers, mutex), "received keys masked as one document");
  if (config.distributed.cp_layout == "contiguous") group.check_control(combination, config, with_break("dkv_owner", tampers, mutex), "gradients for the wrong owner");
}

std::string reference_of(const Combination& combination) {
  const Config config = config_of(combination);
  return combination.text({"model", "packing", "tied"}) + fmt::format(" layers {} key/value heads {}", config.model.n_layers, config.model.n_kv_heads);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(contexts_product)

BOOST_AUTO_TEST_CASE(context_ranks_train_as_one_process) {
  check_in_groups(parameters(), 6, config_of, reference_of, check);
}

BOOST_AUTO_TEST_SUITE_END()
