#include "run/step_traces.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/accelerator.h"

namespace quire {

StepTraces::StepTraces(Rank& rank, Communicator& world, Pipeline& pipeline, std::string folder, FileSystem& fs)
    : rank_(rank), host_(rank.accelerator() != nullptr ? std::make_unique<Rank>() : nullptr), carrier_(host_ ? *host_ : rank), world_(world), pipeline_(pipeline),
      folder_(std::move(folder)), fs_(fs), clocks_(measure_clocks(carrier_, world)) {
  pipeline_.record_times(true);
}

void StepTraces::keep(int64_t step) {
  if (!clocks_.one_clock) clocks_ = measure_clocks(carrier_, world_);  // clocks of machines drift apart
  const Timeline timeline = gather_timeline(carrier_, world_, pipeline_.times(), clocks_);
  if (world_.rank() != 0) return;
  fs_.make_directories(folder_);
  write_atomically(fs_, fmt::format("{}/step-{:08}.json", folder_, step), to_chrome_trace(timeline));
  std::vector<std::string> kept = fs_.list(folder_);
  std::erase_if(kept, [](const std::string& name) { return !name.starts_with("step-") || !name.ends_with(".json"); });
  for (size_t i = 0; i + most_traces < kept.size(); ++i) fs_.remove_all(folder_ + "/" + kept[i]);
}

std::string StepTraces::describe() const {
  const std::string clocks = clocks_.one_clock ? "all ranks have one machine's clock"
                                               : fmt::format("clocks of other machines are set by pings, to {:.0f} us", static_cast<double>(clocks_.uncertainty) / 1e3);
  const std::string device = rank_.accelerator() == nullptr ? "" : fmt::format("; their times are those at which work was handed to {}, which computes later", to_string(rank_.device()));
  return fmt::format("traces: of logged steps, the last {}, in {}; {}{}", most_traces, folder_, clocks, device);
}

}  // namespace quire
