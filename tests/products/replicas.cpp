// The product of replicas and pipelines: the same training as one process but for the order in which gradients are added.
//
// The reference is one process in f64: dense attention, no recomputation, the whole step one microbatch.
// - f64: losses, norms, every gradient of every step within 1e-11 of the tensor's largest magnitude, every weight after the steps within 1e-9.
// - f32, bf16: no further from the reference than `Group::allowed` says.
// - all replicas hold the same bits, and two trainings in one layout do.
// With one microbatch in the step two of three replicas have no work.
// Controls: replicas that do not add their gradients up, and a loss divided by each replica's own targets, are far from the reference.
// The full tier runs the full product of all parameters but the first four, whose values are drawn for each: 1,296 trainings, each done twice.
#include <fmt/format.h>

#include <map>

#include "layout_product.h"
#include "ops/cpu/instruction_set.h"

using namespace quire;
using namespace quire::test;

namespace {

constexpr int steps = 4;

const TestParameters& parameters() {
  static const TestParameters all{
      {"model", {"plain", "window", "windows", "norms"}},
      {"packing", {"concat", "bfd"}},
      {"threads", {"1", "2"}},
      {"recomputation", {"none", "attention", "full"}},
      {"tied", {"yes", "no"}},
      {"precision", {"f64", "f32", "bf16"}},
      {"dp", {"3", "2", "1"}},
      {"pp", {"3", "2", "1"}},
      {"schedule", {"1f1b", "gpipe", "interleaved_1f1b 2", "1f1b split"}},
      {"rows", {"1", "2", "6"}},
      {"backend", {"block", "dense"}},
  };
  return all;
}

Errors errors_of(const LayoutRun& run, const LayoutRun& reference) {
  Errors errors;
  const auto scalar = [&](double a, double b) { errors.scalars = std::max(errors.scalars, error_of({a}, {b})); };
  for (size_t i = 0; i < reference.steps.size(); ++i) {
    scalar(run.steps[i].loss, reference.steps[i].loss);
    scalar(run.steps[i].gradient_norm, reference.steps[i].gradient_norm);
    for (const auto& [name, values] : reference.gradients[i])
      errors.gradients = std::max(errors.gradients, run.gradients[i].contains(name) ? error_of(run.gradients[i].at(name), values) : HUGE_VAL);
  }
  for (const auto& [name, values] : reference.weights) errors.weights = std::max(errors.weights, run.weights.contains(name) ? error_of(run.weights.at(name), values) : HUGE_VAL);
  scalar(run.evaluation, reference.evaluation);
  return errors;
}

LayoutRun train(const Config& config, const std::shared_ptr<const Corpus>& corpus, bool split = false, int count = steps) {
  LayoutRunOptions options;
  options.steps = count;
  if (split) options.prepare = split_backward_of;
  return run_layout(config, corpus, options);
}

/// Combinations with one reference.
class Group {
 public:
  Group(const Combination& any) : any_(any), corpus_(layout_corpus()), reference_(plain("f64", "dense", "6", "portable")) {}

  void check(const Combination& combination) {
    const Config config = layout_config(parameters(), combination);
    const bool split = schedule_from(combination["schedule"]).split;
    const LayoutRun run = train(config, corpus_, split);
    BOOST_TEST(run.disagreements.empty(), combination.text() << ": ranks disagree on " << (run.disagreements.empty() ? "" : run.disagreements.front()));
    for (size_t i = 0; i < run.steps.size(); ++i) {
      BOOST_TEST(run.steps[i].valid_tokens == reference_.steps[i].valid_tokens, combination.text());
      BOOST_TEST(run.steps[i].tokens == reference_.steps[i].tokens, combination.text());
      BOOST_TEST(run.steps[i].useful_pairs == reference_.steps[i].useful_pairs, combination.text());
    }
    const Errors errors = errors_of(run, reference_), bound = allowed(combination["precision"]);
    BOOST_TEST(errors.within(bound), combination.text() << ": " << errors.text() << "; allowed: " << bound.text());
    BOOST_TEST(bit_difference(train(config, corpus_, split), run) == "", combination.text() << ": a second training");
    if (combination.is("dp", "1")) {  // no other order of additions: the bits of one process
      const LayoutRun one = train(in_one_process(config), corpus_);
      BOOST_TEST(bit_difference(run, one) == "", combination.text());
    } else if (!combination.is("rows", "6") && !combination.is("precision", "bf16")) {  // bf16's own rounding is as large as these faults for some models
      check_controls(combination, config);
    }
  }

