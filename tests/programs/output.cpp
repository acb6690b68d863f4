// What the programs print and record.
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "programs/fixture.h"
#include "run/data_source.h"
#include "run/machine.h"
#include "runtime/digest.h"

using namespace quire;
using namespace quire::test;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_AUTO_TEST_SUITE(output)

BOOST_AUTO_TEST_CASE(the_first_lines_say_what_runs_where_and_a_pipe_sees_plain_lines) {
  Workshop workshop;
  const ProgramResult result = run_well(workshop.training("run", {"run.threads=2", "train.max_steps=3"}));
  const std::vector<std::string> lines = lines_of(result.out);
  BOOST_REQUIRE(lines.size() >= 9u);
  BOOST_TEST(lines[0].starts_with("quire " + std::string(version())), lines[0]);
  BOOST_TEST(holds(lines[0], "2 threads"), lines[0]);
  const std::string choices = contents(workshop.path("run/choices.json"));
  const nlohmann::json chosen = nlohmann::json::parse(choices);
  BOOST_TEST(holds(lines[0], chosen.at("instruction_set").get<std::string>()), lines[0]);
  BOOST_TEST(lines[1].starts_with("data: "));
  const Config config = workshop.config("run");
  BOOST_TEST(holds(lines[1], "digest " + to_hex(open_data(config).train->digest())), lines[1]);
  BOOST_TEST(holds(lines[2], "parameters"), lines[2]);
  BOOST_TEST(lines[3].starts_with("kernels: "));
  BOOST_TEST(holds(lines[3], "matmul " + chosen.at("kernel.matmul").get<std::string>()), lines[3]);
  BOOST_TEST(holds(lines[3], "attention_forward block"), lines[3]);
  BOOST_TEST(lines[4].starts_with("memory: "));
  for (const char* category : {"parameters ", "gradients ", "optimizer ", "activations ", "workspace ", "program ", "in all "}) BOOST_TEST(holds(lines[4], category), lines[4]);
  BOOST_TEST(lines[5].starts_with("step 1/3"), lines[5]);
  for (const char* part : {"loss ", "tokens/s", "% of peak", "full-causal", "norm ", "lr ", "left"}) BOOST_TEST(holds(lines[5], part), lines[5]);
  BOOST_TEST(!holds(result.out, "\r"));
  BOOST_TEST(!holds(result.out, "\033"));
  BOOST_TEST(result.err == "");
  // The log keeps the same lines, each with its time.
  const std::vector<std::string> log = lines_of(contents(workshop.path("run/log.txt")));
  BOOST_REQUIRE_EQUAL(log.size(), lines.size());
  for (size_t i = 0; i < log.size(); ++i) BOOST_TEST(log[i].ends_with(" " + lines[i]), log[i]);
}

BOOST_AUTO_TEST_CASE(the_record_has_one_object_per_logged_step_and_two_runs_agree) {
  Workshop workshop;
  const std::vector<std::string> overrides{"train.max_steps=9", "metrics.log_interval=3", "eval.interval=6"};
  std::vector<std::vector<nlohmann::json>> records;
  for (const char* run : {"first", "second"}) {
    run_well(workshop.training(run, overrides));
    std::vector<nlohmann::json> record;
    for (const std::string& line : lines_of(contents(workshop.path(run) + "/metrics.jsonl"))) record.push_back(nlohmann::json::parse(line));
    std::vector<int64_t> steps;
    for (nlohmann::json& object : record) {
      steps.push_back(object.at("step").get<int64_t>());
      for (const char* key : {"loss", "valid_tokens", "tokens", "grad_norm", "lr", "step_ms", "tokens_per_s", "useful_pairs", "computed_pairs", "padding"}) {
        BOOST_TEST(object.contains(key), key);
        BOOST_TEST(object[key].is_number(), key);
      }
      BOOST_TEST(object.contains("eval_loss") == (steps.back() == 6 || steps.back() == 9));
      for (const char* key : {"step_ms", "tokens_per_s", "peak_share_useful", "peak_share_causal", "resident_bytes"}) object.erase(key);
    }
    BOOST_TEST((steps == std::vector<int64_t>{1, 3, 6, 9}));
    records.push_back(record);
  }
  BOOST_TEST((records[0] == records[1]));
  // Control: another order of documents is another record.
  std::vector<std::string> other = overrides;
  other.push_back("train.data_seed=7");
  run_well(workshop.training("third", other));
  BOOST_TEST((metrics_of(workshop.config("first", overrides)) != metrics_of(workshop.config("third", other))));
}

