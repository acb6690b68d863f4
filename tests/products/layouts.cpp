// The product of everything that changes how a pipeline trains: each combination is a real training of 30 steps, its ranks threads of this process, and must
// have the bits of one process: losses, norms, counts, every gradient of every step, and in the end every weight, moment and an evaluation.
//
// The reference is one process with one thread and no recomputation; model, backend, precision, packing, tied weights and division into microbatches are
// those of the combination. Six rows a step come through the real packer and loader; with one row in a microbatch their boundaries all differ. There are
// stages of one layer, of many, and of none but embedding or head; one and two microbatches are fewer than the stages.
// Controls: training without boundaries is far from the reference; a stage that masks with a neighbour's record is refused.
//
// The default tier runs a set in which all pairs of values meet. The full tier runs the full product of all parameters but four, whose values are drawn
// for each: 3,024 trainings.
#include "layout_product.h"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "run/machine.h"
#include "run/layout_breaks.h"
#include "runtime/digest.h"

using namespace quire;
using namespace quire::test;

namespace {

constexpr int steps = 30;

const TestParameters& parameters() {
  static const TestParameters all{
      {"model", {"plain", "window", "windows", "norms"}},
      {"packing", {"concat", "bfd"}},
      {"layers", {"by cost", "first", "ends"}},
      {"threads", {"1", "2"}},
      {"backend", {"block", "dense"}},
      {"tied", {"yes", "no"}},
      {"precision", {"f32", "bf16", "f64"}},
      {"rows", {"1", "3", "6"}},
      {"pp", {"4", "3", "2", "1"}},
      {"schedule", {"1f1b", "gpipe", "interleaved_1f1b 2", "interleaved_1f1b 3", "1f1b split", "gpipe split", "interleaved_1f1b 2 split", "zb_h1", "zb_v", "file"}},
      {"recomputation", {"none", "attention", "full"}},
  };
  return all;
}
uint64_t digest_of_values(const Tensor& tensor) { return digest_of(std::span(static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes()))); }

/// What a training leaves, tensors by their digests.
struct Bits {
  std::vector<StepResult> steps;
  std::vector<std::map<std::string, uint64_t>> gradients;  ///< of each step
  std::map<std::string, uint64_t> end;                     ///< master, value and moments of each parameter
  double evaluation = 0;
  std::string disagreement;                                ///< a value that two ranks hold differently
};

void keep_bits(std::map<std::string, uint64_t>& all, const std::string& name, const Tensor& tensor, std::string& disagreement) {
  const uint64_t digest = digest_of_values(tensor);
  if (const auto [entry, fresh] = all.emplace(name, digest); !fresh && entry->second != digest) disagreement = "two ranks disagree: " + name;
}

/// `tampered`: stages that receive mask with the record of a neighbour in flight.
Bits train(const Config& config, const std::shared_ptr<const Corpus>& corpus, bool split, int count = steps, bool tampered = false) {
  Bits bits;
  bits.gradients.resize(static_cast<size_t>(count));
  std::mutex mutex;
  run_local(static_cast<int>(mesh_shape(config).ranks()), {}, [&](Communicator& world) {
    RankOptions options = rank_options(config);
    options.poison = true;
    Rank rank(options);
    Trainer trainer(rank, config, &world);
    LoaderSettings settings = trainer.loader_settings();
    settings.prefetch = 0;
    Loader loader(corpus, settings, trainer.share());
    if (split) split_backward_of(trainer);
    for (int step = 0; step < count; ++step) {
      const LoadedStep batch = loader.next_step();
      const std::unique_ptr<BoundaryTamper> tamper = tampered ? make_tamper(rank, "swapped", batch.microbatches) : nullptr;
      trainer.pipeline().set_tamper(tamper.get());
      const StepResult result = trainer.step(batch);
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) bits.steps.push_back(result);
      for (const Parameter& p : trainer.model().parameters()) keep_bits(bits.gradients[static_cast<size_t>(step)], p.name, p.gradients.at(0), bits.disagreement);
    }
    const double evaluation = trainer.evaluate(corpus).loss;
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) bits.evaluation = evaluation;
    for (size_t i = 0; i < trainer.model().parameters().size(); ++i) {
      const Parameter& p = trainer.model().parameters()[i];
      keep_bits(bits.end, p.name, p.master, bits.disagreement);
      keep_bits(bits.end, p.name + " as read by kernels", p.value, bits.disagreement);
      keep_bits(bits.end, p.name + ", first moment", trainer.optimizer().moment1(i), bits.disagreement);
      keep_bits(bits.end, p.name + ", second moment", trainer.optimizer().moment2(i), bits.disagreement);
    }
  });
  return bits;
}

/// "" where every bit is the same.
std::string difference(const Bits& a, const Bits& b) {
  if (!a.disagreement.empty()) return a.disagreement;
  if (a.steps.size() != b.steps.size()) return "number of steps";
  for (size_t i = 0; i < b.steps.size(); ++i) {
    const StepResult &x = a.steps[i], &y = b.steps[i];
    if (x.loss != y.loss) return fmt::format("loss of step {}: {:.17g} and {:.17g}", i + 1, x.loss, y.loss);
    if (x.gradient_norm != y.gradient_norm) return fmt::format("gradient norm of step {}", i + 1);
    if (std::tie(x.valid_tokens, x.tokens, x.useful_pairs, x.computed_pairs, x.causal_pairs, x.padding, x.learning_rate, x.skipped) !=
        std::tie(y.valid_tokens, y.tokens, y.useful_pairs, y.computed_pairs, y.causal_pairs, y.padding, y.learning_rate, y.skipped))
      return fmt::format("counts of step {}", i + 1);
    for (const auto& [name, digest] : b.gradients[i])
      if (const auto found = a.gradients[i].find(name); found == a.gradients[i].end() || found->second != digest) return fmt::format("gradient of {} in step {}", name, i + 1);
  }
  for (const auto& [name, digest] : b.end)
    if (const auto found = a.end.find(name); found == a.end.end() || found->second != digest) return "after all steps: " + name;
  if (a.gradients.front().size() != b.gradients.front().size() || a.end.size() != b.end.size()) return "number of parameters";
  return a.evaluation == b.evaluation ? "" : "evaluation";
}

