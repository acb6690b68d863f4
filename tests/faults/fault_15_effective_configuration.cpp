// FAULTS.md 15: guards read the configuration object, not what was in force. Here checks look at what ranks will do, however it was set: in a file, on the command line,
// by an embedder, or by what a run has decided for `auto`.
#include "context_case.h"
#include "parallel/context_attention.h"
#include "run/run_folder.h"
#include "run/selfcheck.h"
#include "run/training_run.h"

using namespace quire;
using namespace quire::test;

namespace {

std::vector<std::string> with(std::vector<std::string> all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

const std::vector<std::string> open_config{"distributed.cp=2", "distributed.cp_layout=auto", "distributed.cp_exchange=auto", "model.n_layers=2", "train.max_steps=1"};

/// The layouts that a report names.
std::set<std::string> layouts_of(const SelfcheckReport& report) {
  std::set<std::string> names;
  for (const CheckResult& check : report.checks) names.insert(check.layout);
  return names;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_15)

BOOST_AUTO_TEST_CASE(entry_15_heads_that_do_not_fit_are_refused_however_they_were_set) {
  const Scratch scratch;
  const std::vector<std::string> odd{"model.n_heads=3", "model.head_dim=4", "distributed.cp=2"};
  check_error<ConfigError>([&] { small_config(scratch, "run", with(odd, {"distributed.cp_exchange=heads"})); }, {"distributed.cp_exchange", "3 "});
  Config config = small_config(scratch, "run", odd);
  config.distributed.cp_exchange = "heads";  // an embedder's
  config.distributed.cp_layout = "contiguous";
  check_error<ConfigError>([&] { resolved(config); }, {"distributed.cp_exchange", "3 "});
  // What was decided for `auto` is checked as what is written.
  const Config open = small_config(scratch, "open", with(with(odd, {"distributed.cp_layout=auto"}), {"distributed.cp_exchange=auto"}));
  RunFolder(open.run.dir).store_choices({{"context.layout", "contiguous"}, {"context.exchange", "heads"}, {"context.ranks", "2"}});
  check_error<DataError>([&] { selfcheck(open); }, {"choices.json", "context.exchange is \"heads\"", "ring, gather"});
}

BOOST_AUTO_TEST_CASE(entry_15_selfcheck_looks_at_what_a_run_decided) {
  const Scratch scratch;
  const Config config = small_config(scratch, "run", open_config);
  const SelfcheckReport before = selfcheck(config, {.tokens = 24});
  BOOST_TEST((layouts_of(before) == std::set<std::string>{"single", "cp 2", "cp 2 balanced ring"}), before.table());
  BOOST_TEST(before.table().find("not decided yet") != std::string::npos);
  {
    RunFolder folder(config.run.dir);
    folder.store_choices({{"context.layout", "contiguous"}, {"context.exchange", "heads"}, {"context.ranks", "2"}});
  }
  const SelfcheckReport after = selfcheck(config, {.tokens = 24});
  BOOST_TEST(after.passed(), after.table());
  BOOST_TEST((layouts_of(after) == std::set<std::string>{"single", "cp 2", "cp 2 contiguous heads"}), after.table());
  BOOST_TEST(after.table().find("as this run's choices.json has it") != std::string::npos);
  // What can be broken is what can be broken of the exchange in force.
  check_error<ConfigError>([&] { selfcheck(config, {.broken = "ring_step"}); }, {"ring_step", "known: dropped, dkv_owner, labels, denominator"});
  // Given keys are in force whatever was recorded.
  const SelfcheckReport given = selfcheck(small_config(scratch, "run", {"distributed.cp=2", "distributed.cp_layout=zigzag", "distributed.cp_exchange=gather"}), {.tokens = 24});
  BOOST_TEST((layouts_of(given) == std::set<std::string>{"single", "cp 2", "cp 2 zigzag gather"}), given.table());
}

BOOST_AUTO_TEST_CASE(entry_15_what_training_recorded_is_what_it_does_and_what_selfcheck_checks) {
  const Scratch scratch;
  const Config config = small_config(scratch, "run", open_config);
  std::mutex mutex;
  std::set<std::string> in_force;
  RankHooks hooks;
  hooks.before_step = [&](Session& session, Communicator&, int64_t) {
    const ContextOptions& options = session.trainer().context()->planner().options();
    const std::lock_guard lock(mutex);
    in_force.insert(fmt::format("cp 2 {} {}", name_of(options.layout), name_of(options.exchange)));
  };
  run_training_ranks(config, -1, hooks);
  BOOST_REQUIRE_EQUAL(in_force.size(), 1u);
  const auto choices = stored_choices(config.run.dir);
  BOOST_TEST(fmt::format("cp 2 {} {}", choices.at("context.layout"), choices.at("context.exchange")) == *in_force.begin());
  BOOST_TEST(layouts_of(selfcheck(config, {.tokens = 24})).count(*in_force.begin()) == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
