// Timelines as numbers, as a trace and as a picture: parsed again, nothing is lost and nothing is beside its place.
#include "parallel/timeline.h"

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "check.h"
#include "parallel/schedule_index.h"

using namespace quire;
using Json = nlohmann::json;
using Tree = boost::property_tree::ptree;

namespace {

/// The schedule carried out with a cost for each action (drawn, or 1) and messages of 0.25 s and 100 bytes. Independent of `simulate`.
Timeline carried_out(const PipelineSchedule& schedule, uint64_t seed = 0) {
  const ScheduleIndex index(schedule);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> cost(0.5, 1.5);
  Timeline timeline{schedule.name, std::vector<std::vector<TimelineSpan>>(schedule.actions.size()), {}};
  std::map<std::tuple<int64_t, int64_t, bool>, double> done;
  std::vector<size_t> next(schedule.actions.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < next.size(); ++rank)
      while (next[rank] < schedule.actions[rank].size()) {
        const Action& action = schedule.actions[rank][next[rank]];
        double start = timeline.spans[rank].empty() ? 0 : timeline.spans[rank].back().end;
        if (const std::optional<Action> input = index.input_of(action)) {
          const auto found = done.find({input->stage, input->microbatch, input->kind == ActionKind::forward});
          if (found == done.end()) break;
          const int64_t from = index.sender_to(action);
          if (from >= 0) timeline.transfers.push_back({action, from, static_cast<int64_t>(rank), 100, found->second, found->second + 0.25});
          start = std::max(start, found->second + (from >= 0 ? 0.25 : 0));
        }
        timeline.spans[rank].push_back({action, start, start + (seed == 0 ? 1 : cost(random))});
        if (action.kind != ActionKind::backward_weight)
          done[{action.stage, action.microbatch, action.kind == ActionKind::forward}] = timeline.spans[rank].back().end;
        ++next[rank];
        moved = true;
      }
  }
  for (size_t rank = 0; rank < next.size(); ++rank) BOOST_REQUIRE_EQUAL(next[rank], schedule.actions[rank].size());
  return timeline;
}

std::vector<PipelineSchedule> some_schedules() {
  return {make_schedule("1f1b", 2, 1, 4), make_schedule("gpipe", 3, 1, 5), make_schedule("interleaved_1f1b", 4, 3, 9), split_backward(make_schedule("1f1b", 5, 1, 11), 2),
          make_schedule("1f1b", 1, 1, 0)};
}

/// By phase: ph of Chrome's events.
std::map<std::string, std::vector<Json>> events_of(const std::string& text) {
  std::map<std::string, std::vector<Json>> events;
  const Json trace = Json::parse(text);
  for (const Json& event : trace.at("traceEvents")) events[event.at("ph")].push_back(event);
  return events;
}

std::pair<int64_t, int64_t> thread_of(const Json& event) { return {event.at("pid").get<int64_t>(), event.at("tid").get<int64_t>()}; }

/// Boxes that no line of a thread can show: they overlap.
int64_t overlaps(std::vector<Json> events) {
  std::ranges::sort(events, {}, [](const Json& event) { return std::pair(thread_of(event), event.at("ts").get<double>()); });
  int64_t count = 0;
  for (size_t i = 1; i < events.size(); ++i)
    if (thread_of(events[i]) == thread_of(events[i - 1]) &&
        events[i].at("ts").get<double>() < events[i - 1].at("ts").get<double>() + events[i - 1].at("dur").get<double>() - 1e-2)
      ++count;
  return count;
}

bool within(const Json& point, const std::vector<Json>& boxes, int64_t* found = nullptr) {
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Json& box = boxes[i];
    const double at = point.at("ts"), begin = box.at("ts"), end = begin + box.at("dur").get<double>();
    if (box.at("pid") != point.at("pid") || box.at("tid") != point.at("tid") || at < begin || at > end) continue;
    if (found) *found = static_cast<int64_t>(i);
    return true;
  }
  return false;
}

Tree parsed(const std::string& svg) {
  std::istringstream stream(svg);
  Tree tree;
  boost::property_tree::read_xml(stream, tree);
  return tree.get_child("svg");
}

template <class F>
void for_elements(const Tree& tree, F&& visit) {
  for (const auto& [name, child] : tree) {
    if (name == "<xmlattr>") continue;
    visit(name, child);
    for_elements(child, visit);
  }
}

