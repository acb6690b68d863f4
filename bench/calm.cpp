#include "bench/calm.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <thread>

namespace quire::bench {

double median_of(std::vector<double> values) { return spread_of(std::move(values)).median; }

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - std::floor(place)) * (values[above] - values[below]);
  };
  return {at(0.25), at(0.5), at(0.75)};
}

std::string milliseconds(double seconds) { return fmt::format("{:.{}f} ms", 1e3 * seconds, seconds < 0.1 ? 2 : seconds < 1 ? 1 : 0); }

double queued_seconds() {
  std::ifstream file("/proc/thread-self/schedstat");
  double ran = 0, waited = 0;
  file >> ran >> waited;
  return waited * 1e-9;
}

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void CalmGate::expect(size_t kind, double probe) {
  if (best_.size() <= kind) best_.resize(kind + 1, 0);
  best_[kind] = std::max(best_[kind], probe);
}

Measurement CalmGate::measure(size_t kind, const std::function<Measurement()>& once, const Tell& tell) {
  constexpr double most_queued = 0.02;
  Measurement quickest;
  for (int64_t tries = 0; tries < most_tries_; ++tries) {
    if (tries > 0 && pause_ > 0) std::this_thread::sleep_for(std::chrono::duration<double>(pause_));
    const Measurement one = once();
    expect(kind, one.probe);
    if (tries == 0 || one.seconds < quickest.seconds) quickest = one;
    const std::string found = milliseconds(one.seconds);
    if (one.probe >= quiet_ * best_[kind] && one.queued <= most_queued * one.seconds) {
      if (tell) tell(found);
      return one;
    }
    if (tries + 1 == most_tries_) break;
    ++repeated_;
    if (tell) tell(found + ", measured again: the processor was disturbed");
  }
  ++disturbed_;
  if (tell) tell(fmt::format("{}, the least of {} disturbed ones", milliseconds(quickest.seconds), most_tries_));
  return quickest;
}

std::string CalmGate::summary() const {
  return fmt::format("{} measurements were made again because the processor was disturbed{}.\n", repeated_,
                     disturbed_ > 0 ? fmt::format("; {} count although it was: run it on a quieter machine", disturbed_) : "");
}

}  // namespace quire::bench
