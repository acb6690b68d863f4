// The program plan: the layout of a run for any number of ranks, as tables, JSON and a picture, without starting ranks.
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "programs/fixture.h"

using namespace quire;
using namespace quire::test;

namespace {

const std::string tiny = std::string(QUIRE_SOURCE_ROOT) + "/tools/configs/tiny.toml";

nlohmann::json planned(const std::vector<std::string>& args) {
  std::vector<std::string> all{tool("plan"), tiny, "--json"};
  all.insert(all.end(), args.begin(), args.end());
  return nlohmann::json::parse(run_well(all).out);
}

void refused(const std::vector<std::string>& args, const std::vector<std::string>& parts) {
  std::vector<std::string> all{tool("plan"), tiny};
  all.insert(all.end(), args.begin(), args.end());
  const ProgramResult result = run_program(all);
  BOOST_TEST(result.status == 1);
  BOOST_TEST(result.out.empty());
  BOOST_TEST((result.err.starts_with("[") && result.err.find('\n') == result.err.size() - 1), "not one line: '" << result.err << "'");
  for (const std::string& part : parts) BOOST_TEST(result.err.find(part) != std::string::npos, "'" << result.err << "' lacks '" << part << "'");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(plan_program)

BOOST_AUTO_TEST_CASE(two_ranks_and_sixty_four) {
  const Scratch scratch;
  for (const int64_t ranks : {2, 64}) {
    const std::string svg = scratch.path("picture.svg");
    const std::string cp = "distributed.cp=" + std::to_string(ranks), dir = "run.dir=" + scratch.path("run");
    const std::string text = run_well({tool("plan"), tiny, cp, dir, "--svg", svg}).out;
    for (const char* part : {"layout: cp", "step 1, microbatch 0", "in force: ", "contiguous", "zigzag", "balanced", "gather", "all 4 microbatches"})
      BOOST_TEST(text.find(part) != std::string::npos, part);
    const std::string picture = contents(svg);
    BOOST_TEST((picture.starts_with("<svg") && picture.ends_with("</svg>\n")));
    const nlohmann::json json = planned({cp, dir, "distributed.cp_layout=zigzag", "distributed.cp_exchange=ring"});
    BOOST_TEST(json["layout"]["ranks"] == ranks);
    BOOST_TEST(json["layout"]["microbatches"] == 4);
    BOOST_TEST(json["context"]["per_rank"].size() == static_cast<size_t>(ranks));
    BOOST_TEST(json["context"]["layout"] == "zigzag");
    // 4 heads and 2 key/value heads go to 2 ranks, not to 64.
    BOOST_TEST(json["context"]["candidates"].size() == (ranks == 2 ? 7U : 6U));
    int64_t tokens = 0;
    for (const auto& rank : json["context"]["per_rank"]) tokens += rank["tokens"].get<int64_t>();
    BOOST_TEST(tokens == json["context"]["tokens"].get<int64_t>());
  }
  BOOST_TEST(!std::filesystem::exists(scratch.path("run")));  // nothing of a run is made
}

BOOST_AUTO_TEST_CASE(steps_and_microbatches_are_those_of_training) {
  const std::vector<std::string> given{"distributed.cp=3", "distributed.cp_layout=contiguous", "distributed.cp_exchange=gather"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), given.begin(), given.end());
    return planned(more);
  };
  const nlohmann::json first = with({}), again = with({}), last = with({"--microbatch", "3"}), later = with({"--step", "5"});
  BOOST_TEST(first == again);
  BOOST_TEST(first["context"]["digest"] != last["context"]["digest"]);
  BOOST_TEST(first["context"]["whole_step"] == last["context"]["whole_step"]);
  BOOST_TEST(later["layout"]["step"] == 5);
  BOOST_TEST(first["context"]["digest"] != later["context"]["digest"]);
}

BOOST_AUTO_TEST_CASE(one_rank_exchanges_nothing) {
  const nlohmann::json json = planned({});
  BOOST_TEST(json["layout"]["ranks"] == 1);
  BOOST_TEST(!json.contains("context"));
}

