// FAULTS.md 31: an attention backend that can not do what is asked refuses; nothing falls back in silence.
#include "model/decoder_case.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(fault_31)

BOOST_AUTO_TEST_CASE(unknown_backends_are_refused_before_anything_runs_31) {
  ModelConfig config = small_config();
  config.attention_backend = "flash";
  Rank rank;
  check_error<ConfigError>([&] { Model model(rank, config, DType::f32); }, {"attention_backend", "'flash'", "block, dense"});
}

BOOST_AUTO_TEST_CASE(a_kernel_asked_for_by_name_runs_or_refuses_31) {
  std::mt19937_64 random(1);
  const Batch batch = random_batch(random, {3, 4}, 23);
  const auto run = [&](const char* op, const char* kernel, const char* backend) {
    RankOptions options;
    options.kernels[op] = kernel;
    Rank rank(options);
    ModelConfig config = small_config();
    config.attention_backend = backend;
    Model model(rank, config, DType::f32);
    model.initialize(rank, 1);
    outcome(rank, model, batch.on(rank));
    return rank.chosen_kernels().at(op);
  };
  for (const char* op : {"attention_forward", "attention_backward"}) {
    BOOST_TEST(run(op, "block", "block") == "block");
    BOOST_TEST(run(op, "dense", "dense") == "dense");
    // The kernel of one backend does not do the other's work, and one that nobody has is not replaced.
    check_error<UnsupportedError>([&] { run(op, "block", "dense"); }, {op, "'block'", "cpu"});
    check_error<UnsupportedError>([&] { run(op, "dense", "block"); }, {op, "'dense'", "cpu"});
    check_error<ConfigError>([&] { run(op, "unmasked", "block"); }, {"[run.kernels]", op, "'unmasked'", "cpu", "allowed: block"});
  }
}

BOOST_AUTO_TEST_SUITE_END()
