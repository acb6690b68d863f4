#include "parallel/schedule.h"

#include "check.h"
#include "schedules.h"

using namespace quire;
using namespace quire::test;

namespace {

/// The schedule with `change` made to the actions of `rank`.
template <class F>
PipelineSchedule changed(PipelineSchedule schedule, size_t rank, F&& change) {
  change(schedule.actions[rank]);
  return schedule;
}

size_t place_of(const std::vector<Action>& actions, const Action& action) {
  const auto found = std::find(actions.begin(), actions.end(), action);
  BOOST_REQUIRE(found != actions.end());
  return static_cast<size_t>(found - actions.begin());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(schedule)

BOOST_AUTO_TEST_CASE(actions_are_written_as_pytorch_writes_them) {
  BOOST_TEST(to_string(Action{F, 2, 0}) == "2F0");
  BOOST_TEST(to_string(Action{B, 0, 13}) == "0B13");
  BOOST_TEST(to_string(Action{I, 10, 1}) == "10I1");
  BOOST_TEST(to_string(Action{W, 1, 2}) == "1W2");
}

BOOST_AUTO_TEST_CASE(small_schedules_are_those_of_the_papers) {
  BOOST_TEST(describe(make_schedule("gpipe", 2, 1, 3)) == "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
  BOOST_TEST(describe(make_schedule("1f1b", 2, 1, 4)) ==
             "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n"
             "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n");
  BOOST_TEST(describe(make_schedule("interleaved_1f1b", 2, 2, 4)) ==
             "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
             "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
  BOOST_TEST(describe(forward_schedule(2, 2, 3)) == "0F0,0F1,2F0,2F1,0F2,2F2\n1F0,1F1,3F0,3F1,1F2,3F2\n");
}

BOOST_AUTO_TEST_CASE(fewer_microbatches_than_ranks_and_none_are_scheduled) {
  BOOST_TEST(describe(make_schedule("1f1b", 4, 1, 1)) == "0F0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0\n");
  BOOST_TEST(describe(make_schedule("interleaved_1f1b", 3, 2, 1)) == "0F0,3F0,3B0,0B0\n1F0,4F0,4B0,1B0\n2F0,5F0,5B0,2B0\n");
  BOOST_TEST(describe(make_schedule("interleaved_1f1b", 2, 2, 0)) == "\n\n");
  BOOST_TEST(describe(make_schedule("gpipe", 2, 1, 0)) == "\n\n");
}

BOOST_AUTO_TEST_CASE(built_in_schedules_are_valid_and_keep_the_order_of_gradients) {
  for_built_in_schedules([](const PipelineSchedule& made, int64_t chunks) {
    BOOST_CHECK_NO_THROW(check_schedule(made));
    BOOST_TEST(keeps_gradient_order(made));
    BOOST_TEST(made.stages == made.ranks * chunks);
    for (const std::vector<Action>& actions : made.actions) {
      std::map<int64_t, int64_t> forwards;  // next of each stage
      for (const Action& action : actions)
        if (action.kind == F) BOOST_TEST(action.microbatch == forwards[action.stage]++);
    }
    BOOST_TEST(made.rank_of_stage == place_stages(made.name, made.ranks, chunks));
  });
}

BOOST_AUTO_TEST_CASE(stages_are_placed_round_the_ranks_or_down_and_back_up) {
  BOOST_TEST(place_stages("interleaved_1f1b", 3, 2) == (std::vector<int64_t>{0, 1, 2, 0, 1, 2}));
  BOOST_TEST(place_stages("zb_h1", 3, 1) == (std::vector<int64_t>{0, 1, 2}));
  BOOST_TEST(place_stages("zb_v", 3, 2) == (std::vector<int64_t>{0, 1, 2, 2, 1, 0}));
  check_error<ConfigError>([] { place_stages("zb_v", 0, 2); }, {"distributed.pp", "0"});
  check_error<ConfigError>([] { place_stages("1f1b", 2, 0); }, {"distributed.pp_chunks", "0"});
}

BOOST_AUTO_TEST_CASE(no_rank_keeps_more_in_flight_than_the_papers_say) {
  for_built_in_schedules([](const PipelineSchedule& made, int64_t chunks) {
    for (int64_t rank = 0; rank < made.ranks; ++rank) {
      const int64_t in_flight = most_in_flight(made, static_cast<size_t>(rank));
      if (made.name == "gpipe")
        BOOST_TEST(in_flight == made.microbatches);
      else if (made.name == "zb_h1")
        BOOST_TEST(in_flight == std::min(made.microbatches, made.ranks));
      else if (made.name == "zb_v")
        BOOST_TEST(in_flight <= 2 * std::min(made.microbatches, made.ranks));
      else if (chunks == 1)
        BOOST_TEST(in_flight == std::min(made.microbatches, made.ranks - rank));
      else if (made.name == "interleaved_1f1b")
        BOOST_TEST(in_flight <= std::min(made.microbatches * chunks, 2 * (made.ranks - 1 - rank) + (chunks - 1) * made.ranks + 1));
    }
  });
}

BOOST_AUTO_TEST_CASE(gpipe_does_all_forwards_then_all_backwards_ascending) {
  for_built_in_schedules([](const PipelineSchedule& made, int64_t) {
    if (made.name != "gpipe") return;
    for (int64_t rank = 0; rank < made.ranks; ++rank)
      for (int64_t i = 0; i < 2 * made.microbatches; ++i) {
        const Action expected{i < made.microbatches ? F : B, rank, i % made.microbatches};
        BOOST_TEST((made.actions[static_cast<size_t>(rank)][static_cast<size_t>(i)] == expected));
      }
  });
}

BOOST_AUTO_TEST_CASE(what_a_rank_keeps_is_bounded) {
  for_built_in_schedules([](const PipelineSchedule& made, int64_t) {
    const std::vector<int64_t> kept = most_kept(made);
    for (size_t rank = 0; rank < kept.size(); ++rank) BOOST_TEST(kept[rank] == most_in_flight(made, rank));
    const int64_t most = *std::max_element(kept.begin(), kept.end());
    BOOST_CHECK_NO_THROW(check_kept(made, most));
    if (most > 0) check_error<ScheduleError>([&] { check_kept(made, most - 1); }, {made.name, "rank", "F", fmt::format("keeps {} microbatches", most)});
  });
  check_error<ScheduleError>([] { check_kept(make_schedule("gpipe", 2, 1, 5), 3); }, {"gpipe", "rank 0", "0F3", "keeps 4", "allowed: 3"});
  // A W that comes late keeps its microbatch.
  check_error<ScheduleError>([] { check_kept(split_backward(make_schedule("1f1b", 2, 1, 5), 9), 2); }, {"rank 0", "0F2", "keeps 3"});
}

// Narayanan et al. 2021: the bubble takes (p - 1) of m + p - 1 parts of the time, and the number of chunks divides it.
BOOST_AUTO_TEST_CASE(bubbles_are_those_of_the_papers) {
  for_built_in_schedules([](const PipelineSchedule& made, int64_t chunks) {
    if (is_split(made) || made.microbatches == 0 || (chunks > 1 && made.microbatches % made.ranks != 0)) return;
    for (const int64_t backward : {1, 2}) {
      const int64_t work = (1 + backward) * made.microbatches * chunks, whole = (1 + backward) * (made.ranks - 1);
      BOOST_TEST(time_of(made, 1, backward) == work + whole);  // in units of a chunk: `whole` is 1 / chunks of what it is for whole stages
    }
  });
}

// Qi et al. 2023: with F = I = W = 1, all ranks together idle as if the last one had to wait for the first microbatch alone.
BOOST_AUTO_TEST_CASE(zb_h1_idles_for_a_third_of_what_1f1b_does) {
  for_built_in_schedules([](const PipelineSchedule& made, int64_t) {
    if (made.name != "zb_h1" || made.microbatches < made.ranks) return;
    BOOST_TEST(time_of(made, 1, 2) == 3 * made.microbatches + made.ranks - 1);
  });
}

// Qi et al. 2024: a rank of zb_v that has begun does not wait; the last one begins when the first microbatch is there.
BOOST_AUTO_TEST_CASE(zb_v_idles_only_until_the_first_microbatch_is_there) {
  for_built_in_schedules([](const PipelineSchedule& made, int64_t) {
    if (made.name != "zb_v" || made.microbatches < 2 * made.ranks - 1) return;
    BOOST_TEST(time_of(made, 1, 2) == 6 * made.microbatches + made.ranks - 1);
  });
}

// Half the stages' work each: two stages of zb_v are one of zb_h1 and of 1f1b.
BOOST_AUTO_TEST_CASE(zb_v_is_done_before_zb_h1_and_zb_h1_before_1f1b) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks)
    for (int64_t microbatches = 0; microbatches <= 16; ++microbatches)
      BOOST_TEST_CONTEXT(ranks << " ranks, " << microbatches << " microbatches") {
        const int64_t zb_v = time_of(make_schedule("zb_v", ranks, 2, microbatches), 1, 2), zb_h1 = time_of(make_schedule("zb_h1", ranks, 1, microbatches), 2, 4);
        BOOST_TEST(zb_v <= zb_h1);
        BOOST_TEST(zb_h1 <= time_of(make_schedule("1f1b", ranks, 1, microbatches), 2, 4));
      }
}

BOOST_AUTO_TEST_CASE(an_incomplete_group_takes_no_longer_than_a_whole_one) {
  for_built_in_schedules([](const PipelineSchedule& made, int64_t chunks) {
    if (is_split(made) || chunks == 1 || made.microbatches % made.ranks == 0) return;
    const int64_t whole = (made.microbatches / made.ranks + 1) * made.ranks;
    for (const int64_t backward : {1, 2}) {
      const int64_t time = time_of(made, 1, backward);
      BOOST_TEST(time <= (1 + backward) * (whole * chunks + made.ranks - 1));
      BOOST_TEST(time < time_of(make_schedule("gpipe", made.ranks, 1, made.microbatches), chunks, backward * chunks) + made.ranks * chunks);
    }
  });
}

BOOST_AUTO_TEST_CASE(forward_schedules_fill_the_pipe_once) {
  for (int64_t ranks = 1; ranks <= 6; ++ranks)
    for (int64_t chunks = 1; chunks <= 4; ++chunks)
      for (int64_t microbatches = 0; microbatches <= 13; ++microbatches) {
        const PipelineSchedule made = forward_schedule(ranks, chunks, microbatches);
        BOOST_CHECK_NO_THROW(check_schedule(made));
        BOOST_TEST(made.stages == ranks * chunks);
        if (microbatches > 0 && microbatches % ranks == 0) BOOST_TEST(time_of(made, 1, 1) == microbatches * chunks + ranks - 1);
      }
}

BOOST_AUTO_TEST_CASE(forward_schedules_of_any_placement_fill_the_pipe_once) {
  BOOST_TEST(describe(forward_schedule({0, 1, 1, 0}, 2, 3)) == "0F0,0F1,0F2,3F0,3F1,3F2\n1F0,2F0,1F1,2F1,1F2,2F2\n");
  std::mt19937_64 random(1);
  for (int64_t ranks = 1; ranks <= 5; ++ranks)
    for (int64_t microbatches = 0; microbatches <= 9; ++microbatches) {
      const PipelineSchedule made = forward_schedule(place_stages("zb_v", ranks, 2), ranks, microbatches);
      BOOST_CHECK_NO_THROW(check_schedule(made));
      if (microbatches > ranks) BOOST_TEST(time_of(made, 1, 1) <= 2 * microbatches + 2 * ranks - 1);
      std::vector<int64_t> placement(1 + random() % 9);
      for (int64_t& rank : placement) rank = static_cast<int64_t>(random() % static_cast<uint64_t>(ranks));
      BOOST_CHECK_NO_THROW(check_schedule(forward_schedule(placement, ranks, microbatches)));
    }
  check_error<ScheduleError>([] { forward_schedule({0, 2}, 2, 1); }, {"rank 2", "2 ranks"});
}

BOOST_AUTO_TEST_CASE(split_backward_keeps_at_most_that_many_weight_gradients_back) {
  BOOST_TEST(describe(split_backward(make_schedule("1f1b", 2, 1, 3), 0)) ==
             "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n1F0,1I0,1W0,1F1,1I1,1W1,1F2,1I2,1W2\n");
  BOOST_TEST(describe(split_backward(make_schedule("1f1b", 2, 1, 3), 2)) ==
             "0F0,0F1,0I0,0F2,0I1,0I2,0W0,0W1,0W2\n1F0,1I0,1F1,1I1,1F2,1I2,1W0,1W1,1W2\n");
  for_built_in_schedules([](const PipelineSchedule& made, int64_t) {
    if (is_split(made)) return;
    for (const int64_t delay : {0, 1, 3, 100}) {
      const PipelineSchedule split = split_backward(made, delay);
      BOOST_CHECK_NO_THROW(check_schedule(split));
      BOOST_TEST(keeps_gradient_order(split));
      for (size_t rank = 0; rank < split.actions.size(); ++rank) {
        int64_t kept = 0, most = 0;
        for (const Action& action : split.actions[rank]) {
          BOOST_TEST((action.kind != B));
          // An I whose W follows at once keeps nothing back, so what counts is what is kept over another action.
          if (action.kind != W) most = std::max(most, kept);
          kept += action.kind == I ? 1 : action.kind == W ? -1 : 0;
        }
        BOOST_TEST(kept == 0);
        const int64_t backwards = static_cast<int64_t>(made.actions[rank].size()) / 2;
        BOOST_TEST(most == std::min(delay, std::max<int64_t>(backwards - 1, 0)));
      }
    }
  });
  check_error<ConfigError>([] { split_backward(make_schedule("1f1b", 2, 1, 3), -1); }, {"-1"});
}

BOOST_AUTO_TEST_CASE(gradient_order_is_told_from_the_weight_gradients) {
  const PipelineSchedule made = make_schedule("gpipe", 2, 1, 3);
  const auto swap = [](ActionKind kind) {
    return [kind](std::vector<Action>& actions) {
      std::swap(actions[place_of(actions, {kind, 1, 0})], actions[place_of(actions, {kind, 1, 2})]);
    };
  };
  BOOST_TEST(keeps_gradient_order(changed(made, 1, swap(F))));
  const PipelineSchedule other = changed(made, 1, swap(B));  // a user may order so, but the sums' bits are others
  BOOST_CHECK_NO_THROW(check_schedule(other));
  BOOST_TEST(!keeps_gradient_order(other));
  const PipelineSchedule split = split_backward(made, 5);
  BOOST_TEST(!keeps_gradient_order(changed(split, 1, swap(I))));  // norms get their gradients with the input's
  BOOST_TEST(!keeps_gradient_order(changed(split, 1, swap(W))));
}

BOOST_AUTO_TEST_CASE(settings_that_no_schedule_has_are_refused) {
  check_error<ConfigError>([] { make_schedule("1f1bb", 2, 1, 4); }, {"distributed.pp_schedule", "1f1bb", "did you mean 1f1b?", "gpipe"});
  check_error<ConfigError>([] { make_schedule("gpipe", 2, 2, 4); }, {"distributed.pp_chunks", "2", "gpipe", "interleaved_1f1b allows"});
  check_error<ConfigError>([] { make_schedule("1f1b", 1, 3, 4); }, {"distributed.pp_chunks", "3", "1f1b", "interleaved_1f1b allows"});
  check_error<ConfigError>([] { make_schedule("zb_h1", 2, 2, 4); }, {"distributed.pp_chunks", "2", "zb_h1", "interleaved_1f1b allows"});
  check_error<ConfigError>([] { make_schedule("zb_v", 2, 1, 4); }, {"distributed.pp_chunks", "1 stages", "zb_v has 2"});
  check_error<ConfigError>([] { make_schedule("interleaved_1f1b", 2, 0, 4); }, {"distributed.pp_chunks", "0"});
  check_error<ConfigError>([] { make_schedule("gpipe", 0, 1, 4); }, {"distributed.pp", "0"});
  check_error<ConfigError>([] { make_schedule("gpipe", 1, 1, -1); }, {"-1 microbatches"});
  check_error<ConfigError>([] { forward_schedule(0, 1, 1); }, {"distributed.pp", "0"});
}

// Each control breaks one thing of a schedule that is right.
BOOST_AUTO_TEST_CASE(incomplete_schedules_are_refused) {
  const PipelineSchedule made = make_schedule("interleaved_1f1b", 2, 2, 3), split = split_backward(made, 2);
  const auto without = [](const Action& action) {
    return [action](std::vector<Action>& actions) {
      actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(place_of(actions, action)));
    };
  };
  const auto with = [](const Action& action) { return [action](std::vector<Action>& actions) { actions.push_back(action); }; };
  const auto refused = [](const PipelineSchedule& broken, std::initializer_list<std::string> parts) {
    check_error<ScheduleError>([&] { check_schedule(broken); }, parts);
    check_error<ScheduleError>([&] { lower(broken); }, parts);
  };
  refused(changed(made, 0, without({F, 2, 1})), {"rank 0", "2F1 is missing"});
  refused(changed(made, 1, without({B, 3, 2})), {"rank 1", "3B2 is missing"});
  refused(changed(split, 1, without({I, 3, 2})), {"rank 1", "missing"});
  refused(changed(split, 1, without({W, 3, 2})), {"rank 1", "3W2 is missing"});
  refused(changed(forward_schedule(2, 1, 2), 1, without({F, 1, 0})), {"rank 1", "1F0 is missing"});
  refused(changed(forward_schedule(2, 1, 2), 1, with({B, 1, 0})), {"rank 0", "0B0 is missing"});
  refused(changed(made, 0, with({B, 2, 1})), {"rank 0", "2B1", "does again"});
  refused(changed(made, 0, with({F, 0, 0})), {"rank 0", "0F0", "does again"});
  refused(changed(made, 0, with({I, 0, 0})), {"rank 0", "0I0", "does again", "0B0"});
  refused(changed(made, 0, with({W, 0, 0})), {"rank 0", "0W0", "part of 0B0"});
  refused(changed(changed(made, 0, without({F, 2, 1})), 1, with({F, 2, 1})), {"rank 1", "2F1", "rank 0"});
  refused(changed(made, 0, with({F, 4, 0})), {"rank 0", "4F0", "4 stages"});
  refused(changed(made, 0, with({F, 0, 3})), {"rank 0", "0F3", "3 microbatches"});
  refused(changed(made, 0, with({F, -1, 0})), {"rank 0", "-1F0"});
  PipelineSchedule sizes = made;
  sizes.rank_of_stage.pop_back();
  refused(sizes, {"3 stages"});
  sizes = made;
  sizes.actions.pop_back();
  refused(sizes, {"1 ranks"});
  sizes = made;
  sizes.rank_of_stage[1] = 2;
  refused(sizes, {"stage 1", "rank 2"});
}

BOOST_AUTO_TEST_CASE(schedules_out_of_order_are_refused) {
  const auto refused = [](const PipelineSchedule& broken, std::initializer_list<std::string> parts) {
    check_error<ScheduleError>([&] { check_schedule(broken); }, parts);
  };
  const auto swap = [](const Action& a, const Action& b) {
    return [a, b](std::vector<Action>& actions) {
      std::swap(actions[place_of(actions, a)], actions[place_of(actions, b)]);
    };
  };
  const PipelineSchedule made = make_schedule("1f1b", 2, 1, 3);
  refused(changed(made, 1, swap({F, 1, 1}, {B, 1, 1})), {"rank 1", "1B1", "before 1F1"});
  refused(changed(split_backward(made, 0), 1, swap({I, 1, 1}, {W, 1, 1})), {"rank 1", "1W1", "before 1I1"});
  // Rank 0 backwards microbatch 0 before it forwards 1, rank 1 wants 1 before it backwards 0: each list is right by itself.
  PipelineSchedule circle = changed(make_schedule("gpipe", 2, 1, 2), 0, swap({F, 0, 1}, {B, 0, 0}));
  refused(circle, {"wait forever", "rank 0 with 0B0 for 1B0 of rank 1", "rank 1 with 1F1 for 0F1 of rank 0"});
  // On one rank: the later stage's forward first.
  refused(changed(forward_schedule(1, 2, 1), 0, swap({F, 0, 0}, {F, 1, 0})), {"rank 0 with 1F0 for 0F0"});
}

// Megatron-LM's turns over an incomplete group, which `make_schedule` does not use, are a case where the check is needed.
BOOST_AUTO_TEST_CASE(turns_over_an_incomplete_group_wait_forever) {
  const int64_t ranks = 4, chunks = 3, microbatches = 5;
  PipelineSchedule naive = make_schedule("interleaved_1f1b", ranks, chunks, microbatches);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& actions = naive.actions[static_cast<size_t>(rank)];
    std::vector<Action> forwards, backwards;
    for (const Action& action : actions) (action.kind == F ? forwards : backwards).push_back(action);
    const size_t lead = std::min(forwards.size(), static_cast<size_t>(2 * (ranks - 1 - rank) + (chunks - 1) * ranks));
    actions.clear();
    for (size_t i = 0; i < forwards.size() + lead; ++i) {
      if (i < forwards.size()) actions.push_back(forwards[i]);
      if (i >= lead) actions.push_back(backwards[i - lead]);
    }
  }
  check_error<ScheduleError>([&] { check_schedule(naive); }, {"wait forever"});
}

BOOST_AUTO_TEST_SUITE_END()