BOOST_AUTO_TEST_CASE(pipelines_are_planned_with_every_schedule_and_within_memory) {
  const Scratch scratch;
  const std::string svg = scratch.path("picture.svg"), trace = scratch.path("trace.json");
  const std::vector<std::string> pipeline{"distributed.pp=2", "distributed.dp_replicate=2", "train.global_batch_size=16", "--flops", "1T", "--link", "1GB/s", "--latency", "5us"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), pipeline.begin(), pipeline.end());
    return planned(more);
  };
  const nlohmann::json json = with({"--svg", svg, "--trace", trace}), again = with({});
  BOOST_TEST(json == again);
  const nlohmann::json& report = json["pipeline"];
  BOOST_TEST(report["stages"].size() == 2U);
  BOOST_TEST(report["memory"].size() == 2U);
  BOOST_TEST(report["microbatches"] == 4);
  BOOST_TEST(report["schedules"].size() == 6U);
  BOOST_TEST(report["schedules"][0]["in_force"] == true);
  BOOST_TEST(report["best"].is_string());
  for (const auto& rank : report["memory"])
    BOOST_TEST(rank["total"].get<int64_t>() == rank["weights"].get<int64_t>() + rank["gradients"].get<int64_t>() + rank["optimizer"].get<int64_t>() + rank["activations"].get<int64_t>() +
                                                   rank["buffers"].get<int64_t>());
  int64_t most = 0;
  for (const auto& line : report["schedules"]) {
    BOOST_TEST(line["seconds"].get<double>() >= 0.999 * line["bound_seconds"].get<double>());
    most = std::max(most, line["memory"].get<int64_t>());
  }
  BOOST_TEST(contents(svg).find("microbatch") != std::string::npos);
  BOOST_TEST(nlohmann::json::parse(contents(trace)).at("traceEvents").size() > 16U);
  // A limit that the largest does not meet takes it out; one that nothing meets leaves none.
  const nlohmann::json limited = with({"--memory-limit", std::to_string(most - 1)})["pipeline"], none = with({"--memory-limit", "1KiB"})["pipeline"];
  const auto fitting = [](const nlohmann::json& lines) { return std::ranges::count_if(lines, [](const auto& line) { return line["fits"] == true; }); };
  BOOST_TEST(fitting(limited["schedules"]) < 6);
  BOOST_TEST(fitting(limited["schedules"]) > 0);
  BOOST_TEST(none["best"].is_null());
  // What can not be had is refused with the reason, beside what can.
  const nlohmann::json refusing = planned({"distributed.pp=6", "train.global_batch_size=16", "--flops", "1T"})["pipeline"];
  BOOST_TEST(std::ranges::count_if(refusing["schedules"], [](const auto& line) { return line.contains("refused"); }) == 3);
}

BOOST_AUTO_TEST_CASE(public_shapes_need_no_data) {
  const std::string folder = std::string(QUIRE_SOURCE_ROOT) + "/tools/configs/";
  const std::vector<std::pair<std::string, double>> shapes{{"llama_7b", 6.74e9}, {"llama_13b", 13.0e9}, {"custom_29b", 28.7e9}, {"llama_70b", 69.0e9}};
  for (const auto& [name, parameters] : shapes) {
    const ProgramResult result = run_well({tool("plan"), folder + name + ".toml", "--lengths", "lognormal:2048", "--flops", "500T", "--link", "25G", "--memory-limit", "80GiB", "--json"});
    const nlohmann::json json = nlohmann::json::parse(result.out);
    double sum = 0;
    for (const auto& stage : json["pipeline"]["stages"]) sum += stage["parameters"].get<double>();
    BOOST_TEST(std::abs(sum / parameters - 1) < 0.01, name << " has " << sum << " parameters");
    BOOST_TEST(json["pipeline"]["schedules"][0]["fits"] == true, name);
    if (name == "llama_70b") BOOST_TEST(json["layout"]["ranks"] == 1024);
  }
}

