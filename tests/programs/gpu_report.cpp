// tools/gpu_report on a machine without a card: what it says is missing, and how it runs phases, which a program of the tests stands in for.
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "programs/fixture.h"

using namespace quire;
using namespace quire::test;

namespace {

const std::string report_tool = std::string(QUIRE_SOURCE_ROOT) + "/tools/gpu_report";

/// A program in place of the one that is built for the card: each phase leaves parts and ends as it is named.
const char* const stand_in = R"(#!/bin/sh
phase=$1 parts=
[ "$phase" = device ] && { echo 'A "card" of the tests'; exit 0; }
while [ $# -gt 0 ]; do
  [ "$1" = --parts ] && parts=$2
  shift
done
leave() { printf '## Phase %s\n\n%s\n' "$phase" "$1" >"$parts/$phase.md"; printf '{"phase": "%s", "says": "%s"}\n' "$phase" "$1" >"$parts/$phase.json"; }
case $phase in
  goldens) leave 'all alike' ;;
  tests) leave 'one differs'; echo '[tests] one differs' >&2; exit 1 ;;
  kernels)
    leave 'the first of two'
    sleep 300 & echo $! >"$0.child"
    wait ;;
  steps) leave 'steps were made' ;;
  nccl) [ "$RANK" = 0 ] && leave "host $NCCL_HOSTID on $NCCL_SOCKET_IFNAME"; exit 0 ;;
esac
)";

