// tools/gpu_report on the emulated device: golden outputs against the file that is kept, and every phase at sizes that show that it runs.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "bench/gpu/phases.h"
#include "bench/gpu/wrappers.h"
#include "check.h"
#include "emulation.h"
#include "parallel/nccl.h"
#include "programs/program.h"
#include "run/scratch.h"

using namespace quire;
using namespace quire::gpu_report;
using namespace quire::test;

namespace {

const std::string golden_file = QUIRE_SOURCE_ROOT "/tests/golden/gpu_wrappers.txt";

Goldens outputs(int device = 0) {
  Rank rank(RankOptions{.device = {DeviceKind::cuda, device}});
  return run_wrappers(rank, {});
}

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_gpu_report)

BOOST_AUTO_TEST_CASE(every_wrapper_gives_its_golden_output_in_any_order_of_threads) {
  const emulation::Fresh fresh;
  const Goldens expected = read_goldens(golden_file);
  BOOST_TEST(expected.outputs.size() >= 33);
  for (const auto order : {emulation::Order::ascending, emulation::Order::random_lanes}) {
    emulation::order(order, 3);
    for (const std::string& text : differences(outputs(), expected)) BOOST_ERROR(text << "; where it is meant: build-emulated/bench/gpu/gpu_report goldens --write tests/golden/gpu_wrappers.txt");
    if (emulation::thread_sanitizer) break;
  }
}

BOOST_AUTO_TEST_CASE(a_device_without_wgmma_computes_the_others) {
  const emulation::Fresh fresh;
  emulation::Settings settings = emulation::settings();
  settings.major = 8;
  emulation::set(settings);
  const Goldens found = outputs(), expected = read_goldens(golden_file);
  BOOST_TEST(found.outputs.size() == wrapper_cases().size());
  for (const std::string& text : differences(found, expected)) BOOST_TEST(text.ends_with(": was not computed"), text);
}

// Broken on purpose: the wrappers' inputs are such that an exchange of registers, rows or columns is seen.
BOOST_AUTO_TEST_CASE(control_outputs_of_one_wrapper_are_not_those_of_its_neighbour) {
  const Goldens expected = read_goldens(golden_file);
  for (const auto& [one, other] : {std::pair("ldmatrix_x4", "ldmatrix_x4_trans"), {"mma_16816", "mma_16816_rounding"}, {"tma_load_2d", "tma_load_2d_past_the_end"},
                                   {"exp2f", "expf"}}) {
    const auto named = [&](const std::string& name) { return *std::ranges::find_if(expected.outputs, [&](const Golden& output) { return output.name == name; }); };
    Golden renamed = named(other);
    renamed.name = one;
    BOOST_TEST(!difference(renamed, named(one)).empty(), one);
  }
  // What both operands of a product share is the same for all forms: transposing is a matter of where they lie.
  for (const char* columns : {"64", "128", "256"}) {
    std::vector<std::vector<uint32_t>> forms;
    for (const Golden& output : expected.outputs)
      if (output.name.starts_with("wgmma_m64n" + std::string(columns)) && output.tolerance == 0) forms.push_back(output.words);
    BOOST_TEST(forms.size() == 4);
    for (const auto& form : forms) BOOST_TEST((form == forms[0]), columns << " columns");
  }
}

