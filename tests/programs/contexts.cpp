// Training by processes that share each row's tokens, as a user starts it: the numbers of one process to rounding, for every layout and exchange.
#include "programs/ranks.h"
#include "tier.h"

using namespace quire;
using namespace quire::test;
namespace utf = boost::unit_test;

namespace {

/// tools/configs/tiny.toml in double precision, with rows of a prime length.
struct Contexts {
  Scratch scratch;
  std::vector<StepMetrics> metrics(const std::string& run, const std::vector<std::string>& more) {
    std::vector<std::string> args{tool("train"), std::string(QUIRE_SOURCE_ROOT) + "/tools/configs/tiny.toml", "run.threads=1", "train.mixed_precision=f64", "train.seq_len=509",
                                  "run.dir=" + scratch.path(run)};
    args.insert(args.end(), more.begin(), more.end());
    run_well(args);
    return read_metrics(disk(), scratch.path(run) + "/metrics.jsonl");
  }
};

double relative(double a, double b) { return std::abs(a - b) / std::abs(b); }

void check_same(const std::vector<StepMetrics>& many, const std::vector<StepMetrics>& one, const std::string& name) {
  BOOST_REQUIRE(!many.empty());
  for (size_t i = 0; i < many.size(); ++i) {
    const double allowed = i == 0 ? 1e-12 : 1e-9;
    BOOST_TEST(relative(many[i].loss, one[i].loss) <= allowed, name << ", step " << i + 1 << ": loss off by " << relative(many[i].loss, one[i].loss));
    BOOST_TEST(relative(many[i].grad_norm, one[i].grad_norm) <= allowed, name << ", step " << i + 1 << ": norm off by " << relative(many[i].grad_norm, one[i].grad_norm));
    BOOST_TEST(many[i].valid_tokens == one[i].valid_tokens);
    BOOST_TEST(many[i].tokens == one[i].tokens);
    BOOST_TEST(many[i].useful_pairs == one[i].useful_pairs);
    if (i + 1 == one.size()) BOOST_TEST(relative(many[i].eval_loss.value(), one[i].eval_loss.value()) <= 1e-9);
    BOOST_TEST(many[i].bytes_sent > 0);
    BOOST_TEST(many[i].balance.value_or(0) >= 1);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(contexts, *utf::precondition(can_start_ranks))

BOOST_AUTO_TEST_CASE(context_ranks_of_processes_train_as_one_process) {
  Contexts contexts;
  const std::vector<StepMetrics> one = contexts.metrics("one", {});  // 30 steps
  const std::string some = all_tier() ? "train.max_steps=30" : "train.max_steps=4";
  for (const std::string layout : {"contiguous", "zigzag", "balanced"})
    for (const std::string exchange : {"ring", "gather", "heads"}) {
      if (exchange == "heads" && layout != "contiguous") continue;
      const std::string name = layout + "-" + exchange;
      check_same(contexts.metrics(name, {"--ranks", "2", "distributed.cp=2", "distributed.cp_layout=" + layout, "distributed.cp_exchange=" + exchange, some}), one, name);
    }
  check_same(contexts.metrics("cp", {"--ranks", "2", "distributed.cp=2"}), one, "cp 2");
  check_same(contexts.metrics("pp-cp", {"--ranks", "4", "distributed.pp=2", "distributed.cp=2", some}), one, "pp 2 x cp 2");
  check_same(contexts.metrics("pp-dp-cp", {"--ranks", "8", "distributed.pp=2", "distributed.dp_replicate=2", "distributed.cp=2"}), one, "pp 2 x dp 2 x cp 2");
  // The comparison sees another training: other first weights.
  const std::vector<StepMetrics> other = contexts.metrics("other", {"--ranks", "2", "distributed.cp=2", "train.max_steps=1", "train.seed=2"});
  BOOST_TEST(relative(other.at(0).grad_norm, one.at(0).grad_norm) > 1e-6);
}

BOOST_AUTO_TEST_CASE(a_context_rank_that_dies_ends_the_run_and_is_named) {
  Scratch scratch;
  const std::string mark = scratch.path("killed");
  Program program({tool("train"), std::string(QUIRE_SOURCE_ROOT) + "/tools/configs/tiny.toml", "run.threads=1", "run.dir=" + mark, "train.max_steps=100000", "eval.interval=0", "--ranks", "4",
                   "distributed.cp=2", "distributed.pp=2"});
  BOOST_REQUIRE(program.wait_for("step     20/100000"));
  ::kill(processes_of(mark).at(3), SIGKILL);
  const ProgramResult result = program.wait();
  BOOST_TEST(result.status == 1);
  BOOST_TEST(result.err.find("rank 3 killed by signal 9 at step ") != std::string::npos, result.err);
  BOOST_TEST(processes_left(mark).empty());
}

BOOST_AUTO_TEST_SUITE_END()
