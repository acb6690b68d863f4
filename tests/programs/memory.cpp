// FAULTS 49: memory stays flat over thousands of steps, and is what the printed table says.
#include <cstdlib>

#include "programs/fixture.h"

using namespace quire;
using namespace quire::test;

namespace {

/// Bytes of "in all X MiB" in the memory line.
double announced_bytes(const std::string& out) {
  const size_t line = out.find("memory:"), at = out.find("in all ", line);
  BOOST_REQUIRE(line != std::string::npos);
  BOOST_REQUIRE(at != std::string::npos);
  return std::strtod(out.c_str() + at + 7, nullptr) * (1 << 20);
}

/// Resident bytes on record, by step.
std::map<int64_t, double> resident(const Workshop& workshop, const std::string& run) {
  std::map<int64_t, double> bytes;
  for (const StepMetrics& m : read_metrics(disk(), workshop.path(run) + "/metrics.jsonl")) bytes[m.step] = static_cast<double>(m.resident_bytes);
  return bytes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(memory)

BOOST_AUTO_TEST_CASE(fault_49_resident_memory_is_flat_over_two_thousand_steps) {
  Workshop workshop;
  for (const char* strategy : {"bfd", "concat"}) {
    const std::string run = strategy;
    const ProgramResult result = run_well(workshop.training(
        run, {"data.strategy=" + run, "run.threads=2", "model.dim=32", "train.microbatch_size=4", "train.max_steps=2000", "metrics.log_interval=100",
              "checkpoint.interval=50", "eval.interval=50"}));
    std::map<int64_t, double> bytes = resident(workshop, run);
    BOOST_TEST(bytes.at(100) > 0);
    BOOST_TEST(bytes.at(2000) <= 1.01 * bytes.at(100), run << ": " << bytes[100] << " bytes at step 100, " << bytes[2000] << " at step 2000");
    const double announced = announced_bytes(result.out);
    BOOST_TEST(std::abs(bytes.at(2000) - announced) <= 0.1 * announced, run << ": " << bytes[2000] << " bytes, announced " << announced);
  }
}

BOOST_AUTO_TEST_CASE(fault_49_the_printed_table_is_what_a_larger_run_takes) {
  Workshop workshop;
  for (const std::vector<std::string>& shape : std::vector<std::vector<std::string>>{
           {"data.strategy=bfd", "train.microbatch_size=8"},
           {"data.strategy=concat", "train.microbatch_size=4", "train.activation_checkpointing=full"},
           {"data.strategy=concat", "train.microbatch_size=8", "train.mixed_precision=bf16"}}) {
    std::vector<std::string> overrides{"model.dim=64", "model.n_layers=4", "model.ffn_hidden_dim=128", "run.threads=2", "train.seq_len=256",
                                       "train.global_batch_size=8", "train.max_steps=12", "checkpoint.interval=5", "eval.interval=6"};
    overrides.insert(overrides.end(), shape.begin(), shape.end());
    const std::string run = "large" + shape.back();
    const ProgramResult result = run_well(workshop.training(run, overrides));
    const double announced = announced_bytes(result.out), taken = resident(workshop, run).at(12);
    BOOST_TEST(announced > 15 * (1 << 20));
    BOOST_TEST(std::abs(taken - announced) <= 0.1 * announced, shape.back() << ": " << taken << " bytes, announced " << announced);
  }
}

BOOST_AUTO_TEST_SUITE_END()