 private:
  LayoutRun plain(const std::string& precision, const std::string& backend, const std::string& rows, const std::string& instruction_set) {
    Config config = layout_config(parameters(), any_);
    for (const auto& [name, value] : std::map<std::string, std::string>{
             {"precision", precision}, {"backend", backend}, {"rows", rows}, {"instruction_set", instruction_set}, {"recomputation", "none"}, {"threads", "1"}})
      set_parameter(config, name, value);
    return train(in_one_process(config), corpus_);
  }

  /// Section 6 allows max(2 x the single process's error, 4 ulp of the largest magnitude). The error of a whole training is one random draw, and two draws differ by
  /// more than 2 often enough: one process is run with every instruction set, backend and division into microbatches, and its error is the
  /// largest of these. f32, where the order of sums is all there is, may be at 4 times that.
  Errors allowed(const std::string& precision) {
    if (precision == "f64") return {1e-11, 1e-9, 1e-11};
    auto found = allowed_.find(precision);
    if (found != allowed_.end()) return found->second;
    Errors errors;
    for (const std::string& instruction_set : instruction_sets())
      for (const char* backend : {"block", "dense"})
        for (const char* rows : {"1", "2", "6"}) errors.widen(errors_of(plain(precision, backend, rows, instruction_set), reference_));
    const double factor = precision == "f32" ? 4 : 2, four_ulp = std::ldexp(4.0, precision == "f32" ? -24 : -8);
    return allowed_[precision] = {std::max(factor * errors.gradients, four_ulp), std::max(factor * errors.weights, four_ulp), std::max(factor * errors.scalars, four_ulp)};
  }

  void check_controls(const Combination& combination, const Config& config) {
    const Errors bound = allowed(combination["precision"]);
    LayoutRunOptions own;  // a replica's targets alone are divided by: the mean of means
    own.step = [](Trainer& trainer, const LoadedStep& batch) {
      LoadedStep other = batch;
      other.plan.valid = 0;
      for (const HostBatch& host : batch.microbatches) other.plan.valid += host.valid;
      other.plan.valid *= trainer.share().count;
      return trainer.step(other);
    };
    own.steps = steps;
    BOOST_TEST(errors_of(run_layout(config, corpus_, own), reference_).gradients > bound.gradients, combination.text() << ": control: a denominator of each replica");
    LayoutRunOptions without;  // gradients of the replica's part alone
    without.steps = steps;
    without.step = [](Trainer& trainer, const LoadedStep& batch) {
      LoadedStep part = batch;
      if (trainer.share().index > 0) part.microbatches.clear();
      return trainer.step(part);
    };
    BOOST_TEST(errors_of(run_layout(config, corpus_, without), reference_).gradients > bound.gradients, combination.text() << ": control: one replica's gradients alone");
  }

  Combination any_;
  std::shared_ptr<MemoryCorpus> corpus_;
  LayoutRun reference_;
  std::map<std::string, Errors> allowed_;  // by precision
};

std::string reference_of(const Combination& combination) {
  return combination.text({"model", "packing", "tied"}) + fmt::format(" layers {}", layout_config(parameters(), combination).model.n_layers);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(replicas_product)

BOOST_AUTO_TEST_CASE(replicas_and_pipelines_train_as_one_process) {
  const Combinations combinations = combinations_with_drawn(parameters(), 4);
  BOOST_TEST(missing_pairs(parameters(), combinations).empty());
  std::map<std::string, std::vector<const Combination*>> groups;
  for (const Combination& combination : combinations) groups[reference_of(combination)].push_back(&combination);
  for (const auto& [name, members] : groups) {
    Group group(*members.front());
    for (const Combination* combination : members) group.check(*combination);
  }
  BOOST_TEST_MESSAGE(fmt::format("{} trainings against {} references", combinations.size(), groups.size()));
}

BOOST_AUTO_TEST_SUITE_END()
