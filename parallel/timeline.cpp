#include "parallel/timeline.h"

#include <algorithm>
#include <limits>

namespace quire {

double Timeline::makespan() const {
  double first = std::numeric_limits<double>::infinity(), last = -first;
  for (const std::vector<TimelineSpan>& rank : spans)
    for (const TimelineSpan& span : rank) {
      first = std::min(first, span.begin);
      last = std::max(last, span.end);
    }
  return last > first ? last - first : 0;
}

double Timeline::work() const {
  double sum = 0;
  for (const std::vector<TimelineSpan>& rank : spans)
    for (const TimelineSpan& span : rank) sum += span.end - span.begin;
  return sum;
}

double Timeline::bubble() const {
  const double whole = static_cast<double>(ranks()) * makespan();
  return whole > 0 ? 1 - work() / whole : 0;
}

}  // namespace quire
