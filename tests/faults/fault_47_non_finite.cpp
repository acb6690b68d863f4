// FAULTS 47: a loss or gradient that is not finite changes no weight and no moment, is named, and ends the run after a set number in a row.
#include <limits>

#include "run/training_run.h"

using namespace quire;
using namespace quire::test;

namespace {

using Bytes = std::vector<std::vector<std::byte>>;

void add_bytes(Bytes& all, const Tensor& tensor) {
  const auto* bytes = static_cast<const std::byte*>(tensor.raw());
  all.emplace_back(bytes, bytes + tensor.bytes());
}

/// Weights, masters and moments.
Bytes state_of(Trainer& trainer) {
  Bytes all;
  ParameterSet& parameters = trainer.model().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    add_bytes(all, parameters[i].value);
    add_bytes(all, parameters[i].master);
    add_bytes(all, trainer.optimizer().moment1(i));
    add_bytes(all, trainer.optimizer().moment2(i));
  }
  return all;
}

struct Training {
  explicit Training(const std::string& dtype = "f32")
      : config(small_config(scratch, "run", {"train.max_non_finite_steps=3", "train.mixed_precision=" + dtype})), corpus(open_data(config).train),
        trainer(rank, config), loader(corpus, loader_settings(config)) {}
  /// The first element of a weight as it is used in forward; bf16 and f32 alike.
  void plant(const std::string& name, float value) {
    const Parameter& p = trainer.model().parameters().find(name);
    if (p.value.dtype() == DType::f32) {
      p.value.data<float>()[0] = value;
    } else {
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      const auto upper = static_cast<uint16_t>(bits >> 16);
      std::memcpy(p.value.raw(), &upper, 2);
    }
  }
  float weight(const std::string& name) {
    const Parameter& p = trainer.model().parameters().find(name);
    if (p.value.dtype() == DType::f32) return p.value.data<float>()[0];
    uint16_t upper;
    std::memcpy(&upper, p.value.raw(), 2);
    const uint32_t bits = static_cast<uint32_t>(upper) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }

  Scratch scratch;
  Config config;
  std::shared_ptr<const Corpus> corpus;
  Rank rank;
  Trainer trainer;
  Loader loader;
};

std::string some_matrix(Trainer& trainer) {
  for (const Parameter& p : trainer.model().parameters())
    if (p.name.starts_with("layers.0.") && p.shape.dims() == 2) return p.name;
  return {};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_47)

BOOST_AUTO_TEST_CASE(entry_47_a_step_that_is_not_finite_changes_nothing_and_is_named) {
  for (const char* dtype : {"f32", "bf16"})
    for (const float planted : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Training t(dtype);
      t.trainer.step(t.loader.next_step());
      const std::string name = some_matrix(t.trainer);
      const float good = t.weight(name);
      t.plant(name, planted);
      const Bytes before = state_of(t.trainer);
      const StepResult bad = t.trainer.step(t.loader.next_step());
      BOOST_TEST(bad.skipped);
      BOOST_TEST(!std::isfinite(bad.loss));
      BOOST_TEST((state_of(t.trainer) == before));
      BOOST_TEST(t.trainer.optimizer().adam_step() == 1);
      BOOST_TEST(t.trainer.skipped_in_a_row() == 1);
      BOOST_TEST(t.trainer.steps_done() == 2);
      const std::vector<std::string> named = t.trainer.optimizer().non_finite();
      BOOST_TEST(std::count(named.begin(), named.end(), name) == 1);
      // Good steps follow, and the count begins anew. Control: these do change the weights.
      t.plant(name, good);
      const StepResult next = t.trainer.step(t.loader.next_step());
      BOOST_TEST(!next.skipped);
      BOOST_TEST(std::isfinite(next.loss));
      BOOST_TEST(t.trainer.skipped_in_a_row() == 0);
      BOOST_TEST(t.trainer.optimizer().adam_step() == 2);
      BOOST_TEST((state_of(t.trainer) != before));
    }
}

BOOST_AUTO_TEST_CASE(entry_47_the_run_ends_after_the_set_number_in_a_row) {
  Training t;
  const std::string name = some_matrix(t.trainer);
  const float good = t.weight(name);
  for (int round = 0; round < 2; ++round) {  // two bad and a good one: the limit of three is never reached
    t.plant(name, std::numeric_limits<float>::quiet_NaN());
    t.trainer.step(t.loader.next_step());
    t.trainer.step(t.loader.next_step());
    BOOST_TEST(t.trainer.skipped_in_a_row() == 2);
    t.plant(name, good);
    t.trainer.step(t.loader.next_step());
    BOOST_TEST(t.trainer.skipped_in_a_row() == 0);
  }
  t.plant(name, std::numeric_limits<float>::quiet_NaN());
  const Bytes before = state_of(t.trainer);
  t.trainer.step(t.loader.next_step());
  t.trainer.step(t.loader.next_step());
  check_error<NonFiniteError>([&] { t.trainer.step(t.loader.next_step()); }, {"3 steps in a row", name, "no weight was changed"});
  BOOST_TEST((state_of(t.trainer) == before));
}

BOOST_AUTO_TEST_SUITE_END()
