// A product of layouts whose sums are added in another order than one process adds them: each training against one process in double precision.
#pragma once
#include <fmt/format.h>

#include <map>

#include "layout_product.h"
#include "ops/cpu/instruction_set.h"

namespace quire::test {

constexpr int rounding_steps = 4;

inline Errors errors_of(const LayoutRun& run, const LayoutRun& reference) {
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

inline LayoutRun train(const Config& config, const std::shared_ptr<const Corpus>& corpus, bool split = false, int count = rounding_steps) {
  LayoutRunOptions options;
  options.steps = count;
  if (split) options.prepare = split_backward_of;
  return run_layout(config, corpus, options);
}

/// Combinations with one reference: one process in f64, dense attention, no recomputation, the whole step one microbatch.
class RoundingGroup {
 public:
  using ConfigOf = std::function<Config(const Combination&)>;
  RoundingGroup(ConfigOf config_of, const Combination& any)
      : config_of_(std::move(config_of)), any_(any), corpus_(layout_corpus()), reference_(plain("f64", "dense", "6", "portable")) {}
  const LayoutRun& reference() const { return reference_; }
  const std::shared_ptr<MemoryCorpus>& corpus() const { return corpus_; }

  void check(const Combination& combination) {
    const Config config = config_of_(combination);
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

  /// A control: with these options the gradients must be out of what is allowed.
  void check_control(const Combination& combination, const Config& config, LayoutRunOptions broken, const char* what) {
    broken.steps = rounding_steps;
    BOOST_TEST(errors_of(run_layout(config, corpus_, broken), reference_).gradients > allowed(combination["precision"]).gradients, combination.text() << ": control: " << what);
  }

 private:
  LayoutRun plain(const std::string& precision, const std::string& backend, const std::string& rows, const std::string& instruction_set) {
    Config config = config_of_(any_);
    for (const auto& [name, value] : std::map<std::string, std::string>{
             {"precision", precision}, {"backend", backend}, {"rows", rows}, {"instruction_set", instruction_set}, {"recomputation", "none"}, {"threads", "1"}})
      set_parameter(config, name, value);
    return train(in_one_process(config), corpus_);
  }

  ConfigOf config_of_;
  Combination any_;
  std::shared_ptr<MemoryCorpus> corpus_;
  LayoutRun reference_;
  std::map<std::string, Errors> allowed_;  // by precision
};

/// Runs `check(group, combination)` for each combination, those with one reference (by name) together.
inline void check_in_groups(const TestParameters& parameters, size_t drawn, const RoundingGroup::ConfigOf& config_of, const std::function<std::string(const Combination&)>& reference_of,
                            const std::function<void(RoundingGroup&, const Combination&)>& check) {
  const Combinations combinations = combinations_with_drawn(parameters, drawn);
  BOOST_TEST(missing_pairs(parameters, combinations).empty());
  std::map<std::string, std::vector<const Combination*>> groups;
  for (const Combination& combination : combinations) groups[reference_of(combination)].push_back(&combination);
  for (const auto& [name, members] : groups) {
    RoundingGroup group(config_of, *members.front());
    for (const Combination* combination : members) check(group, *combination);
  }
  BOOST_TEST_MESSAGE(fmt::format("{} trainings against {} references", combinations.size(), groups.size()));
}

/// The mean of means: each rank divides by its own replica's targets.
inline LayoutRunOptions with_denominators_of_replicas() {
  LayoutRunOptions own;
  own.step = [](Trainer& trainer, const LoadedStep& batch) {
    LoadedStep other = batch;
    other.plan.valid = 0;
    for (const HostBatch& host : batch.microbatches) other.plan.valid += host.valid;
    other.plan.valid *= trainer.share().count;
    return trainer.step(other);
  };
  return own;
}

}  // namespace quire::test
