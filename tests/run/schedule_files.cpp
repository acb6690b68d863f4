// A user's own schedule: read and refused with the config, and trained with the bits of one process wherever its stages lie.
#include <nlohmann/json.hpp>

#include "run/layout_breaks.h"
#include "run/pipeline_stages.h"
#include "run/selfcheck.h"
#include "run/session_layouts.h"

using namespace quire;
using namespace quire::test;

namespace {

struct UserSchedule {
  const char* name;
  int64_t ranks, stages;
  const char* text;  ///< of four microbatches
};

/// Written by hand. `back_to_front`: the last stage on rank 0. `uneven`: two stages that follow each other on one rank, one on the other; B, I and W mixed. `v`: first and
/// last stage on rank 0.
const std::vector<UserSchedule> user_schedules = {
    {"back_to_front", 2, 2, "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n"},
    {"uneven", 2, 3,
     "0F0,1F0,0F1,1F1,1I0,0I0,0F2,1F2,1W0,0W0,1B1,0B1,0F3,1F3,1I2,0I2,1W2,0W2,1B3,0B3\n"
     "2F0,2B0,2F1,2I1,2F2,2I2,2W1,2W2,2F3,2B3\n"},
    {"v", 2, 4,
     "0F0,0F1,3F0,3I0,0F2,0I0,3W0,0W0,3F1,3B1,0B1,0F3,3F2,3B2,0B2,3F3,3B3,0B3\n"
     "1F0,2F0,1F1,2F1,2I0,1I0,2W0,1W0,2B1,1B1,1F2,2F2,2B2,1B2,1F3,2F3,2B3,1B3\n"},
};
const char* const descending = "0F0,0F1,0F2,0F3,0I0,0I1,0I2,0I3,0W3,0W2,0W1,0W0\n1F0,1F1,1F2,1F3,1I0,1I1,1I2,1I3,1W3,1W2,1W1,1W0\n";

std::string store(const Scratch& scratch, const std::string& name, const std::string& text) {
  std::ofstream(scratch.path(name + ".csv")) << text;
  return scratch.path(name + ".csv");
}

/// One row in a microbatch: four of them.
Config user_config(const Scratch& scratch, const std::string& run, const std::string& file, int64_t ranks, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), "train.microbatch_size=1");
  return ranks_config(scratch, run, {ranks, 1, file}, overrides);
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(schedule_files)