// The script compiles a part of the tree. What that part calls must be in it: looked for in this build's objects, in a second instead of the minutes of a build.
BOOST_AUTO_TEST_CASE(sources_that_the_script_compiles_need_no_others) {
  if (emulation::address_sanitizer || emulation::thread_sanitizer) return;  // their objects lie elsewhere
  const std::string root = QUIRE_BUILD_ROOT;
  std::vector<std::string> nm{"/usr/bin/nm", "-C", "-A"}, absent;
  std::istringstream sources(run_well({QUIRE_SOURCE_ROOT "/tools/gpu_report", "--sources"}).out);
  for (std::string source; sources >> source;) {
    std::string object = source + ".o";
    std::ranges::replace(object, '/', '_');
    const std::string stem = std::filesystem::path(source).stem().string(), file = std::filesystem::path(source).filename().string();
    const std::vector<std::string> places = {root + "/libquire.so.0.1.0.p/" + object, root + "/libquire_control.a.p/" + object, root + "/libquire_cuda.a.p/" + object,
                                             root + "/libquire_cuda.a.p/meson-generated_.._cuda_" + stem + ".cpp.o", root + "/bench/gpu/libgpu_report_parts.a.p/" + file + ".o",
                                             root + "/bench/gpu/libgpu_report_parts.a.p/meson-generated_.._" + stem + ".emulated.cpp.o", root + "/bench/gpu/gpu_report.p/" + file + ".o",
                                             root + "/tools/libbench_parts.a.p/.._" + object};
    const auto found = std::ranges::find_if(places, [](const std::string& place) { return std::filesystem::exists(place); });
    if (found == places.end()) absent.push_back(source);
    else nm.push_back(*found);
  }
  // Of real devices, in place of a library, and where MPI is not built.
  const std::set<std::string> elsewhere = {"runtime/cuda/native.cpp", "runtime/cuda/shared_library.cpp", "bench/gpu/fmt.cpp", "parallel/mpi_absent.cpp"};
  for (const std::string& source : absent) BOOST_TEST(elsewhere.count(source) == 1, source << " has no object in this build");
  const std::vector<std::string> theirs = {"quire::SharedLibrary::", "quire::cuda_is_emulated()", "quire::join_mpi(", "quire::mpi_is_built()", "quire::mpi_version"};
  std::set<std::string> defined, undefined;
  std::istringstream symbols(run_well(nm).out);
  const std::string no_cpu_kernels = contents_of(QUIRE_SOURCE_ROOT "/ops/cuda/absent.cpp");  // from which the script makes the CPU's
  for (std::string line; std::getline(symbols, line);) {
    // FILE:VALUE TYPE NAME, with sixteen places for the value.
    const size_t value = line.find(':') + 1;
    if (line.size() < value + 20) continue;
    const char type = line[value + 17];
    const std::string name = line.substr(value + 19);
    if (name.find("quire::") == std::string::npos) continue;
    (type == 'U' ? undefined : defined).insert(name);
  }
  BOOST_TEST(defined.size() > 500);
  int looked_at = 0;
  for (const std::string& name : undefined) {
    if (defined.count(name) > 0) continue;
    if (std::ranges::any_of(theirs, [&](const std::string& known) { return name.starts_with(known); })) continue;
    if (const size_t at = name.find("quire::cpu_kernels<quire::"); at != std::string::npos) {
      const std::string args = name.substr(at + 26, name.find('>', at) - at - 26);
      BOOST_TEST(no_cpu_kernels.find("cuda_kernels<" + args + ">") != std::string::npos, "ops/cuda/absent.cpp lacks " << args);
      ++looked_at;
      continue;
    }
    BOOST_ERROR(name << " is needed by what tools/gpu_report compiles, and is in none of its sources");
  }
  BOOST_TEST(looked_at > 20);
}

BOOST_AUTO_TEST_CASE(every_phase_runs_and_leaves_its_tables) {
  if (emulation::address_sanitizer || emulation::thread_sanitizer) return;  // the program is another process, which they make slow
  Scratch scratch;
  const ProgramResult result = run_program({QUIRE_SOURCE_ROOT "/tools/gpu_report", "--program", QUIRE_BUILD_ROOT "/bench/gpu/gpu_report", "--shapes", "tiny", "--out", scratch.path("out"), "--build",
                                            scratch.path("build"), "--phases", "goldens,tests,kernels,steps,nccl", "--limit", "goldens=300", "--limit", "tests=300", "--limit", "kernels=300", "--limit",
                                            "steps=300", "--limit", "nccl=300"},
                                           {.patience_seconds = 900});
  BOOST_TEST(result.status == 0, result.out << result.err << contents_of(scratch.path("out/log.txt")) << contents_of(scratch.path("out/report.md")));
  const nlohmann::json report = nlohmann::json::parse(contents_of(scratch.path("out/report.json")));
  BOOST_TEST(report["machine"]["card"].get<std::string>().find("emulated") != std::string::npos);
  std::map<std::string, nlohmann::json> tables;
  for (const auto& phase : report["phases"]) {
    BOOST_TEST(phase["outcome"] == "done", phase["phase"]);
    BOOST_TEST(phase["found"]["complete"] == true, phase["phase"]);
    for (const auto& [name, rows] : phase["found"]["tables"].items()) tables[name] = rows;
  }
  for (const auto& row : tables["wrappers"]) BOOST_TEST(row["found"] == "as expected", row.dump());
  BOOST_TEST(tables["checks"].size() == 24);
  for (const auto& row : tables["checks"]) BOOST_TEST((row["failed"] == 0 && row["passed"].get<double>() >= 1), row.dump());
  // Every kernel in every form, and attention by `block` forward and backward under three masks and two head sizes.
  std::map<std::string, int> kernels, attention;
  for (const auto& row : tables["products"])
    if (row["milliseconds"].is_number()) ++kernels[row["kernel"].get<std::string>()];
  BOOST_TEST((kernels == std::map<std::string, int>{{"cublaslt", 3}, {"mma", 3}, {"wgmma", 3}}));
  for (const auto& row : tables["attention"])
    if (row["backend"] == "block" && row["milliseconds"].is_number()) ++attention[row["mask"].get<std::string>() + " " + row["pass"].get<std::string>()];
  BOOST_TEST((attention == std::map<std::string, int>{{"causal backward", 2}, {"causal forward", 2}, {"documents backward", 2}, {"documents forward", 2}, {"full backward", 2}, {"full forward", 2}}));
  BOOST_TEST(tables["small_model"].size() == 2);
  BOOST_TEST_REQUIRE(tables["large_model"].size() == 1);
  BOOST_TEST(tables["large_model"][0]["host_reads"] == 0);
  BOOST_TEST(tables["large_model"][0]["last_loss"].get<double>() < tables["large_model"][0]["first_loss"].get<double>());
  BOOST_TEST(tables["large_model"][0]["predicted_gib"].get<double>() > 0);
  if (!nccl_is_built()) return;
  // Bytes went from process to process, arrived, and took a time.
  std::map<std::string, int> calls;
  for (const auto& row : tables["communication"]) {
    BOOST_TEST(row["right"] == "yes", row.dump());
    BOOST_TEST((row["bandwidth"].get<double>() > 0 && row["milliseconds"].get<double>() > 0), row.dump());
    ++calls[row["call"].get<std::string>()];
  }
  BOOST_TEST((calls == std::map<std::string, int>{{"all-reduce", 3}, {"send and receive, each through its channel", 3}, {"sends and receives in one group", 3}}));
  // This device's own golden outputs are a golden file.
  BOOST_TEST(differences(read_goldens(scratch.path("out/goldens.txt")), read_goldens(golden_file)).empty());
}

