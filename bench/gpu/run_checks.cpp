#include <algorithm>
#include <boost/test/unit_test.hpp>  // the stand-in of bench/gpu/boostless
#include <chrono>

#include "bench/gpu/checks.h"
#include "bench/gpu/phases.h"
#include "runtime/accelerator.h"

namespace quire::gpu_report {

void run_checks(Rank&, const PhaseOptions& options, PhaseReport& report) {
  Rank rank(RankOptions{.device = {DeviceKind::cuda, 0}, .poison = true});  // what is read before it is written is NaN
  report.table("checks", "Kernels against literal loops in f64 or long double on the CPU; memory that nobody has written is NaN.",
               {{"case", "case"}, {"passed", "checks passed"}, {"failed", "failed"}, {"seconds", "seconds"}});
  std::vector<CheckCase> cases = row_checks(options.tiny);
  for (auto& more : {product_checks(rank, options.tiny), attention_checks(options.tiny)}) cases.insert(cases.end(), more.begin(), more.end());
  boostless::Checks& checks = boostless::checks();
  for (const CheckCase& each : cases) {
    checks = {};
    const auto start = std::chrono::steady_clock::now();
    try {
      each.run(rank);
    } catch (const boostless::Required&) {  // is among the failed
    } catch (const std::exception& error) {
      checks.failed.push_back(error.what());
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    constexpr size_t most_shown = 3;
    for (size_t i = 0; i < std::min(checks.failed.size(), most_shown); ++i) report.failure(each.name + ": " + checks.failed[i]);
    report.row({each.name, {static_cast<double>(checks.passed), 0}, {static_cast<double>(checks.failed.size()), 0}, {seconds, 2}});
  }
}

}  // namespace quire::gpu_report
