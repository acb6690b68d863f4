// What context parallelism comes to: costs of a config, numbers of its microbatches, and that the bytes told are those that are sent.
#include "run/context_report.h"

#include <fstream>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <numeric>

#include "check.h"
#include "in_rank.h"
#include "run/context_costs.h"
#include "run/context_decision.h"
#include "run/context_speeds.h"
#include "run/data_source.h"
#include "run/planned_step.h"
#include "run/scratch.h"
#include "run/trainer.h"

using namespace quire;
using quire::test::check_error;
using quire::test::random_lengths;
using quire::test::Scratch;

namespace {

Config config_of(const std::vector<std::string>& overrides = {}) {
  return parse_config(R"([model]
dim = 32
n_layers = 3
n_heads = 4
n_kv_heads = 2
ffn_hidden_dim = 48
vocab_size = 257
sliding_window = [0, 16, 16]
[train]
seq_len = 96
global_batch_size = 4
microbatch_size = 2
[data]
dataset_path = "text.txt"
)", "test.toml", "/folder", overrides);
}

const std::pair<const char*, const char*> all_plans[] = {{"balanced", "ring"},     {"balanced", "gather"}, {"contiguous", "ring"},
                                                         {"contiguous", "gather"}, {"zigzag", "ring"},     {"zigzag", "gather"},
                                                         {"contiguous", "heads"}};

ContextReport report_of(const Config& config, const std::vector<Documents>& microbatches, int64_t microbatch = 0) {
  const ContextChoice choice = choose_context(microbatches, config.distributed.cp, context_model(config), {1e9, 1e10, 1e9, 1e-5},
                                              asked_layout(config), asked_exchange(config));
  return report_context(config, microbatches, 1, microbatch, choice);
}

std::vector<Documents> some_microbatches(uint64_t seed, int64_t tokens = 192, int count = 2) {
  std::mt19937_64 random(seed);
  std::vector<Documents> all;
  for (int i = 0; i < count; ++i) all.push_back(Documents::from_lengths(random_lengths(random, tokens)));
  return all;
}

LoadedStep step_of(const std::vector<Documents>& microbatches, const Config& config) {
  LoadedStep step;
  step.plan.rows.resize(static_cast<size_t>(config.train.global_batch_size));
  for (size_t i = 0; i < microbatches.size(); ++i) {
    HostBatch host;
    host.documents = microbatches[i];
    host.index = static_cast<int64_t>(i);
    host.rows = config.train.microbatch_size;
    for (int64_t t = 0; t < microbatches[i].tokens(); ++t) host.tokens.push_back(static_cast<int32_t>((t * 31 + static_cast<int64_t>(i)) % 257));
    host.targets = host.tokens;
    host.valid = microbatches[i].tokens();
    step.plan.valid += host.valid;
    step.plan.tokens += host.valid;
    step.microbatches.push_back(std::move(host));
  }
  return step;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(context_reports)

BOOST_AUTO_TEST_CASE(costs_are_those_of_the_model) {
  const ContextCosts costs = context_costs(config_of());
  const std::vector<LayerWindow> windows{{0, 1}, {16, 2}};
  BOOST_TEST((costs.windows == windows));
  // 3 layers of 2 x 32 x 32 (queries, output), 2 x 32 x 16 (keys, values), 3 x 32 x 48 (gates) weights, and the head's 32 x 257; a pair is two products of 32.
  BOOST_TEST(costs.token_cost == (3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48) + 32 * 257) / (2 * 32));
  BOOST_TEST(context_costs(config_of({"model.sliding_window=[]"})).windows.size() == 1U);
  BOOST_TEST(context_model(config_of()).layers() == 3);
  BOOST_TEST(context_model(config_of()).row_bytes() == 2 * 2 * 8 * 4);
  BOOST_TEST(context_model(config_of({"train.mixed_precision=bf16"})).row_bytes() == 2 * 2 * 8 * 2);
  BOOST_TEST(context_model(config_of({"train.mixed_precision=bf16"})).row_gradient_bytes() == 2 * 2 * 8 * 4);
}

BOOST_AUTO_TEST_CASE(numbers_are_those_of_the_plan) {
  const std::vector<Documents> microbatches = some_microbatches(1);
  for (const int64_t ranks : {2, 4, 5}) {
    const Config config = config_of({fmt::format("distributed.cp={}", ranks), "distributed.cp_layout=zigzag", "distributed.cp_exchange=ring"});
    const ContextReport report = report_of(config, microbatches, 1);
    const ContextLoad load = load_of(*report.plan, microbatches[1], context_costs(config));
    BOOST_TEST(report.tokens == microbatches[1].tokens());
    BOOST_TEST(report.lines.size() == (ranks == 5 ? 6U : 7U));
    const ContextLine& line = report.lines.at(report.chosen);
    BOOST_TEST((line.layout == ContextLayout::zigzag && line.exchange == ContextExchange::ring));
    BOOST_TEST(line.pairs == max_over_mean(load.pairs));
    BOOST_TEST(line.cost == max_over_mean(load.cost));
    BOOST_TEST(line.received * static_cast<double>(load.full_ring_rows) / 100 ==
                   static_cast<double>(std::accumulate(load.received.begin(), load.received.end(), int64_t{0})),
               boost::test_tools::tolerance(1e-12));
    BOOST_TEST(line.steps * 3 == static_cast<double>(load.steps), boost::test_tools::tolerance(1e-12));
    BOOST_TEST(report.windows);
    BOOST_TEST(!line.over_bound.has_value());
    int64_t tokens = 0, received = 0, sent = 0;
    for (const ContextRankLine& rank : report.rank_lines) {
      tokens += rank.tokens;
      received += rank.received;
      sent += rank.sent;
      BOOST_TEST(tokens_of(rank.ranges) == rank.tokens);
    }
    BOOST_TEST(tokens == report.tokens);
    BOOST_TEST(received == sent);
    BOOST_TEST(report.summary.microbatches == 2);
    BOOST_TEST(report.summary.worst_cost >= report.summary.mean_cost);
    BOOST_TEST(report.summary.worst_cost >= line.cost);
  }
}

BOOST_AUTO_TEST_CASE(table_and_json_say_the_same) {
  const Config config = config_of({"distributed.cp=20", "distributed.cp_layout=contiguous", "distributed.cp_exchange=gather", "model.sliding_window=[]"});
  const ContextReport report = report_of(config, some_microbatches(2));
  const std::string table = report.table();
  const auto json = nlohmann::json::parse(report.to_json());
  BOOST_TEST(json["layout"] == "contiguous");
  BOOST_TEST(json["per_rank"].size() == 20U);
  BOOST_TEST(json["candidates"].size() == report.lines.size());
  for (const auto& candidate : json["candidates"]) {
    const std::string pairs = fmt::format("{:>7.3f}", candidate["pairs_balance"].get<double>());
    BOOST_TEST(table.find(pairs) != std::string::npos, pairs);
  }
  BOOST_TEST(json["bound_percent"].get<double>() == report.bound);
  BOOST_TEST(json["whole_step"]["microbatches"] == 2);
  BOOST_TEST(table.find("> contiguous gather") != std::string::npos);
  BOOST_TEST(table.find("ranks 16 to 19 together") != std::string::npos);
  BOOST_TEST(table.find("\n    16 ") == std::string::npos);  // of 20 ranks, 16 have lines of their own
  const std::vector<TokenRange> ranges{{0, 5}, {8, 9}, {10, 20}, {30, 40}, {50, 60}};
  BOOST_TEST(to_string(ranges, 2) == "0-4, 8-8 and 3 more");
  BOOST_TEST(to_string(std::span<const TokenRange>{}) == "nothing");
  check_error<ConfigError>([&] { report_of(config, some_microbatches(2), 2); }, {"microbatch 2", "0 to 1"});
  check_error<ConfigError>([&] { report_of(config, some_microbatches(2), -1); }, {"microbatch -1", "0 to 1"});
}

BOOST_AUTO_TEST_CASE(bounds_are_told_of_plans_that_are_so_balanced) {
  for (const auto& [layout, within] : {std::pair{"balanced", true}, {"contiguous", false}}) {
    const Config config = config_of({"distributed.cp=4", fmt::format("distributed.cp_layout={}", layout), "distributed.cp_exchange=ring",
                                     "model.sliding_window=[]"});
    const std::vector<int64_t> one{192};
    const ContextReport report = report_of(config, {Documents::from_lengths(one)});
    const std::string table = report.table();
    BOOST_TEST(report.lines.at(report.chosen).within == within);
    BOOST_TEST(report.lines.at(report.chosen).over_bound.has_value() == within);
    BOOST_TEST((table.find("a plan balanced to within 5 % needs at least") != std::string::npos) == within);
    BOOST_TEST((table.find("is not balanced to within 5 %") != std::string::npos) == !within);
    for (const char* part : {"192 tokens in 1 document,", "summed over 3 layers", "the step's one microbatch"})
      BOOST_TEST(table.find(part) != std::string::npos, part);
  }
}

BOOST_AUTO_TEST_CASE(many_transfers_are_refused) {
  const Config config = config_of({"distributed.cp=4096", "train.seq_len=8192", "distributed.cp_layout=zigzag", "distributed.cp_exchange=gather", "model.sliding_window=[]"});
  check_error<ConfigError>([&] { report_of(config, {Documents::from_lengths(std::vector<int64_t>{8192})}); }, {"transfers", "8192 tokens"});
  check_error<ConfigError>([] { check_planned_ranks(65537); }, {"65537", "65536"});
}

BOOST_AUTO_TEST_CASE(bytes_told_are_bytes_sent) {
  const std::vector<Documents> microbatches = some_microbatches(3);
  for (const char* recomputation : {"none", "full"})
    for (const int64_t ranks : {2, 4})
      for (const auto& [layout, exchange] : all_plans) {
        const Config config = config_of({fmt::format("distributed.cp={}", ranks), fmt::format("distributed.cp_layout={}", layout),
                                         fmt::format("distributed.cp_exchange={}", exchange),
                                         fmt::format("train.activation_checkpointing={}", recomputation), "run.threads=1"});
        const ContextModel model = context_model(config);
        int64_t told = 0, messages = 0;
        for (const Documents& whole : microbatches) {
          std::vector<int64_t> lengths;
          for (const DocumentRun& run : whole.runs()) lengths.push_back(run.length);
          const ContextBytes bytes =
              bytes_of(make_context_plan(lengths, ranks, context_layout_from(layout), context_exchange_from(exchange), model.costs), whole, model);
          told += bytes.total();
          messages += bytes.messages;
        }
        std::vector<int64_t> sent(static_cast<size_t>(ranks)), count = sent;
        const LoadedStep step = step_of(microbatches, config);
        run_local(static_cast<int>(ranks), {}, [&](Communicator& world) {
          Rank rank;
          Trainer trainer(rank, config, &world);
          const auto traffic_of = [&](int64_t TrafficCounters::Entry::*what) {
            int64_t sum = 0;
            for (const MessageKind kind : {MessageKind::boundaries, MessageKind::keys_values, MessageKind::key_value_gradients, MessageKind::head_parts})
              sum += trainer.groups().context->traffic()[kind].*what;
            return sum;
          };
          trainer.begin_step();
          trainer.forward_backward(step);
          sent[static_cast<size_t>(world.rank())] = traffic_of(&TrafficCounters::Entry::bytes);
          count[static_cast<size_t>(world.rank())] = traffic_of(&TrafficCounters::Entry::messages);
          trainer.update();
        });
        const std::string what = fmt::format("{} {} over {}, recomputation {}", layout, exchange, ranks, recomputation);
        BOOST_TEST(told > 0, what);
        BOOST_TEST(std::accumulate(sent.begin(), sent.end(), int64_t{0}) == told, what);
        BOOST_TEST(std::accumulate(count.begin(), count.end(), int64_t{0}) == messages, what);
      }
}

BOOST_AUTO_TEST_CASE(speeds_are_measured_and_leave_no_trace) {
  const Config config = config_of({"distributed.cp=2"});
  run_local(2, {}, [&](Communicator& world) {
    Rank rank;
    rank.work().computed_pairs = 7;
    const ContextSpeeds speeds = measure_context_speeds(rank, world, config);
    test::require_in_rank(speeds.pairs_per_second > 0 && speeds.flops_per_second > 0 && speeds.bytes_per_second > 0 && speeds.seconds_per_message > 0, "speeds are positive");
    test::require_in_rank(rank.work().computed_pairs == 7 && rank.work().flops == 0, "counters are as they were");
  });
}

BOOST_AUTO_TEST_CASE(steps_are_planned_from_the_index) {
  const Scratch scratch;
  std::ofstream text(scratch.path("text.txt"));
  for (int i = 0; i < 60; ++i) text << std::string(static_cast<size_t>(10 + i * 7 % 60), 'a') << "\n%\n";
  text.close();
  const auto planned_config = [&](const std::vector<std::string>& more) {
    std::vector<std::string> overrides{"data.dataset_path=" + scratch.path("text.txt"), "data.separator=%", "data.epochs=1"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return config_of(overrides);
  };
  const Config config = planned_config({"distributed.cp=3"});
  const PlannedStep first = plan_step(config, 1), third = plan_step(config, 3);
  BOOST_TEST(first.microbatches.size() == 2U);
  BOOST_TEST((first.first_step == first.microbatches && third.first_step == first.microbatches && third.microbatches != first.microbatches));
  int64_t tokens = 0;
  for (const Documents& whole : third.microbatches) tokens += whole.tokens();
  BOOST_TEST(third.tokens == tokens);
  // The same documents as training reads.
  Loader loader(open_data(config).train, loader_settings(config));
  loader.next_step();
  loader.next_step();
  const LoadedStep loaded = loader.next_step();
  for (size_t i = 0; i < loaded.microbatches.size(); ++i) BOOST_TEST((loaded.microbatches[i].documents == third.microbatches[i]));
  check_error<ConfigError>([&] { plan_step(config, 1000); }, {"step 1000", "data ends after step"});
}

BOOST_AUTO_TEST_SUITE_END()