struct Box {
  double x, y, width, height;
  std::string words;
};
std::vector<Box> boxes_of(const std::string& svg) {
  std::vector<Box> boxes;
  for_elements(parsed(svg), [&](const std::string& name, const Tree& element) {
    if (name == "rect" && element.get<std::string>("<xmlattr>.class", "").starts_with("box"))
      boxes.push_back({element.get<double>("<xmlattr>.x"), element.get<double>("<xmlattr>.y"), element.get<double>("<xmlattr>.width"), element.get<double>("<xmlattr>.height"),
                       element.get<std::string>("title")});
  });
  return boxes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(timeline)

BOOST_AUTO_TEST_CASE(makespan_work_and_bubble_are_those_of_the_spans) {
  const Action action{ActionKind::forward, 0, 0};
  const Timeline two{"x", {{{action, 2, 3}, {action, 5, 6}}, {{action, 3, 6.5}}}, {{action, 0, 1, 8, 1, 9}}};
  BOOST_TEST(two.makespan() == 4.5);  // transfers do not count, and time runs from the first computation
  BOOST_TEST(two.work() == 5.5);
  BOOST_TEST(two.bubble() == 1 - 5.5 / 9);
  BOOST_TEST(carried_out(make_schedule("gpipe", 1, 1, 4)).bubble() == 0);
  for (const Timeline& idle : {Timeline{}, Timeline{"x", {{}, {}}, {}}, Timeline{"x", {{{action, 1, 1}}}, {}}}) {
    BOOST_TEST(idle.makespan() == 0);
    BOOST_TEST(idle.work() == 0);
    BOOST_TEST(idle.bubble() == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_trace_holds_every_computation_and_message_and_joins_them) {
  for (const PipelineSchedule& schedule : some_schedules())
    for (const uint64_t seed : {0u, 7u}) {
      const Timeline timeline = carried_out(schedule, seed);
      const auto events = events_of(to_chrome_trace(timeline));
      std::multiset<std::tuple<int64_t, std::string, int64_t>> planned, seen;
      for (size_t rank = 0; rank < timeline.spans.size(); ++rank)
        for (const TimelineSpan& span : timeline.spans[rank])
          planned.insert({static_cast<int64_t>(rank), to_string(span.action), std::llround(1e6 * (span.end - span.begin))});
      std::vector<Json> boxes, receives;
      if (events.contains("X"))
        for (const Json& event : events.at("X")) (event.at("tid") == 0 ? boxes : receives).push_back(event);
      for (const Json& event : boxes) seen.insert({event.at("pid"), event.at("name"), std::llround(event.at("dur").get<double>())});
      BOOST_TEST((planned == seen));
      BOOST_TEST(receives.size() == timeline.transfers.size());
      BOOST_TEST(overlaps(boxes) == 0);
      BOOST_TEST(overlaps(receives) == 0);
      if (timeline.transfers.empty()) continue;
      // Each arrow starts within the box that sends and ends within the one that takes.
      BOOST_REQUIRE_EQUAL(events.at("s").size(), timeline.transfers.size());
      std::map<int64_t, Json> ends;
      for (const Json& end : events.at("f")) ends[end.at("id")] = end;
      const ScheduleIndex index(schedule);
      for (const Json& begin : events.at("s")) {
        int64_t from = -1, to = -1;
        BOOST_REQUIRE(within(begin, boxes, &from));
        BOOST_REQUIRE(within(ends.at(begin.at("id")), boxes, &to));
        const Json &sender = boxes[static_cast<size_t>(from)], &taker = boxes[static_cast<size_t>(to)];
        BOOST_TEST(sender.at("args").at("microbatch") == taker.at("args").at("microbatch"));
        BOOST_TEST(std::abs(sender.at("args").at("stage").get<int64_t>() - taker.at("args").at("stage").get<int64_t>()) == 1);
        BOOST_TEST((sender.at("cat") == "forward") == (taker.at("cat") == "forward"));
      }
      // Every process and thread that is used has a name.
      std::set<std::pair<int64_t, int64_t>> named;
      for (const Json& event : events.at("M"))
        if (event.at("name") == "thread_name") named.insert(thread_of(event));
      for (const Json& event : events.at("X")) BOOST_TEST(named.contains(thread_of(event)));
    }
}

BOOST_AUTO_TEST_CASE(a_picture_holds_a_box_for_every_computation_in_its_line_and_at_its_time) {
  for (const PipelineSchedule& schedule : some_schedules())
    for (const uint64_t seed : {0u, 7u}) {
      const Timeline timeline = carried_out(schedule, seed);
      const std::vector<Box> boxes = boxes_of(to_svg(timeline));
      size_t at = 0;
      double before = -1;
      for (const std::vector<TimelineSpan>& spans : timeline.spans) {
        for (const TimelineSpan& span : spans) {
          BOOST_REQUIRE(at < boxes.size());
          const Box &box = boxes[at++], &first = boxes.front();
          BOOST_TEST(box.words.starts_with(to_string(span.action) + ":"));
          const double scale = first.width / (timeline.spans[0][0].end - timeline.spans[0][0].begin);
          BOOST_TEST(std::abs(box.width - scale * (span.end - span.begin)) < 0.05 * box.width);
          BOOST_TEST(std::abs(box.x - (first.x + scale * span.begin)) < 0.05 * (box.x + 1));
          BOOST_TEST((&span == &spans.front() ? box.y > before : box.y == before));
          before = box.y;
        }
      }
      BOOST_TEST(at == boxes.size());
    }
}

BOOST_AUTO_TEST_CASE(labels_are_drawn_where_they_fit_and_no_box_overlaps_another) {
  for (const int64_t ranks : {2, 8, 16, 64}) {
    const Timeline timeline = carried_out(make_schedule("1f1b", ranks, 1, ranks < 64 ? 2 * ranks : ranks), 3);
    const std::string svg = to_svg(timeline);
    std::map<double, double> end_of_line;
    for (const Box& box : boxes_of(svg)) {
      BOOST_TEST(box.x > end_of_line[box.y] - 0.02);
      end_of_line[box.y] = box.x + box.width;
    }
    BOOST_TEST(static_cast<int64_t>(end_of_line.size()) == ranks);
    int64_t labels = 0, computations = 0;
    for_elements(parsed(svg), [&](const std::string& name, const Tree& element) {
      if (name == "g")
        for (const auto& child : element) labels += child.first == "text";
    });
    for (const std::vector<TimelineSpan>& spans : timeline.spans) computations += static_cast<int64_t>(spans.size());
    BOOST_TEST(labels > 0.85 * static_cast<double>(computations));
  }
}

BOOST_AUTO_TEST_CASE(traces_and_pictures_are_the_same_whenever_written_and_of_large_timelines_small) {
  const Timeline timeline = carried_out(make_schedule("interleaved_1f1b", 4, 2, 8), 5);
  BOOST_TEST(to_svg(timeline) == to_svg(timeline));
  BOOST_TEST(to_chrome_trace(timeline) == to_chrome_trace(carried_out(make_schedule("interleaved_1f1b", 4, 2, 8), 5)));
  const Timeline large = carried_out(make_schedule("1f1b", 64, 1, 256), 1);
  const std::string svg = to_svg(large);
  BOOST_TEST(svg.size() < 4u << 20);
  BOOST_TEST(boxes_of(svg).empty());  // in paths
  int64_t drawn = 0;
  for_elements(parsed(svg), [&](const std::string& name, const Tree& element) {
    if (name != "path") return;
    const auto path = element.get<std::string>("<xmlattr>.d");
    drawn += std::ranges::count(path, 'M');
  });
  BOOST_TEST(drawn == 64 * 2 * 256);
}

BOOST_AUTO_TEST_CASE(the_heading_of_busy_shares_stands_above_them) {
  double heading = 0, share = 0;
  for_elements(parsed(to_svg(carried_out(make_schedule("1f1b", 2, 1, 2)))), [&](const std::string& name, const Tree& element) {
    if (name != "text") return;
    const std::string text = element.data();
    const auto y = element.get<double>("<xmlattr>.y");
    if (text == "busy") heading = y;
    if (text.ends_with(" %") && text.find(';') == std::string::npos && share == 0) share = y;
  });
  BOOST_TEST(heading > 0);
  BOOST_TEST(heading < share);
}

BOOST_AUTO_TEST_CASE(names_from_files_can_not_break_out) {
  Timeline timeline = carried_out(make_schedule("1f1b", 2, 1, 2));
  timeline.name = "a<b>&\"c\"\n\\\xff</svg>";
  BOOST_TEST(Json::parse(to_chrome_trace(timeline)).at("otherData").contains("schedule"));
  const Tree tree = parsed(to_svg(timeline));
  BOOST_TEST(tree.get<std::string>("title").starts_with("a<b>&\"c\""));
}

BOOST_AUTO_TEST_SUITE_END()