BOOST_AUTO_TEST_CASE(a_hand_written_schedule_trains_with_the_bits_of_one_process) {
  for (const std::vector<std::string>& kind : std::vector<std::vector<std::string>>{
           {"model.tie_embeddings=false"}, {"model.tie_embeddings=true", "train.mixed_precision=bf16", "train.activation_checkpointing=full"}}) {
    Scratch scratch;
    const Config one = user_config(scratch, "one", "1f1b", 1, kind);
    run_training(one);
    for (const UserSchedule& schedule : user_schedules) {
      const Config many = user_config(scratch, schedule.name, store(scratch, schedule.name, schedule.text), schedule.ranks, kind);
      run_training_ranks(many);
      check_same_training(many, one, schedule.name);
      BOOST_TEST(text_of(many.run.dir + "/schedule.csv") == schedule.text);  // what was run is kept, and can be run again
      BOOST_TEST(text_of(many.run.dir + "/log.txt").find("to rounding") == std::string::npos);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_run_that_goes_on_as_one_process_keeps_no_schedule) {
  Scratch scratch;
  const UserSchedule& schedule = user_schedules[0];
  const Config many = user_config(scratch, "run", store(scratch, schedule.name, schedule.text), schedule.ranks, {"train.max_steps=2"});
  run_training_ranks(many);
  BOOST_TEST(text_of(many.run.dir + "/schedule.csv") == schedule.text);
  run_training(user_config(scratch, "run", "1f1b", 1, {"train.max_steps=3"}));
  BOOST_TEST(!std::filesystem::exists(many.run.dir + "/schedule.csv"));
}

BOOST_AUTO_TEST_CASE(gradients_in_another_order_keep_the_tolerance_and_the_log_says_so) {
  Scratch scratch;
  const std::vector<std::string> kind{"train.mixed_precision=f64"};
  const Config one = user_config(scratch, "one", "1f1b", 1, kind), many = user_config(scratch, "many", store(scratch, "descending", descending), 2, kind);
  run_training(one);
  run_training_ranks(many);
  const auto ours = metrics_of(many), alone = metrics_of(one);
  BOOST_TEST(difference(ours, alone) < 1e-11, difference(ours, alone));
  BOOST_TEST((ours != alone));  // the control: it is seen
  BOOST_TEST(text_of(many.run.dir + "/log.txt").find("descending.csv does not add gradients in ascending order of microbatches: they agree with those of one process to rounding") != std::string::npos);
  BOOST_TEST(!keeps_bits(pipeline_stages(many)));
}

BOOST_AUTO_TEST_CASE(a_last_step_of_fewer_microbatches_leaves_out_those_that_it_lacks) {
  Scratch scratch;
  write_text(scratch.path("text.txt"), 21);
  const std::vector<std::string> kind{"train.max_steps=1000", "data.epochs=2", "eval.interval=0", "metrics.log_interval=3"};
  const Config one = user_config(scratch, "one", "1f1b", 1, kind);
  run_training(one);
  BOOST_TEST(metrics_of(one).back().tokens + metrics_of(one).back().padding < 4 * 48);  // three rows are left
  for (const UserSchedule& schedule : user_schedules) {
    const Config many = user_config(scratch, schedule.name, store(scratch, schedule.name, schedule.text), schedule.ranks, kind);
    run_training_ranks(many);
    check_same_training(many, one, schedule.name);
  }
}

BOOST_AUTO_TEST_CASE(replicas_and_context_ranks_share_a_users_schedule) {
  Scratch scratch;
  for (const char* tied : {"model.tie_embeddings=false", "model.tie_embeddings=true"}) {
    const std::vector<std::string> kind{tied, "train.mixed_precision=f64", "train.max_steps=4", "eval.interval=0", "train.global_batch_size=7"};  // one replica has a microbatch fewer
    const Config one = user_config(scratch, std::string("one ") + tied, "1f1b", 1, kind);
    run_training(one);
    for (const UserSchedule& schedule : user_schedules) {
      std::vector<std::string> two = kind;
      two.push_back("distributed.dp_replicate=2");
      const std::string file = store(scratch, schedule.name, schedule.text);
      const Config replicas = user_config(scratch, fmt::format("{} {}", schedule.name, tied), file, schedule.ranks, two);
      run_training_ranks(replicas);
      BOOST_TEST(difference(metrics_of(replicas), metrics_of(one)) < 1e-11, schedule.name << ", " << tied);
    }
    std::vector<std::string> shared = kind;
    shared.insert(shared.end(), {"distributed.cp=2", "train.global_batch_size=4"});
    const Config whole = user_config(scratch, std::string("whole ") + tied, "1f1b", 1, {tied, "train.mixed_precision=f64", "train.max_steps=4", "eval.interval=0"});
    run_training(whole);
    const Config contexts = user_config(scratch, std::string("contexts ") + tied, scratch.path("v.csv"), 2, shared);
    run_training_ranks(contexts);
    BOOST_TEST(difference(metrics_of(contexts), metrics_of(whole)) < 1e-11, tied);
  }
}

BOOST_AUTO_TEST_CASE(checkpoints_move_to_a_users_schedule_and_back_even_when_its_file_is_gone) {
  Scratch scratch;
  const std::vector<std::string> kind{"model.tie_embeddings=true", "train.microbatch_size=1"};
  const Config whole = ranks_config(scratch, "whole", single, kind);
  run_training(whole);
  const std::string v = store(scratch, "v", user_schedules[2].text), uneven = store(scratch, "uneven", user_schedules[1].text);
  run_moving(scratch, "moved", {{single, 2}, {Layout{2, 1, v}, 3}, {four_stages, 1}, {Layout{2, 1, uneven}, 2}}, kind);
  std::filesystem::remove(uneven);
  run_moving(scratch, "moved", {{there_and_back, 2}, {single, -1}}, kind);
  check_same_training(ranks_config(scratch, "moved", single, kind), whole, "moved");
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_refused_with_the_config_naming_file_and_line) {
  Scratch scratch;
  const std::string good = user_schedules[0].text;
  const auto refused = [&]<class E>(const E*, const std::string& text, std::initializer_list<std::string> parts, std::vector<std::string> overrides = {}) {
    store(scratch, "bad", text);
    check_error<E>([&] { user_config(scratch, "never", scratch.path("bad.csv"), 2, overrides); }, parts);
  };
  const ScheduleError* const schedule = nullptr;
  const ConfigError* const config = nullptr;
  const std::string file = scratch.path("bad.csv"), line_1 = "'" + file + "', line 1: ", line_2 = "'" + file + "', line 2: ";
  refused(schedule, "1B0,1F0,1F1,1B1,1F2,1B2,1F3,1B3\n" + good.substr(good.find('\n') + 1), {line_1 + "1B0 comes before 1F0"});                  // before its forward
  refused(schedule, "1F0,1B0,1F1,1F2,1B2,1F3,1B3\n" + good.substr(good.find('\n') + 1), {line_1 + "1B1 is missing"});                      // missing
  refused(schedule, good.substr(0, good.size() - 1) + ",0B3\n", {line_2, "0B3"});                                              // doubled
  refused(schedule, "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", {line_1 + "the order can not be carried out", "rank 0 with 0B0", "rank 1 with 1F1"});                                                            // ranks wait for each other
  refused(schedule, "0F0,0B0\n2F0,2B0\n", {line_2 + "2F0"});                                                                             // no stage 1
  refused(schedule, "0F0,0X0\n1F0,1B0\n", {line_1, "0X0"});
  refused(config, good + "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n", {"distributed.pp is 2", file, "3 ranks", "distributed.pp = 3"});
  refused(config, "0F0,0B0\n1F0,1B0\n", {file + " has 1 microbatches but a step has 4", "train.microbatch_size = 1"});
  refused(config, good, {file + " has 4 microbatches but a step has 2 on each of 2 replicas"}, {"distributed.dp_replicate=2"});
  refused(config, good, {"distributed.pp_chunks is 2", file + " has 2 stages on 2 ranks", "leave it out"}, {"distributed.pp_chunks=2"});
  refused(config, good, {"distributed.pp_layers is [2, 1, 1], 3 stages", file + " has 2"}, {"distributed.pp_layers=2,1,1"});
  std::string five;  // stages for a model of four layers
  for (const char* line : {"0F{0},2F{0},4F{0},4B{0},2B{0},0B{0}", "1F{0},3F{0},3B{0},1B{0}"}) {
    for (int m = 0; m < 4; ++m) five += (m > 0 ? "," : "") + fmt::format(fmt::runtime(line), m);
    five += '\n';
  }
  refused(config, five, {"more stages than layers", file + " has 5 stages", "model.n_layers is 4"});
  check_error<FileError>([&] { user_config(scratch, "never", scratch.path("missing.csv"), 2); }, {"missing.csv"});
}

BOOST_AUTO_TEST_CASE(a_path_is_relative_to_the_config_and_a_resolved_one_absolute) {
  Scratch scratch;
  store(scratch, "v", user_schedules[2].text);
  const std::string text = "[train]\nglobal_batch_size = 4\nmicrobatch_size = 1\n[data]\ndataset_path = \"x\"\n[distributed]\npp = 2\npp_schedule = \"v.csv\"\n";
  const Config config = parse_config(text, scratch.path("run.toml"), scratch.path());
  BOOST_TEST(config.distributed.pp_schedule == scratch.path("v.csv"));
  BOOST_TEST((resolved(config) == config));
  BOOST_TEST(pipeline_stages(config).rank_of_stage == (std::vector<int64_t>{0, 1, 1, 0}));
  BOOST_TEST(pipeline_stages(config).title() == "v.csv");
  BOOST_TEST((parse_config(to_toml(config), "again", "/elsewhere") == config));
}

BOOST_AUTO_TEST_CASE(ranks_that_read_other_schedules_are_refused) {
  Scratch scratch;
  const std::string first = store(scratch, "first", user_schedules[0].text), second = store(scratch, "second", "1F0,1F1,1B0,1B1,1F2,1B2,1F3,1B3\n0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n");
  std::vector<RankEnd> ends(2);
  run_local(2, {.report = [](const std::string&) {}}, [&](Communicator& world) {
    ends[static_cast<size_t>(world.rank())] = end_of([&] { train_as_rank(user_config(scratch, "run", world.rank() == 0 ? first : second, 2), world); });
  });
  for (const RankEnd& end : ends) BOOST_TEST((end.error == "ConfigError" && end.text.find("pp_schedule") != std::string::npos), end.error << ": " << end.text);
}

BOOST_AUTO_TEST_CASE(selfcheck_probes_a_users_schedule_and_its_controls_see_the_leak) {
  Scratch scratch;
  for (const UserSchedule& schedule : user_schedules) {
    const Config config = user_config(scratch, schedule.name, store(scratch, schedule.name, schedule.text), schedule.ranks);
    const SelfcheckReport report = selfcheck(config, {.tokens = 40});
    BOOST_TEST(report.passed(), report.table());
    BOOST_TEST(report.table().find(fmt::format("pp {} {}.csv", schedule.ranks, schedule.name)) != std::string::npos, report.table());
    BOOST_TEST(report.table().find("equal those of one process, to the bit") != std::string::npos, report.table());
    size_t controls = 0;
    for (const std::string& name : pipeline_breaks(pipeline_stages(config)))
      for (const CheckResult& check : report.checks) controls += check.name == "control, " + name + ": leak probe, packed row";
    BOOST_TEST(controls >= pipeline_breaks(pipeline_stages(config)).size(), report.table());
    for (const std::string& name : pipeline_breaks(pipeline_stages(config))) BOOST_TEST(!selfcheck(config, {.broken = name, .tokens = 40}).passed(), schedule.name << ", " << name);
  }
  const SelfcheckReport other = selfcheck(user_config(scratch, "descending", store(scratch, "descending", descending), 2, {"train.mixed_precision=f64"}), {.tokens = 40});
  BOOST_TEST(other.passed(), other.table());
  BOOST_TEST(other.table().find("allowed: 1e-11") != std::string::npos, other.table());
}

BOOST_AUTO_TEST_CASE(a_schedule_for_fewer_or_more_microbatches_is_whole_and_in_order) {
  for (const char* name : {"gpipe", "1f1b", "zb_h1", "zb_v"})
    for (const int64_t ranks : {1, 2, 4})
      for (const int64_t given : {1, 3, 8})
        for (const int64_t microbatches : {0, 1, 2, 7, 8, 9, 20}) {
          const PipelineSchedule fitted = fit_schedule(make_schedule(name, ranks, std::string(name) == "zb_v" ? 2 : 1, given), microbatches);
          BOOST_CHECK_NO_THROW(check_schedule(fitted));
          BOOST_CHECK_NO_THROW(lower(fitted));
          BOOST_TEST(keeps_gradient_order(fitted));
          BOOST_TEST(fitted.microbatches == microbatches);
        }
  check_error<ScheduleError>([] { fit_schedule(make_schedule("1f1b", 2, 1, 0), 3); }, {"no microbatch"});
}

BOOST_AUTO_TEST_CASE(traces_of_logged_steps_are_kept_and_change_no_bit) {
  Scratch scratch;
  const std::string v = store(scratch, "v", user_schedules[2].text);
  const Config off = user_config(scratch, "off", v, 2), on = user_config(scratch, "on", v, 2, {"metrics.trace=true"});
  run_training_ranks(off);
  run_training_ranks(on);
  check_same_training(on, off, "traced");
  BOOST_TEST(!std::filesystem::exists(off.run.dir + "/traces"));
  const std::vector<std::string> kept = disk().list(on.run.dir + "/traces");
  BOOST_TEST(kept.size() == 12u);
  BOOST_TEST(kept.front() == "step-00000001.json");
  for (const std::string& name : kept) {
    const nlohmann::json trace = nlohmann::json::parse(text_of(on.run.dir + "/traces/" + name));
    std::set<int64_t> processes;
    size_t computed = 0;
    for (const nlohmann::json& event : trace.is_array() ? trace : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      processes.insert(event["pid"].get<int64_t>());
      ++computed;
    }
    BOOST_TEST(processes.size() == 2u);
    BOOST_TEST(computed >= 36u);  // the schedule's actions
  }
  BOOST_TEST(text_of(on.run.dir + "/log.txt").find("all ranks have one machine's clock") != std::string::npos);
  // A long run keeps the last ones.
  const Config many = user_config(scratch, "many", v, 2, {"metrics.trace=true", "train.max_steps=25", "eval.interval=0"});
  run_training_ranks(many);
  const std::vector<std::string> last = disk().list(many.run.dir + "/traces");
  BOOST_TEST(last.size() == 20u);
  BOOST_TEST(last.front() == "step-00000006.json");
  BOOST_TEST(last.back() == "step-00000025.json");
}

BOOST_AUTO_TEST_SUITE_END()
