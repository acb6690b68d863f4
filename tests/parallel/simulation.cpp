#include "parallel/simulation.h"

#include "check.h"
#include "schedules.h"

using namespace quire;
using namespace quire::test;

namespace {

bool near(double a, double b) { return std::abs(a - b) <= 1e-12 * std::max({std::abs(a), std::abs(b), 1.0}); }

/// The bubble where F = I = W = 1 and B = 2, as published; -1 where nothing is.
double published_bubble(const PipelineSchedule& made, int64_t chunks) {
  const double p = static_cast<double>(made.ranks), m = static_cast<double>(made.microbatches), v = static_cast<double>(chunks);
  if (made.microbatches == 0) return 0;
  if (made.name == "zb_h1") return made.microbatches >= made.ranks ? (p - 1) / (3 * m + p - 1) : -1;
  if (made.name == "zb_v") return made.microbatches >= 2 * made.ranks - 1 ? (p - 1) / (6 * m + p - 1) : -1;
  if (chunks > 1 && made.microbatches % made.ranks != 0) return -1;
  return (p - 1) / (v * m + p - 1);
}

/// Most microbatches of a stage that a rank may keep, as published.
int64_t published_peak(const PipelineSchedule& made, int64_t chunks, int64_t rank) {
  const int64_t p = made.ranks, m = made.microbatches;
  if (made.name == "gpipe") return m;
  if (made.name == "1f1b") return std::min(m, p - rank);
  if (made.name == "zb_h1") return std::min(m, p);
  if (made.name == "zb_v") return 2 * std::min(m, p);
  return std::min(m * chunks, 2 * (p - 1 - rank) + (chunks - 1) * p + 1);
}

void check_equal_costs(const PipelineSchedule& made, int64_t chunks) {
  BOOST_CHECK_NO_THROW(lower(made));  // which carries it out with synchronous sends
  if (!keeps_gradient_order(made)) BOOST_ERROR("gradients come in another order");
  const ScheduleCosts costs = ScheduleCosts::equal(made.stages, made.microbatches);
  const Simulation simulation = simulate(made, costs, false);
  const double published = published_bubble(made, chunks), least = critical_path(made, costs);
  if (published >= 0 && !near(simulation.bubble, published)) BOOST_ERROR("a bubble of " << simulation.bubble << ", published is " << published);
  if (simulation.makespan < least - 1e-9) BOOST_ERROR("done after " << simulation.makespan << ", the critical path takes " << least);
  for (int64_t rank = 0; rank < made.ranks; ++rank) {
    const int64_t peak = simulation.peak_bytes[static_cast<size_t>(rank)], most = published_peak(made, chunks, rank);
    if (made.name == "interleaved_1f1b" ? peak > most : peak != most) BOOST_ERROR("rank " << rank << " keeps " << peak << ", published is " << most);
  }
}

constexpr const char* names[] = {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v"};

/// Random costs of every action and message.
ScheduleCosts random_costs(std::mt19937_64& random, int64_t stages, int64_t microbatches) {
  ScheduleCosts costs = ScheduleCosts::equal(stages, microbatches);
  std::uniform_real_distribution<> draw(0, 4);
  for (std::array<double, 4>& seconds : costs.seconds)
    for (double& value : seconds) value = random() % 8 == 0 ? 0 : draw(random);
  for (size_t i = 0; i < costs.seconds.size(); ++i) {
    costs.forward_bytes[i] = static_cast<int64_t>(random() % 1000);
    costs.input_bytes[i] = static_cast<int64_t>(random() % 1000);
  }
  for (int64_t& bytes : costs.message_bytes) bytes = static_cast<int64_t>(random() % 100);
  costs.latency = random() % 3 == 0 ? 0 : draw(random) / 4;
  costs.bytes_per_second = random() % 3 == 0 ? 0 : 20 + draw(random) * 20;
  return costs;
}

/// The begin of every action, found another way: all begins are 0 at first and grow until nothing is earlier than what it waits for.
std::map<std::string, double> begins_by_relaxation(const PipelineSchedule& schedule, const ScheduleCosts& costs) {
  std::map<std::string, double> begins;
  const auto end = [&](const Action& action) { return begins[to_string(action)] + costs.of(action); };
  const auto rank_of = [&](int64_t stage) { return schedule.rank_of_stage[static_cast<size_t>(stage)]; };
  const double speed = costs.bytes_per_second;
  for (bool moved = true; moved;) {
    moved = false;
    // Each rank's messages to each other rank, in the order in which it makes them: when they arrive.
    std::map<std::string, double> arrivals;
    for (const std::vector<Action>& actions : schedule.actions) {
      std::map<int64_t, double> link_free;
      for (const Action& action : actions) {
        const int64_t next = action.kind == F ? action.stage + 1 : action.stage - 1;
        if (action.kind == W || next < 0 || next >= schedule.stages) continue;
        double& arrival = arrivals[fmt::format("{} {} {}", action.kind == F, next, action.microbatch)];
        arrival = end(action);
        if (rank_of(next) == rank_of(action.stage)) continue;
        double& free = link_free[rank_of(next)];
        const double bytes = static_cast<double>(costs.message_bytes[static_cast<size_t>(action.microbatch)]);
        arrival = free = std::max(arrival, free) + costs.latency + (speed > 0 ? bytes / speed : 0);
      }
    }
    for (const std::vector<Action>& actions : schedule.actions)
      for (size_t i = 0; i < actions.size(); ++i) {
        double begin = i == 0 ? 0 : end(actions[i - 1]);
        const auto arrival = arrivals.find(fmt::format("{} {} {}", actions[i].kind == F, actions[i].stage, actions[i].microbatch));
        if (actions[i].kind != W && arrival != arrivals.end()) begin = std::max(begin, arrival->second);
        double& now = begins[to_string(actions[i])];
        moved |= begin > now;
        now = std::max(now, begin);
      }
  }
  return begins;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(simulation)

BOOST_AUTO_TEST_CASE(equal_costs_give_the_published_bubbles_and_peaks) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks)
    for (int64_t chunks = 1; chunks <= 4; ++chunks)
      for (int64_t microbatches = 0; microbatches <= 16; ++microbatches)
        for (const char* name : names)
          if (has_chunks(name, chunks))
            BOOST_TEST_CONTEXT(name << ", " << ranks << " ranks, " << chunks << " chunks, " << microbatches << " microbatches")
              check_equal_costs(make_schedule(name, ranks, chunks, microbatches), chunks);
}

BOOST_AUTO_TEST_CASE(equal_costs_give_the_published_bubbles_and_peaks_of_large_pipelines) {
  std::mt19937_64 random(1);
  const auto check = [](const char* name, int64_t ranks, int64_t chunks, int64_t microbatches) {
    BOOST_TEST_CONTEXT(name << ", " << ranks << " ranks, " << chunks << " chunks, " << microbatches << " microbatches")
      check_equal_costs(make_schedule(name, ranks, chunks, microbatches), chunks);
  };
  for (const char* name : names)
    for (int round = 0; round < 12; ++round) {
      const int64_t ranks = 2 + static_cast<int64_t>(random() % 63);
      const int64_t chunks = std::string(name) == "zb_v" ? 2 : has_chunks(name, 2) ? 1 + static_cast<int64_t>(random() % 4) : 1;
      int64_t microbatches = 1 + static_cast<int64_t>(random() % 512);
      if (round % 2 == 0) microbatches = (microbatches + ranks - 1) / ranks * ranks;
      check(name, ranks, chunks, microbatches);
    }
  for (const char* name : names) check(name, 64, std::string(name) == "zb_v" ? 2 : 1, 512);
  check("zb_v", 64, 2, 127);
  check("zb_h1", 64, 1, 64);
}

// Control: a rank that begins one forward later than it could, and one that keeps back too much.
BOOST_AUTO_TEST_CASE(another_order_has_another_bubble) {
  PipelineSchedule slow = make_schedule("1f1b", 4, 1, 8);
  std::swap(slow.actions[0][3], slow.actions[0][4]);  // 0B0 before 0F3
  const Simulation simulation = simulate(slow, ScheduleCosts::equal(4, 8));
  BOOST_TEST(simulation.bubble > 3.0 / 11 + 0.01);
  const PipelineSchedule split = split_backward(make_schedule("1f1b", 4, 1, 8), 3);  // as zb_h1, with three kept back on every rank
  BOOST_TEST(simulate(split, ScheduleCosts::equal(4, 8)).peak_bytes == (std::vector<int64_t>{7, 6, 5, 4}));
}

BOOST_AUTO_TEST_CASE(a_small_timeline_reads_as_expected) {
  ScheduleCosts costs = ScheduleCosts::equal(2, 2, 1, 1, 1);
  costs.latency = 0.25;
  costs.bytes_per_second = 8;
  costs.message_bytes = {2, 10};
  const Simulation simulation = simulate(make_schedule("1f1b", 2, 1, 2), costs);
  const auto text = [](const std::vector<TimelineSpan>& spans) {
    std::string all;
    for (const TimelineSpan& span : spans) all += fmt::format("{} {}-{}, ", to_string(span.action), span.begin, span.end);
    return all;
  };
  BOOST_TEST(text(simulation.timeline.spans[0]) == "0F0 0-1, 0F1 1-2, 0B0 5-7, 0B1 9-11, ");
  BOOST_TEST(text(simulation.timeline.spans[1]) == "1F0 1.5-2.5, 1B0 2.5-4.5, 1F1 4.5-5.5, 1B1 5.5-7.5, ");
}

BOOST_AUTO_TEST_CASE(times_are_those_of_a_relaxation_over_all_that_is_waited_for) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 300; ++round) {
    const int64_t ranks = 1 + static_cast<int64_t>(random() % 4), chunks = 1 + static_cast<int64_t>(random() % 3);
    const int64_t microbatches = static_cast<int64_t>(random() % 7);
    const PipelineSchedule schedule = round % 3 == 0 ? make_schedule("zb_v", ranks, 2, microbatches)
                                      : round % 3 == 1 ? make_schedule("interleaved_1f1b", ranks, chunks, microbatches)
                                                       : random_schedule(random, v_placement(ranks, ranks * chunks), ranks, microbatches);
    const ScheduleCosts costs = random_costs(random, schedule.stages, microbatches);
    const Simulation simulation = simulate(schedule, costs);
    BOOST_TEST_CONTEXT("round " << round << "\n" << quire::describe(schedule)) {
      std::map<std::string, double> begins = begins_by_relaxation(schedule, costs);
      for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
        BOOST_REQUIRE_EQUAL(simulation.timeline.spans[rank].size(), schedule.actions[rank].size());
        for (size_t i = 0; i < schedule.actions[rank].size(); ++i) {
          const TimelineSpan& span = simulation.timeline.spans[rank][i];
          BOOST_TEST((span.action == schedule.actions[rank][i]));
          BOOST_TEST(near(span.begin, begins.at(to_string(span.action))));
          BOOST_TEST(near(span.end - span.begin, costs.of(span.action)));
        }
      }
      BOOST_TEST(near(simulation.makespan, simulation.timeline.makespan()));
      BOOST_TEST(near(simulation.bubble, simulation.timeline.bubble()));
      BOOST_TEST(simulation.makespan >= critical_path(schedule, costs) - 1e-9);
      const Simulation without = simulate(schedule, costs, false);
      BOOST_TEST(without.makespan == simulation.makespan);
      BOOST_TEST(without.peak_bytes == simulation.peak_bytes);
      BOOST_TEST(without.timeline.makespan() == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(messages_take_their_time_one_after_the_other) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    const int64_t ranks = 2 + static_cast<int64_t>(random() % 3), microbatches = 1 + static_cast<int64_t>(random() % 6);
    const PipelineSchedule schedule = random_schedule(random, v_placement(ranks, 2 * ranks), ranks, microbatches);
    const ScheduleCosts costs = random_costs(random, schedule.stages, microbatches);
    const Simulation simulation = simulate(schedule, costs);
    BOOST_TEST(simulation.timeline.transfers.size() == static_cast<size_t>(2 * (2 * ranks - 2) * microbatches));
    std::map<std::pair<int64_t, int64_t>, double> free;
    std::vector<TimelineTransfer> transfers = simulation.timeline.transfers;
    std::stable_sort(transfers.begin(), transfers.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (const TimelineTransfer& transfer : transfers) {
      const double bytes = static_cast<double>(transfer.bytes);
      BOOST_TEST(transfer.bytes == costs.message_bytes[static_cast<size_t>(transfer.consumer.microbatch)]);
      BOOST_TEST(near(transfer.end - transfer.begin, costs.latency + (costs.bytes_per_second > 0 ? bytes / costs.bytes_per_second : 0)));
      double& until = free[{transfer.from, transfer.to}];
      BOOST_TEST(transfer.begin >= until - 1e-9);
      until = transfer.end;
      BOOST_TEST(transfer.to == schedule.rank_of_stage[static_cast<size_t>(transfer.consumer.stage)]);
    }
  }
}

BOOST_AUTO_TEST_CASE(bytes_are_kept_from_a_forward_to_its_backward_and_its_weight_gradients) {
  ScheduleCosts costs = ScheduleCosts::equal(1, 3);
  costs.forward_bytes = {100, 10, 1};
  costs.input_bytes = {7, 500, 2};
  PipelineSchedule schedule{"by hand", 1, 1, 3, {0}, {{{F, 0, 0}, {F, 0, 1}, {B, 0, 0}, {F, 0, 2}, {B, 0, 1}, {B, 0, 2}}}};
  BOOST_TEST(simulate(schedule, costs).peak_bytes[0] == 110);
  schedule.actions[0] = {{F, 0, 0}, {F, 0, 1}, {I, 0, 1}, {W, 0, 1}, {B, 0, 0}, {F, 0, 2}, {B, 0, 2}};
  BOOST_TEST(simulate(schedule, costs).peak_bytes[0] == 600);  // 100 of microbatch 0 and what the input gradient of 1 left
  schedule.actions[0] = {{F, 0, 0}, {I, 0, 0}, {F, 0, 1}, {F, 0, 2}, {B, 0, 1}, {B, 0, 2}, {W, 0, 0}};
  BOOST_TEST(simulate(schedule, costs).peak_bytes[0] == 100);
}

// The critical path is what no order beats. On tiny pipelines all orders are tried.
BOOST_AUTO_TEST_CASE(no_order_of_a_small_pipeline_is_shorter_than_its_critical_path) {
  std::mt19937_64 random(4);
  bool reached = false;
  for (int round = 0; round < 40; ++round) {
    PipelineSchedule schedule = make_schedule(round % 2 == 0 ? "1f1b" : "zb_h1", 2, 1, round % 2 == 0 ? 2 : 1);
    const ScheduleCosts costs = random_costs(random, 2, schedule.microbatches);
    const double least = critical_path(schedule, costs);
    double best = std::numeric_limits<double>::infinity();
    const auto by_text = [](const Action& a, const Action& b) { return to_string(a) < to_string(b); };
    for (std::vector<Action>& actions : schedule.actions) std::sort(actions.begin(), actions.end(), by_text);
    do {
      do {
        try {
          best = std::min(best, simulate(schedule, costs, false).makespan);
        } catch (const ScheduleError&) {
        }
      } while (std::next_permutation(schedule.actions[1].begin(), schedule.actions[1].end(), by_text));
    } while (std::next_permutation(schedule.actions[0].begin(), schedule.actions[0].end(), by_text));
    BOOST_TEST(best >= least - 1e-9);
    reached |= best <= least + 1e-9;
  }
  BOOST_TEST(reached);  // else the bound would say little
}

BOOST_AUTO_TEST_CASE(the_critical_path_counts_chains_and_ranks) {
  BOOST_TEST(critical_path(make_schedule("1f1b", 4, 1, 1), ScheduleCosts::equal(4, 1)) == 12.0);
  BOOST_TEST(critical_path(make_schedule("1f1b", 4, 1, 9), ScheduleCosts::equal(4, 9)) == 3.0 * (9 + 3));
  BOOST_TEST(critical_path(make_schedule("zb_h1", 4, 1, 9), ScheduleCosts::equal(4, 9)) == 3.0 * 9 + 3);
  BOOST_TEST(critical_path(make_schedule("zb_v", 4, 2, 9), ScheduleCosts::equal(8, 9)) == 6.0 * 9 + 3);
  BOOST_TEST(critical_path(forward_schedule(4, 1, 9), ScheduleCosts::equal(4, 9)) == 12.0);
  BOOST_TEST(critical_path(make_schedule("gpipe", 4, 1, 0), ScheduleCosts::equal(4, 0)) == 0.0);
  ScheduleCosts slow = ScheduleCosts::equal(4, 1);
  slow.latency = 2;
  BOOST_TEST(critical_path(make_schedule("1f1b", 4, 1, 1), slow) == 12.0 + 6 * 2);
}

BOOST_AUTO_TEST_CASE(a_simulation_of_a_thousand_ranks_counts_every_action) {
  for (const char* name : {"1f1b", "zb_h1"}) {
    const PipelineSchedule made = make_schedule(name, 1024, 1, 16);
    const ScheduleCosts costs = ScheduleCosts::equal(1024, 16);
    const Simulation simulation = simulate(made, costs, false);
    BOOST_TEST(simulation.makespan >= critical_path(made, costs));
    BOOST_TEST(near(simulation.bubble, 1 - 3.0 * 16 / simulation.makespan));
  }
}

BOOST_AUTO_TEST_CASE(costs_that_do_not_fit_are_refused) {
  const PipelineSchedule made = make_schedule("1f1b", 2, 1, 3);
  const ScheduleCosts costs = ScheduleCosts::equal(2, 3);
  const auto refused = [&](auto&& change, std::initializer_list<std::string> parts) {
    ScheduleCosts broken = costs;
    change(broken);
    check_error<ScheduleError>([&] { simulate(made, broken); }, parts);
    check_error<ScheduleError>([&] { critical_path(made, broken); }, parts);
  };
  BOOST_CHECK_NO_THROW(simulate(made, costs));
  refused([](ScheduleCosts& c) { c = ScheduleCosts::equal(3, 3); }, {"3 stages", "schedule of 2"});
  refused([](ScheduleCosts& c) { c = ScheduleCosts::equal(2, 4); }, {"4 microbatches", "of 2 and 3"});
  refused([](ScheduleCosts& c) { c.seconds.pop_back(); }, {"5 seconds"});
  refused([](ScheduleCosts& c) { c.message_bytes.push_back(1); }, {"4 messages"});
  refused([](ScheduleCosts& c) { c.seconds[4][1] = -1; }, {"stage 1, microbatch 1", "-1 seconds"});
  refused([](ScheduleCosts& c) { c.seconds[2][0] = std::numeric_limits<double>::quiet_NaN(); }, {"stage 0, microbatch 2", "nan"});
  refused([](ScheduleCosts& c) { c.forward_bytes[5] = -3; }, {"stage 1, microbatch 2", "-3"});
  refused([](ScheduleCosts& c) { c.message_bytes[1] = -8; }, {"microbatch 1", "-8"});
  refused([](ScheduleCosts& c) { c.latency = -0.5; }, {"-0.5"});
  refused([](ScheduleCosts& c) { c.bytes_per_second = std::numeric_limits<double>::infinity(); }, {"inf"});
  PipelineSchedule broken = made;
  broken.actions[1].pop_back();
  check_error<ScheduleError>([&] { simulate(broken, costs); }, {"1B2 is missing"});
}

BOOST_AUTO_TEST_SUITE_END()