struct ReportRun : Scratch {
  ReportRun() {
    store(path("program"), stand_in);
    std::filesystem::permissions(path("program"), std::filesystem::perms::owner_all);
  }
  std::vector<std::string> command(std::vector<std::string> more) const {
    std::vector<std::string> all{report_tool, "--program", path("program"), "--out", path("out"), "--build", path("build"), "--python", "/nonexistent/python"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string markdown() const { return contents(path("out/report.md")); }
  nlohmann::json json() const { return nlohmann::json::parse(contents(path("out/report.json"))); }
};

void check_holds(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) BOOST_TEST(text.find(part) != std::string::npos, text << " lacks " << part);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gpu_report)

BOOST_AUTO_TEST_CASE(everything_that_is_missing_is_named) {
  Scratch scratch;
  const ProgramResult result = run_program({report_tool, "--toolkit", "/nonexistent/cuda", "--compiler", "/nonexistent/compiler", "--out", scratch.path("out"), "--build", scratch.path("build")});
  BOOST_TEST(result.status == 1);
  check_holds(result.err, {"[gpu_report] found: no nvcc in /nonexistent/cuda/bin; needed: the one of CUDA 12.8 or newer; way out: ",
                           "[gpu_report] found: no compiler '/nonexistent/compiler'; needed: "});
  BOOST_TEST(!std::filesystem::exists(scratch.path("out")));
  if (std::filesystem::exists("/dev/nvidiactl")) return;
  check_holds(result.err, {"[gpu_report] found: no CUDA device"});
  const ProgramResult driver = run_program({report_tool, "--toolkit", "/nonexistent/cuda", "--out", scratch.path("out"), "--build", scratch.path("build")});
  BOOST_TEST(driver.status == 1);
  check_holds(driver.err, {"no nvcc in /nonexistent/cuda/bin", "[gpu_report] found: no CUDA d", "way out: a machine with one"});
}

BOOST_AUTO_TEST_CASE(toolkits_that_are_too_old_are_named_with_their_version) {
  Scratch scratch;
  std::filesystem::create_directories(scratch.path("cuda/bin"));
  store(scratch.path("cuda/bin/nvcc"), "#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n");
  std::filesystem::permissions(scratch.path("cuda/bin/nvcc"), std::filesystem::perms::owner_all);
  const ProgramResult result = run_program({report_tool, "--toolkit", scratch.path("cuda"), "--python", "/nonexistent/python", "--arch", "90a", "--phases", "build", "--out", scratch.path("out"), "--build",
                                            scratch.path("build")});
  BOOST_TEST(result.status == 1);
  check_holds(result.err, {"found: nvcc of CUDA 12.4; needed: 12.8 or newer", "found: no cublasLt.h", "found: no cuda_runtime_api.h"});
}

BOOST_AUTO_TEST_CASE(options_that_mean_nothing_are_refused) {
  for (const auto& [arguments, part] : std::vector<std::pair<std::vector<std::string>, const char*>>{
         {{"--fast"}, "unknown option '--fast'"},
         {{"--out"}, "--out needs a value"},
         {{"--jobs", "0"}, "--jobs is '0'"},
         {{"--shapes", "huge"}, "--shapes is 'huge'; allowed: full, tiny"},
         {{"--phases", "build,step"}, "--phases has 'step'; allowed: build,goldens,tests,kernels,steps,torch,nccl"},
         {{"--phases", ""}, "--phases is empty"},
         {{"--limit", "step=5"}, "--limit has 'step'"},
         {{"--limit", "steps=soon"}, "--limit of steps is 'soon'"},
         {{"--arch", "ninety"}, "--arch is 'ninety'"},
         {{"--program", "/nonexistent"}, "--program /nonexistent is no program"},
         {{"--arch", "90a"}, "found: --arch with phases that need a card"}}) {
    std::vector<std::string> command{report_tool};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const ProgramResult result = run_program(command);
    BOOST_TEST(result.status == 1);
    check_holds(result.err, {"[gpu_report] ", part});
  }
}

BOOST_AUTO_TEST_CASE(a_phase_that_fails_or_is_stopped_leaves_what_it_found_and_the_next_ones_run) {
  ReportRun run;
  const ProgramResult result = run_program(run.command({"--limit", "kernels=1"}));
  BOOST_TEST(result.status == 1);
  check_holds(result.err, {"[tests] one differs"});
  check_holds(run.markdown(), {"# Quire on A \"card\" of the tests", "| goldens | done |", "| tests | failed (exit status 1) |", "| kernels | stopped at its limit |", "| steps | done |", "| nccl | done |",
                               "all alike", "one differs", "the first of two", "steps were made", "host rank0 on lo", "| torch | not run: no /nonexistent/python |"});
  const nlohmann::json found = run.json();
  BOOST_TEST(found["machine"]["card"] == "A \"card\" of the tests");
  std::vector<std::string> outcomes;
  for (const auto& phase : found["phases"]) outcomes.push_back(phase["phase"].get<std::string>() + ": " + phase["outcome"].get<std::string>());
  BOOST_TEST((outcomes == std::vector<std::string>{"goldens: done", "tests: failed (exit status 1)", "kernels: stopped at its limit", "steps: done", "torch: not run: no /nonexistent/python", "nccl: done"}),
             found["phases"].dump());
  BOOST_TEST(found["phases"][2]["found"]["says"] == "the first of two");
  BOOST_TEST(found["phases"][4]["found"].is_null());
  BOOST_TEST(contents(run.path("out/log.txt")).find("[tests] one differs") != std::string::npos);
  // What the stopped phase had started is gone too.
  const int child = std::stoi(contents(run.path("program.child")));
  for (int tenths = 0; tenths < 100 && ::kill(child, 0) == 0; ++tenths) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  BOOST_TEST(::kill(child, 0) != 0);
}

BOOST_AUTO_TEST_CASE(phases_that_are_chosen_run_alone_and_a_good_run_exits_0) {
  ReportRun run;
  const ProgramResult result = run_well(run.command({"--phases", "steps,goldens"}));
  BOOST_TEST(result.out.find("goldens (limit 30 s)") < result.out.find("steps (limit 60 s)"));
  BOOST_TEST(run.json()["phases"].size() == 2);
  BOOST_TEST(run.markdown().find("Phase kernels") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_report_that_is_interrupted_keeps_what_is_there) {
  ReportRun run;
  Program program(run.command({"--phases", "goldens,kernels"}));
  BOOST_TEST_REQUIRE(program.wait_for("kernels (limit"));
  for (int tenths = 0; tenths < 300 && !std::filesystem::exists(run.path("build/parts/kernels.json")); ++tenths) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  program.send(SIGTERM);
  BOOST_TEST(program.wait().status == 1);
  check_holds(run.markdown(), {"| goldens | done |", "all alike", "the first of two"});
  BOOST_TEST(run.json()["phases"][0]["found"]["says"] == "all alike");
}

// A program that is stopped would hide an error in how the test sees it: without a limit that is reached, all phases are done.
BOOST_AUTO_TEST_CASE(control_a_phase_within_its_limit_is_not_stopped) {
  ReportRun run;
  store(run.path("program"), std::string(stand_in).replace(std::string(stand_in).find("sleep 300"), 9, "sleep 0.1"));
  run_well(run.command({"--limit", "kernels=60", "--phases", "kernels"}));
  check_holds(run.markdown(), {"| kernels | done |", "the first of two"});
}

BOOST_AUTO_TEST_SUITE_END()
