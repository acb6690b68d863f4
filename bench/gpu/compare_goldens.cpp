#include <ctime>
#include <fstream>

#include "bench/gpu/phases.h"
#include "bench/gpu/wrappers.h"
#include "runtime/accelerator.h"
#include "runtime/error.h"

namespace quire::gpu_report {

void compare_goldens(Rank& rank, const PhaseOptions& options, PhaseReport& report) {
  const Goldens expected = read_goldens(options.goldens);
  report.note(fmt::format("Expected: {}, made on {}.", options.goldens, expected.made_on));
  report.table("wrappers", "Each wrapper's output for fixed inputs. Exact ones must have the same bits.", {{"wrapper", "wrapper"}, {"compared", "compared"}, {"found", "found"}});
  Goldens found;
  int64_t alike = 0;
  const auto compare = [&](const Golden& output) {
    std::string text = fmt::format("is not among the golden outputs");
    for (const Golden& other : expected.outputs)
      if (other.name == output.name) text = difference(condensed(output), condensed(other));
    if (text.empty()) ++alike;
    else report.failure("golden output of " + text);
    report.row({output.name, output.tolerance > 0 ? fmt::format("to {} of the largest", output.tolerance) : "bits", text.empty() ? "as expected" : "differs"});
  };
  found = run_wrappers(rank, compare);
  for (const Golden& output : expected.outputs) {
    bool computed = false;
    for (const Golden& other : found.outputs) computed = computed || other.name == output.name;
    if (!computed) report.row({output.name, "-", "not on this device"});
  }
  report.note(fmt::format("{} of {} outputs are as expected.", alike, found.outputs.size()));
  if (options.found.empty()) return;
  // What differs is kept as a whole, for whoever looks for the reason.
  for (Golden& output : found.outputs) {
    bool same = false;
    for (const Golden& other : expected.outputs) same = same || (other.name == output.name && difference(condensed(output), condensed(other)).empty());
    if (same) output = condensed(output);
  }
  char date[32] = "";
  const std::time_t now = std::time(nullptr);
  if (std::tm day{}; gmtime_r(&now, &day) != nullptr) std::strftime(date, sizeof date, "%Y-%m-%d", &day);
  found.made_on = fmt::format("{}, {}", rank.accelerator()->description(), date);
  std::ofstream file(options.found, std::ios::binary);
  if (!(file << goldens_text(found)).flush()) fail<FileError>("goldens", "{} can not be written", options.found);
}

}  // namespace quire::gpu_report