// Two processes of one host on one device are what NCCL refuses: without NCCL_HOSTID, by which tools/gpu_report makes them two hosts.
BOOST_AUTO_TEST_CASE(what_nccl_does_not_allow_is_the_phases_finding_with_its_reason) {
  if (!nccl_is_built() || emulation::address_sanitizer || emulation::thread_sanitizer) return;
  for (const auto& [machine, parts] : std::vector<std::pair<std::string, std::vector<std::string>>>{
         {"devices=1", {"NCCL does not allow it here: [nccl] ncclGroupEnd: invalid usage", "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0"}},
         {"missing=libnccl", {"[cuda] libnccl.so.2, needed for several ranks on devices, can not be loaded"}},
         {"nccl_version=21703", {"found: NCCL 2.17.3; needed: 2.18.1"}}}) {
    Scratch scratch;
    const auto command = [&](int rank) {
      return std::vector<std::string>{"/usr/bin/env", fmt::format("RANK={}", rank), "WORLD_SIZE=2", "QUIRE_EMULATION=" + machine, "QUIRE_MASTER_FILE=" + scratch.path("meeting"),
                                      QUIRE_BUILD_ROOT "/bench/gpu/gpu_report", "nccl", "--shapes", "tiny", "--parts", scratch.path("")};
    };
    Program second(command(1)), first(command(0));
    const ProgramResult result = first.wait();
    BOOST_TEST(result.status == 0, machine << ": " << result.out << result.err);  // nothing of ours failed
    BOOST_TEST(second.wait().status == 0);
    const std::string found = contents_of(scratch.path("nccl.md"));
    for (const std::string& part : parts) BOOST_TEST(found.find(part) != std::string::npos, found << " lacks " << part);
    BOOST_TEST(nlohmann::json::parse(contents_of(scratch.path("nccl.json")))["tables"].empty());
  }
}

// The last phase's two processes, as threads with a device each.
BOOST_AUTO_TEST_CASE(two_ranks_exchange_and_add_tensors_of_devices) {
  const emulation::Fresh fresh;
  std::vector<std::unique_ptr<PhaseReport>> reports;
  for (int rank = 0; rank < 2; ++rank) reports.push_back(std::make_unique<PhaseReport>("", "nccl", "NCCL"));
  run_local_on_devices(2, {}, [&](Communicator& world) {
    Rank rank(RankOptions{.device = {DeviceKind::cuda, world.rank()}});
    connect_both_ways(world, rank);
    try_communication(world, rank, {.tiny = true}, *reports[static_cast<size_t>(world.rank())]);
  });
  for (const auto& report : reports) {
    BOOST_TEST(report->failures() == 0, report->markdown());
    const nlohmann::json rows = nlohmann::json::parse(report->json())["tables"]["communication"];
    BOOST_TEST(rows.size() == 9);
    for (const auto& row : rows) BOOST_TEST(row["right"] == "yes", row.dump());
  }
}

BOOST_AUTO_TEST_SUITE_END()