BOOST_AUTO_TEST_CASE(pictures_of_both_kinds) {
  const Scratch scratch;
  const std::string svg = scratch.path("picture.svg");
  const std::vector<std::string> both{tool("plan"), tiny, "distributed.pp=2", "distributed.cp=2", "--flops", "1T", "--svg", svg};
  const auto picture = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = both;
    all.insert(all.end(), more.begin(), more.end());
    run_well(all);
    return contents(svg);
  };
  const std::string pipeline = picture({}), context = picture({"--picture", "context"});
  BOOST_TEST(pipeline == picture({"--picture", "pipeline"}));
  BOOST_TEST(pipeline.find("bubble") != std::string::npos);
  BOOST_TEST(context.find("keys, and the rank that holds them") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(links_and_pipes_stay_what_they_are) {
  const Scratch scratch;
  const std::string link = scratch.path("link.svg"), target = scratch.path("target.svg"), pipe = scratch.path("pipe.svg");
  std::filesystem::create_symlink("target.svg", link);
  for (int i = 0; i < 2; ++i) {  // a target that is not there, and one that is
    run_well({tool("plan"), tiny, "distributed.cp=2", "distributed.cp_layout=zigzag", "distributed.cp_exchange=ring", "--svg", link});
    BOOST_TEST(std::filesystem::is_symlink(link));
    BOOST_TEST(contents(target).starts_with("<svg"));
  }
  BOOST_REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  refused({"distributed.cp=2", "--svg", pipe}, {"is no regular file"});
  BOOST_TEST(std::filesystem::is_fifo(pipe));
}

BOOST_AUTO_TEST_CASE(thousands_of_ranks) {
  const Scratch scratch;
  const std::string svg = scratch.path("picture.svg");
  const nlohmann::json json = planned({"distributed.cp=1100", "train.seq_len=2048", "train.global_batch_size=2", "distributed.cp_layout=auto", "distributed.cp_exchange=auto",
                                       "--svg", svg});
  BOOST_TEST(json["context"]["candidates"].size() == 1U);
  BOOST_TEST(json["context"]["layout"] == "balanced");
  BOOST_TEST(json["context"]["choice"].get<std::string>().find("nothing is predicted") != std::string::npos);
  BOOST_TEST(json["context"]["candidates"][0]["tiles_skipped_percent"].is_null());
  BOOST_TEST(json["context"]["candidates"][0]["tiles_over_causal"].get<double>() > 1);
  BOOST_TEST(json["context"]["candidates"][0]["forward_bytes_per_layer"].is_number_integer());
  BOOST_TEST(std::filesystem::file_size(svg) < 2000000U);
}

// Nothing looks through all layers for each of them: instructions.cpp counts.
BOOST_AUTO_TEST_CASE(the_deepest_model_is_planned) {
  const ProgramResult result = run_well({tool("plan"), tiny, "run.threads=1", "model.n_layers=16384"});
  BOOST_TEST(result.out.find("embedding to head") != std::string::npos, result.out);
}

BOOST_AUTO_TEST_CASE(bad_input) {
  refused({"distributed.cp=2", "distributed.cp_layout=zig"}, {"distributed.cp_layout", "zigzag"});
  refused({"distributed.cp=2", "distributed.cp_layuot=zigzag"}, {"cp_layuot", "cp_layout"});
  refused({"distributed.cp=3", "distributed.cp_layout=contiguous", "distributed.cp_exchange=heads"}, {"heads", "3"});
  refused({"distributed.cp=2", "distributed.cp_layout=zigzag", "distributed.cp_exchange=heads"}, {"heads", "contiguous"});
  refused({"distributed.cp=2", "--microbatch", "4"}, {"microbatch 4", "0 to 3"});
  refused({"distributed.cp=2", "--microbatch", "-1"}, {"[plan]", "microbatch"});
  refused({"distributed.cp=2", "--step", "0"}, {"[plan]", "--step"});
  refused({"distributed.cp=2", "data.epochs=1", "--step", "100000"}, {"step 100000", "data ends after step"});
  refused({"distributed.cp=2", "--svg", "/proc/none/picture.svg"}, {"/proc/none/picture.svg"});
  refused({"--svg", "/tmp/picture.svg"}, {"--svg", "distributed.cp"});
  refused({"distributed.cp=2", "--svg", "/dev/full"}, {"--svg /dev/full is no regular file"});
  refused({"distributed.cp=2", "--svg", "/tmp"}, {"--svg /tmp is a folder", "/tmp/picture.svg"});
  refused({"distributed.cp=2", "--svg", ""}, {"--svg is ''", "file's name"});
  refused({"distributed.cp=2", "--svg", "-"}, {"--svg is '-'", "file's name"});
  refused({"distributed.cp=70000", "train.seq_len=100000"}, {"distributed.cp is 70000", "at most 65536 ranks"});
  refused({"distributed.pp=2", "--memory-limit", "80 gigabytes"}, {"--memory-limit", "80 gigabytes", "Gi"});
  refused({"distributed.pp=2", "--memory-limit", "1e30"}, {"--memory-limit", "1e30", "less than 2^63 bytes"});
  refused({"distributed.pp=2", "data.dataset_path=/none"}, {"'/none'", "data.dataset_path", "--lengths lognormal:2048"});
  refused({"distributed.pp=2", "--flops", "0"}, {"--flops", "above 0"});
  refused({"--attention-flops", "1T"}, {"--attention-flops", "--flops"});
  refused({"--lengths", "normal:7"}, {"--lengths", "normal:7", "lognormal:MEAN"});
  refused({"--picture", "pipeline"}, {"--picture", "--svg"});
  refused({"--svg", "/tmp/picture.svg", "--trace", "/tmp/picture.svg"}, {"--svg and --trace are both /tmp/picture.svg"});
  refused({"--svg", "/tmp/picture.svg", "--picture", "tree"}, {"--picture", "tree", "pipeline"});
  refused({"distributed.pp=2", "--flops", "1T", "--trace", "/dev/full"}, {"--trace /dev/full is no regular file"});
  refused({"--nonsense"}, {"[plan]", "--help"});
}

BOOST_AUTO_TEST_SUITE_END()
