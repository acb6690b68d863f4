// Whole programs on emulated machines (QUIRE_EMULATION, tests/emulation/environment.cpp). Libraries that are missing or too old: one line on the terminal, exit status 1, no run folder. A rank that is lost.
#include <fstream>
#include <nlohmann/json.hpp>

#include "check.h"
#include "emulation.h"
#include "parallel/nccl.h"
#include "programs/fixture.h"

namespace quire::test {

namespace {

const std::vector<std::string> with_cudnn{"run.device=cuda", "train.mixed_precision=bf16", "model.attention_backend=cudnn"};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct OnMachine : Workshop {
  ProgramResult run(const std::string& machine, const std::vector<std::string>& command) const {
    return run_program(std::vector<std::string>{"/usr/bin/env", "QUIRE_EMULATION=" + machine} + command);
  }
  /// One line of the house's form with all `parts`, and nothing left behind.
  void refuses(const std::string& machine, const std::vector<std::string>& command, const std::vector<std::string>& parts) const {
    const ProgramResult result = run(machine, command);
    const std::string context = machine + ": '" + result.out + "' '" + result.err + "'";
    BOOST_TEST(result.status == 1, context);
    BOOST_TEST(result.out.empty(), context);
    BOOST_TEST((std::count(result.err.begin(), result.err.end(), '\n') == 1 && result.err.ends_with('\n')), context);
    for (const std::string& part : parts) BOOST_TEST(result.err.find(part) != std::string::npos, context << " lacks " << part);
    BOOST_TEST(!std::filesystem::exists(path("run")), context);
  }
  /// Where this build or this machine has no cuDNN at all.
  bool lacks(const std::string& machine, const std::string& what) const {
    const bool so = run(machine, training("run", with_cudnn)).err.find(what) != std::string::npos;
    if (so) BOOST_TEST_MESSAGE("skipped: " << what);
    return so;
  }
  std::vector<std::string> selfcheck(const std::vector<std::string>& overrides) const {
    return std::vector<std::string>{tool("selfcheck"), path("small.toml"), "run.dir=" + path("run")} + overrides;
  }
};

const std::vector<std::string> no_cudnn{"[cuda] libcudnn.so.9, needed for model.attention_backend = \"cudnn\", can not be loaded (libcudnn.so.9: ", "allowed: its folder in LD_LIBRARY_PATH, or the backend \"block\""};
const std::vector<std::string> no_nccl{"[cuda] libnccl.so.2, needed for several ranks on devices, can not be loaded (libnccl.so.2: ", "allowed: its folder in LD_LIBRARY_PATH, or one rank, or run.device = \"cpu\""};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cuda_programs, OnMachine)

BOOST_AUTO_TEST_CASE(cudnn_is_missing_or_too_old) {
  if (emulation::address_sanitizer || emulation::thread_sanitizer) return;  // programs are other processes, which they make slow
  if (lacks("missing=libcudnn", "a build without cuDNN's header")) return;
  refuses("missing=libcudnn", training("run", with_cudnn), no_cudnn);
  refuses("missing=libcudnn", selfcheck(with_cudnn), no_cudnn);
  // A machine without a device says that first, whatever else it lacks.
  refuses("devices=0,missing=libcudnn", training("run", with_cudnn), {"[device]", "found: no CUDA device", "allowed: cpu"});
  refuses("major=7,missing=libcudnn", training("run", with_cudnn), {"[device]", "compute capability 7.0; needed: 8.0"});
  if (lacks("cudnn_version=91002", "libcudnn.so.9: the emulated machine has none")) return;
  for (const auto& command : {training("run", with_cudnn), selfcheck(with_cudnn)})
    refuses("cudnn_version=91002", command, {"[cuda] found: cuDNN 9.10.2; needed: 9.11.0 or newer, for model.attention_backend = \"cudnn\"", "or the backend \"block\""});
}

BOOST_AUTO_TEST_CASE(nccl_is_missing_or_too_old) {
  if (!nccl_is_built() || emulation::address_sanitizer || emulation::thread_sanitizer) return;
  const std::vector<std::string> two{"run.device=cuda", "distributed.pp=2"}, started{"--ranks", "2"};
  for (const auto& [machine, parts] : {std::pair<std::string, std::vector<std::string>>{"missing=libnccl", no_nccl}, {"nccl_version=21703", {"[cuda] found: NCCL 2.17.3; needed: 2.18.1", "one rank"}}}) {
    refuses(machine, training("run", two) + started, parts);
    refuses(machine, selfcheck(two), parts);
  }
  // Ranks that something else has started say it themselves.
  std::vector<ProgramResult> results;
  const auto rank = [&](int number) {
    return std::vector<std::string>{"/usr/bin/env", "QUIRE_EMULATION=missing=libnccl", fmt::format("RANK={}", number), fmt::format("LOCAL_RANK={}", number), "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "QUIRE_MASTER_FILE=" + path("meeting")} +
           training("run", two);
  };
  Program first(rank(0)), second(rank(1));
  std::string said;
  for (Program* program : {&first, &second}) {
    const ProgramResult result = program->wait();
    BOOST_TEST(result.status == 1, result.err);
    BOOST_TEST(result.out.empty(), result.out);
    said += result.err;
  }
  for (const std::string& part : no_nccl) BOOST_TEST(said.find(part) != std::string::npos, said);
  BOOST_TEST(!std::filesystem::exists(path("run")));
  refuses("devices=1,missing=libnccl", training("run", two) + started, {"[device] 2 ranks on a machine with 1 CUDA device"});
}

// Found when the ranks compute for the first time, after the run's folder was made: it is gone again.
BOOST_AUTO_TEST_CASE(a_start_that_is_refused_late_leaves_no_folder_behind) {
  if (emulation::address_sanitizer || emulation::thread_sanitizer) return;
  const auto refused = [&](const std::string& machine, const std::vector<std::string>& overrides, const std::string& part) {
    const ProgramResult result = run(machine, training("run", overrides));
    BOOST_TEST(result.status == 1, result.err);
    BOOST_TEST((result.err.find(part) != std::string::npos && std::count(result.err.begin(), result.err.end(), '\n') == 1), result.err);
    BOOST_TEST(!std::filesystem::exists(path("run")));
  };
  refused("missing=libcublasLt", {"run.device=cuda"}, "[cuda] libcublasLt.so.");
  refused("devices=1", {"run.device=cuda", "run.kernels=[\"matmul=warp\"]"}, "[run.kernels] matmul has no kernel 'warp'");
  // Control: a folder that was there is left as it was.
  std::filesystem::create_directories(path("run"));
  std::ofstream(path("run/notes.txt")) << "mine";
  const ProgramResult result = run("missing=libcublasLt", training("run", {"run.device=cuda"}));
  BOOST_TEST(result.status == 1, result.err);
  BOOST_TEST(std::filesystem::exists(path("run/notes.txt")));
}

// What is not asked for is not missed.
BOOST_AUTO_TEST_CASE(control_programs_run_without_the_libraries_that_they_do_not_need) {
  if (emulation::address_sanitizer || emulation::thread_sanitizer) return;
  for (const char* machine : {"missing=libcudnn", "missing=libnccl"}) {
    const ProgramResult result = run(machine, training(machine, {"run.device=cuda", "train.max_steps=1", "eval.interval=0", "data.eval_fraction=0"}));
    BOOST_TEST(result.status == 0, result.err);
    BOOST_TEST(result.out.find("cuda:0") != std::string::npos, result.out);
  }
  const ProgramResult generated = run("missing=libcudnn", {tool("generate"), path("missing=libcudnn"), "--device", "cuda", "--tokens", "2"});
  BOOST_TEST(generated.status == 0, generated.err);
}

BOOST_AUTO_TEST_CASE(a_model_trained_with_cudnn_generates_without_it_and_on_a_cpu) {
  if (emulation::address_sanitizer || emulation::thread_sanitizer || lacks("missing=libcudnn", "a build without cuDNN's header")) return;
  const ProgramResult trained = run("devices=1", training("trained", with_cudnn + std::vector<std::string>{"train.max_steps=1", "eval.interval=0", "data.eval_fraction=0"}));
  if (trained.err.find("libcudnn.so.9: the emulated machine has none") != std::string::npos) return;
  BOOST_TEST_REQUIRE(trained.status == 0, trained.err);
  for (const char* device : {"cuda", "cpu"}) {
    const ProgramResult generated = run("missing=libcudnn", {tool("generate"), path("trained"), "--device", device, "--tokens", "2", "--ids"});
    BOOST_TEST(generated.status == 0, generated.err);
    BOOST_TEST(std::count(generated.out.begin(), generated.out.end(), ' ') >= 1, generated.out);
  }
}

// The memory that cuDNN takes beside tensors: asked for where it can be, else said to be missing in the plan.
BOOST_AUTO_TEST_CASE(plans_count_cudnns_workspace_or_say_why_not) {
  if (emulation::address_sanitizer || emulation::thread_sanitizer || lacks("missing=libcudnn", "a build without cuDNN's header")) return;
  const auto plan = [&](const std::string& machine, const std::vector<std::string>& more) {
    return run_well(std::vector<std::string>{"/usr/bin/env", "QUIRE_EMULATION=" + machine, tool("plan"), path("small.toml"), "model.head_dim=64", "distributed.pp=2", "distributed.pp_layers=[0,2]", "--flops", "1T"} + more).out;
  };
  const auto holds = [](const std::string& text, const std::string& part) { BOOST_TEST(text.find(part) != std::string::npos, text << " lacks " << part); };
  for (const auto& [machine, reason] : {std::pair{"devices=0", "found: no CUDA device"}, {"missing=libcudnn", "[cuda] libcudnn.so.9, needed for"}}) {
    const std::string text = plan(machine, with_cudnn);
    holds(text, "not counted: what cuDNN takes while it attends");
    holds(text, reason);
    BOOST_TEST(nlohmann::json::parse(plan(machine, with_cudnn + std::vector<std::string>{"--json"}))["pipeline"]["attention_workspace"].is_null());
  }
  BOOST_TEST(plan("devices=0", {}).find("cuDNN") == std::string::npos);
  const std::string planned = plan("devices=8", with_cudnn);
  if (planned.find("libcudnn.so.9: the emulated machine has none") != std::string::npos) return;
  holds(planned, " are cuDNN's while it attends, for documents of up to ");
  const auto counted = nlohmann::json::parse(plan("devices=8", with_cudnn + std::vector<std::string>{"--json"}))["pipeline"],
             without = nlohmann::json::parse(plan("missing=libcudnn", with_cudnn + std::vector<std::string>{"--json"}))["pipeline"];
  const auto bytes = counted["attention_workspace"].get<int64_t>();
  BOOST_TEST(bytes > 0);
  const auto buffers = [](const nlohmann::json& of, size_t rank) { return of["memory"][rank]["buffers"].get<int64_t>(); };
  BOOST_TEST(buffers(counted, 1) == buffers(without, 1) + bytes);
  BOOST_TEST(buffers(counted, 0) == buffers(without, 0));  // it holds the embedding alone
}

BOOST_AUTO_TEST_CASE(a_rank_that_is_killed_is_named_by_those_that_wait_for_it_on_their_devices) {
  if (!nccl_is_built() || emulation::address_sanitizer || emulation::thread_sanitizer) return;
  for (const char* layout : {"distributed.cp=2", "distributed.pp=2"}) {
    const std::string meeting = path(layout);
    const auto rank = [&](int number) {
      return std::vector<std::string>{"/usr/bin/env", fmt::format("RANK={}", number), fmt::format("LOCAL_RANK={}", number), "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "QUIRE_MASTER_FILE=" + meeting} +
             training("run", {"run.device=cuda", "train.max_steps=100000", "checkpoint.interval=0", "eval.interval=0", layout});
    };
    Program first(rank(0)), second(rank(1));
    BOOST_TEST_REQUIRE(first.wait_for("\nstep "));
    second.send(SIGKILL);
    const ProgramResult result = first.wait();
    BOOST_TEST(result.status == 1);
    BOOST_TEST(result.err == "[communicator] rank 1 is gone: it was killed, or has ended without a word (rank 0)\n");
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
