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
  refused({"--nonsense"}, {"[plan]", "--help"});
}

BOOST_AUTO_TEST_SUITE_END()