BOOST_AUTO_TEST_CASE(generate_writes_from_a_run_folder_and_from_its_checkpoint) {
  Workshop workshop;
  run_well(workshop.training("run"));
  const std::vector<std::string> options{"--samples", "3", "--tokens", "20", "--temperature", "0.8", "--seed", "1", "--jsonl"};
  std::vector<std::string> outputs;
  for (const std::string& model : {workshop.path("run"), checkpoint_folder(workshop.path("run"), 8)}) {
    std::vector<std::string> args{tool("generate"), model};
    args.insert(args.end(), options.begin(), options.end());
    outputs.push_back(run_well(args).out);
    const std::vector<std::string> lines = lines_of(outputs.back());
    BOOST_REQUIRE_EQUAL(lines.size(), 3u);
    for (const std::string& line : lines) {
      const nlohmann::json sample = nlohmann::json::parse(line);
      BOOST_TEST(sample.at("ids").size() <= 21u);
      BOOST_TEST(sample.at("text").is_string());
    }
  }
  BOOST_TEST(outputs[0] == outputs[1]);
  const ProgramResult ids = run_well({tool("generate"), workshop.path("run"), "--prompt", "ab", "--tokens", "5", "--temperature", "0", "--ids"});
  BOOST_TEST(ids.out.starts_with("257 97 98"), ids.out);
  BOOST_TEST(lines_of(ids.out).size() == 1u);
}

BOOST_AUTO_TEST_CASE(documents_prints_the_two_parts_of_the_text) {
  Workshop workshop;
  const std::vector<std::string> common{tool("documents"), workshop.path("small.toml"), "--between", "\n%\n"};
  std::vector<std::string> with_flag = common;
  with_flag.push_back("--held-out");
  const std::string trained = run_well(common).out, held_out = run_well(with_flag).out;
  const auto documents = [](const std::string& text) {
    std::multiset<std::string> all;
    for (size_t at = 0, end; (end = text.find("\n%\n", at)) != std::string::npos; at = end + 3) all.insert(text.substr(at, end - at));
    return all;
  };
  const std::multiset<std::string> held = documents(held_out);
  std::multiset<std::string> both = documents(trained);
  BOOST_TEST(held.size() == 4u);
  both.insert(held.begin(), held.end());
  BOOST_TEST((both == documents(contents(workshop.path("text.txt")))));
}

BOOST_AUTO_TEST_CASE(selfcheck_reports_and_its_exit_status_is_the_verdict) {
  Workshop workshop;
  const ProgramResult good = run_well({tool("selfcheck"), workshop.path("small.toml"), "--json"});
  const nlohmann::json report = nlohmann::json::parse(good.out);
  BOOST_TEST(report.at("passed").get<bool>());
  BOOST_TEST(report.at("checks").size() > 3u);
  int controls = 0;
  for (const nlohmann::json& check : report.at("checks")) {
    for (const char* key : {"name", "layout", "backend", "changed_fraction", "leaked_rows", "max_difference", "passed"}) BOOST_TEST(check.contains(key), key);
    controls += check.at("name").get<std::string>().starts_with("control");
  }
  BOOST_TEST(controls >= 1);
  const ProgramResult broken = run_program({tool("selfcheck"), workshop.path("small.toml"), "--json", "--break", "dropped"});
  BOOST_TEST(broken.status == 1);
  BOOST_TEST(!nlohmann::json::parse(broken.out).at("passed").get<bool>());
}

BOOST_AUTO_TEST_CASE(selfcheck_of_context_ranks_reads_half_and_each_break_ends_with_status_1) {
  const std::vector<std::string> tiny{tool("selfcheck"), std::string(QUIRE_SOURCE_ROOT) + "/tools/configs/tiny.toml", "distributed.cp=2", "model.n_layers=2", "run.threads=1", "--tokens", "64"};
  const ProgramResult good = run_well(tiny);
  for (const char* words : {"leak probe, two equal documents", "cp 2 balanced ring", "50.0 % of rows changed: the two documents are kept apart", "100.0 % of rows are touched with the boundaries broken",
                            "checks passed: documents are kept apart"})
    BOOST_TEST(holds(good.out, words), words << "\n" << good.out);
  BOOST_TEST(!holds(good.out, "FAILED"));
  for (const auto& [name, reason] : std::vector<std::pair<std::string, std::string>>{{"ring_step", "received keys are masked as one document"}, {"labels", "lost their targets in the cut"},
                                                                                     {"dkv_owner", "loss or gradients differ from those of one process"}, {"denominator", "each rank divides by its own targets"}}) {
    std::vector<std::string> args = tiny;
    args.insert(args.end(), {"--break", name});
    const ProgramResult broken = run_program(args);
    BOOST_TEST(broken.status == 1, name);
    BOOST_TEST(broken.err == "", name);
    BOOST_TEST(holds(broken.out, reason), name << "\n" << broken.out);
    BOOST_TEST(holds(broken.out, "checks FAILED"), name);
    BOOST_TEST(holds(broken.out, "FAILED layout parity"), name);
  }
  std::vector<std::string> unseen = tiny;
  unseen.insert(unseen.end(), {"model.sliding_window=1", "--break", "dkv_owner"});
  const ProgramResult nothing = run_program(unseen);
  BOOST_TEST(nothing.status == 1);
  BOOST_TEST(nothing.err.starts_with("[selfcheck] --break dkv_owner changes nothing"), nothing.err);
  BOOST_TEST(lines_of(nothing.err).size() == 1u);
  BOOST_TEST(nothing.out == "");
  const ProgramResult unknown = run_program({tiny[0], tiny[1], "--break", "ring_step"});
  BOOST_TEST(unknown.status == 1);
  BOOST_TEST(holds(unknown.err, "distributed.cp to 2 or more"), unknown.err);
}

BOOST_AUTO_TEST_SUITE_END()