struct Report {
  std::mutex mutex;
  std::vector<std::string> failures;
  std::atomic<int64_t> trainings{0}, references{0}, refused{0}, unpacked{0}, different_boundaries{0};
  void fail(const std::string& where, const std::string& what) {
    const std::lock_guard lock(mutex);
    failures.push_back(where + ": " + what);
  }
};

/// Combinations with one reference.
class Group {
 public:
  Group(const Combination& any, Report& report) : report_(report), corpus_(layout_corpus()) {
    Config config = in_one_process(layout_config(parameters(), any));
    config.run.threads = 1;
    config.train.activation_checkpointing = "none";
    reference_ = train(config, corpus_, false);
    ++report_.references;
    look_at_boundaries(config);
    check_unpacked(config, any);
  }

  void check(const Combination& combination) {
    const Config config = layout_config(parameters(), combination);
    const bool split = schedule_from(combination["schedule"]).split;
    if (const std::string found = difference(train(config, corpus_, split), reference_); !found.empty()) report_.fail(combination.text(), found);
    ++report_.trainings;
    if (config.distributed.pp > 1 && combination.is("packing", "concat") && !combination.is("rows", "6")) check_swapped(combination, config, split);
  }

 private:
  /// Whether every microbatch of every step has boundaries of its own.
  void look_at_boundaries(const Config& config) {
    Loader loader(corpus_, loader_settings(config));
    bool all = true;
    for (int step = 0; step < steps; ++step) {
      const LoadedStep batch = loader.next_step();
      for (size_t i = 0; i < batch.microbatches.size(); ++i)
        for (size_t j = 0; j < i; ++j) all = all && batch.microbatches[i].documents != batch.microbatches[j].documents;
    }
    report_.different_boundaries += all;
  }

  void check_unpacked(const Config& config, const Combination& any) {
    Rank rank(rank_options(config));
    Trainer trainer(rank, config);
    const StepResult packed = reference_.steps.front(), without = trainer.step(without_boundaries(Loader(corpus_, loader_settings(config)).next_step()));
    if (std::abs(without.loss - packed.loss) < 1e-3 * packed.loss && std::abs(without.gradient_norm - packed.gradient_norm) < 1e-3 * packed.gradient_norm)
      report_.fail(any.text(), "control: rows taken for one document each train alike");
    ++report_.unpacked;
  }

  void check_swapped(const Combination& combination, const Config& config, bool split) {
    try {
      train(config, corpus_, split, 1, true);
      report_.fail(combination.text(), "control: swapped records are taken");
    } catch (const BoundaryError&) {
      ++report_.refused;
    }
  }

  Report& report_;
  std::shared_ptr<MemoryCorpus> corpus_;
  Bits reference_;
};

/// What may change the reference's bits: the number of layers follows from that of stages.
std::string reference_of(const Combination& combination) {
  return combination.text({"model", "packing", "backend", "tied", "precision", "rows"}) + fmt::format(" layers {}", layout_config(parameters(), combination).model.n_layers);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(layouts_product)

BOOST_AUTO_TEST_CASE(every_pipeline_trains_with_the_bits_of_one_process) {
  const Combinations combinations = combinations_with_drawn(parameters(), 4);
  BOOST_TEST(missing_pairs(parameters(), combinations).empty());
  std::map<std::string, std::vector<const Combination*>> groups;
  for (const Combination& combination : combinations) groups[reference_of(combination)].push_back(&combination);
  std::vector<const std::vector<const Combination*>*> queue;
  for (const auto& [name, members] : groups) queue.push_back(&members);
  Report report;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t g = next++; g < queue.size(); g = next++) {
      const Combination* at = queue[g]->front();
      try {
        Group group(*at, report);
        for (const Combination* combination : *queue[g]) group.check(*(at = combination));
      } catch (const std::exception& error) {
        report.fail(at->text(), error.what());
      }
    }
  };
  std::vector<std::thread> workers;
  for (int w = 0; w < usable_processors(); ++w) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  for (size_t f = 0; f < std::min<size_t>(report.failures.size(), 20); ++f) BOOST_ERROR(report.failures[f]);
  BOOST_TEST(report.failures.size() == 0u);
  BOOST_TEST(report.trainings == static_cast<int64_t>(combinations.size()));
  BOOST_TEST(report.references == static_cast<int64_t>(groups.size()));
  BOOST_TEST(report.unpacked == report.references);
  BOOST_TEST(report.different_boundaries == report.references);
  BOOST_TEST(report.refused > 0);
  BOOST_TEST_MESSAGE(fmt::format("{} trainings of {} steps against {} references; {} refused with swapped records", report.trainings.load(), steps, report.references.load(),
                                 report.refused.load()));
}

BOOST_AUTO_TEST_SUITE_END()
