#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "parallel/timeline.h"

namespace quire {

namespace {

using Json = nlohmann::ordered_json;

/// Microseconds, to the nanosecond.
double microseconds(double seconds) { return std::round(seconds * 1e9) / 1e3; }

const char* category(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward: return "forward";
    case ActionKind::backward: return "backward";
    case ActionKind::backward_input: return "input gradient";
    case ActionKind::backward_weight: return "weight gradient";
  }
  return "";
}

/// (stage, microbatch, forward): what a message goes out of and into. Weight gradients neither send nor receive.
using Pass = std::tuple<int64_t, int64_t, bool>;
struct Place {
  int64_t rank = 0;
  const TimelineSpan* span = nullptr;
};

class Trace {
 public:
  explicit Trace(const Timeline& timeline) : timeline_(timeline) {}

  std::string write() {
    for (int64_t rank = 0; rank < timeline_.ranks(); ++rank) computations(rank);
    const std::vector<int64_t> lanes = receives();
    for (int64_t rank = 0; rank < timeline_.ranks(); ++rank) names(rank, lanes[static_cast<size_t>(rank)]);
    const Json head = {{"schedule", timeline_.name}, {"ranks", timeline_.ranks()}, {"makespan_seconds", timeline_.makespan()}, {"bubble", timeline_.bubble()}};
    std::string text = "{\"displayTimeUnit\":\"ms\",\"otherData\":" + dump(head) + ",\"traceEvents\":[";
    for (size_t i = 0; i < events_.size(); ++i) text += (i == 0 ? "\n" : ",\n") + events_[i];
    return text + "\n]}\n";
  }

 private:
  static std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }
  void add(const Json& event) { events_.push_back(dump(event)); }

  void computations(int64_t rank) {
    for (const TimelineSpan& span : timeline_.spans[static_cast<size_t>(rank)]) {
      const Action& action = span.action;
      add({{"name", to_string(action)},
           {"cat", category(action.kind)},
           {"ph", "X"},
           {"pid", rank},
           {"tid", 0},
           {"ts", microseconds(span.begin)},
           {"dur", microseconds(span.end - span.begin)},
           {"args", {{"stage", action.stage}, {"microbatch", action.microbatch}}}});
      if (action.kind != ActionKind::backward_weight) places_[{action.stage, action.microbatch, action.kind == ActionKind::forward}] = {rank, &span};
    }
  }

  /// Messages of several peers may come at once: each then takes a lane (thread) where nothing else is. Returns the lanes of each rank.
  std::vector<int64_t> receives() {
    std::vector<const TimelineTransfer*> transfers;
    for (const TimelineTransfer& transfer : timeline_.transfers) transfers.push_back(&transfer);
    std::ranges::stable_sort(transfers, {}, [](const TimelineTransfer* transfer) { return transfer->begin; });
    std::vector<std::vector<double>> ends(timeline_.spans.size());
    for (size_t i = 0; i < transfers.size(); ++i) {
      const TimelineTransfer& transfer = *transfers[i];
      std::vector<double>& lanes = ends.at(static_cast<size_t>(transfer.to));
      const auto lane = std::ranges::find_if(lanes, [&](double end) { return end <= transfer.begin; });
      const auto number = lane - lanes.begin();
      if (lane == lanes.end()) lanes.push_back(transfer.end);
      else *lane = transfer.end;
      const bool forward = transfer.consumer.kind == ActionKind::forward;
      add({{"name", (forward ? "activations for " : "gradients for ") + to_string(transfer.consumer)},
           {"cat", "transfer"},
           {"ph", "X"},
           {"pid", transfer.to},
           {"tid", 1 + number},
           {"ts", microseconds(transfer.begin)},
           {"dur", microseconds(transfer.end - transfer.begin)},
           {"args", {{"from", transfer.from}, {"to", transfer.to}, {"bytes", transfer.bytes}}}});
      flow(transfer, static_cast<int64_t>(i));
    }
    std::vector<int64_t> counts;
    for (const std::vector<double>& lanes : ends) counts.push_back(static_cast<int64_t>(lanes.size()));
    return counts;
  }

  /// An arrow from the computation that sends to the one that takes. Viewers tie its ends to the boxes around them: they lie just within.
  void flow(const TimelineTransfer& transfer, int64_t id) {
    const Action& consumer = transfer.consumer;
    const bool forward = consumer.kind == ActionKind::forward;
    const auto from = places_.find({consumer.stage + (forward ? -1 : 1), consumer.microbatch, forward}),
               to = places_.find({consumer.stage, consumer.microbatch, forward});
    if (from == places_.end() || to == places_.end()) return;
    const TimelineSpan &source = *from->second.span, &target = *to->second.span;
    const Json common = {{"name", forward ? "activations" : "gradients"}, {"cat", "message"}, {"id", id}};
    Json begin = common, end = common;
    begin.update(Json{{"ph", "s"}, {"pid", from->second.rank}, {"tid", 0}, {"ts", microseconds(source.end - 0.01 * (source.end - source.begin))}});
    end.update(Json{{"ph", "f"}, {"bp", "e"}, {"pid", to->second.rank}, {"tid", 0}, {"ts", microseconds(target.begin + 0.01 * (target.end - target.begin))}});
    add(begin);
    add(end);
  }

  void names(int64_t rank, int64_t lanes) {
    const auto name = [&](const char* what, int64_t thread, const Json& args) {
      add({{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", args}});
    };
    name("process_name", 0, {{"name", "rank " + std::to_string(rank)}});
    name("process_sort_index", 0, {{"sort_index", rank}});
    name("thread_name", 0, {{"name", "computations"}});
    for (int64_t lane = 0; lane < lanes; ++lane) {
      name("thread_name", 1 + lane, {{"name", lane == 0 ? "receives" : "receives, too"}});
      name("thread_sort_index", 1 + lane, {{"sort_index", 1 + lane}});
    }
  }

  const Timeline& timeline_;
  std::map<Pass, Place> places_;
  std::vector<std::string> events_;
};

}  // namespace

std::string to_chrome_trace(const Timeline& timeline) { return Trace(timeline).write(); }

}  // namespace quire
