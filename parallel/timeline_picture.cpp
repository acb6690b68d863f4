#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "parallel/timeline.h"
#include "runtime/svg.h"

namespace quire {

namespace {

constexpr double chart_left = 74, chart_right = 72, chart_top = 104, chart_bottom = 40;
/// More boxes than that are drawn without words that appear under the pointer, many in one path.
constexpr size_t most_described = 12000;
constexpr size_t shades = 4;

struct Look {
  const char* name;
  std::array<const char*, shades> fills;  ///< of a rank's stages, in turn
  const char* ink;                        ///< of the label
};
/// By ActionKind. Blue, green and orange of Okabe and Ito (2008). In grey: forward light, backward dark, input gradients in the middle, and weight gradients, which are hatched.
constexpr std::array<Look, 4> looks = {{{"forward", {"#a9cff0", "#7fb3e0", "#d3e7f8", "#9cbfd6"}, "#0b2b45"},
                                        {"backward", {"#1b5e4b", "#0b382d", "#3a7d66", "#17454f"}, "#ffffff"},
                                        {"input gradient", {"#2f9e77", "#1b7a5a", "#58b896", "#23797a"}, "#ffffff"},
                                        {"weight gradient", {"#f0b23c", "#dd9210", "#f8d182", "#cf8420"}, "#3a2500"}}};

/// `12.5 ms`: four digits or so.
std::string time_text(double seconds, double scale_of) {
  const double size = std::abs(scale_of);
  if (size >= 1 || size == 0) return fmt::format("{:.4g} s", seconds);
  if (size >= 1e-3) return fmt::format("{:.4g} ms", seconds * 1e3);
  return fmt::format("{:.4g} us", seconds * 1e6);
}

/// The smallest of 1, 2, 5 x 10^n that divides `whole` into at most `parts`.
double tick(double whole, double parts) {
  const double least = whole / parts, power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least) return factor * power;
  return 10 * power;
}

class TimelinePicture {
 public:
  explicit TimelinePicture(const Timeline& timeline) : timeline_(timeline) {
    for (const std::vector<TimelineSpan>& spans : timeline.spans) {
      boxes_ += spans.size();
      for (const TimelineSpan& span : spans) {
        microbatches_.insert(span.action.microbatch);
        begin_ = drawn_ ? std::min(begin_, span.begin) : span.begin;
        drawn_ = true;
      }
    }
    // So wide that a mean box holds a label, and no wider than can be looked at.
    const double work = timeline.work();
    side_ = std::clamp(work > 0 ? 22 * timeline.makespan() * static_cast<double>(boxes_) / work : 0.0, 900.0, 8000.0);
    scale_ = timeline.makespan() > 0 ? side_ / timeline.makespan() : 0;
    pitch_ = timeline.ranks() <= 8 ? 34 : timeline.ranks() <= 24 ? 24 : 16;
    number_stages();
  }

  std::string draw() {
    for (int64_t rank = 0; rank < timeline_.ranks(); ++rank) line_of(rank);
    axis();
    const double width = chart_left + side_ + chart_right, height = lines_end() + chart_bottom;
    std::string out = fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" font-family=\"sans-serif\">\n",
                                  width, height);
    out += fmt::format("<title>{}</title>\n", svg_escaped(timeline_.name));
    out += definitions();
    out += "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
    const auto count = [](size_t number, std::string_view what) { return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s"); };
    out += svg_text(chart_left, 30, 18, "start", timeline_.name, "font-weight=\"bold\" fill=\"#222222\"");
    out += svg_text(chart_left, 52, 13, "start",
                    fmt::format("{}, {}, {}; {}; bubble {:.1f} %", count(timeline_.spans.size(), "rank"), count(stages_.size(), "stage"),
                                fmt::format("{} microbatch{}", microbatches_.size(), microbatches_.size() == 1 ? "" : "es"), time_text(timeline_.makespan(), timeline_.makespan()),
                                100 * timeline_.bubble()),
                    "fill=\"#444444\"");
    return out + legend() + body_ + "</svg>\n";
  }

 private:
  double x_of(double time) const { return chart_left + (time - begin_) * scale_; }
  double y_of(int64_t rank) const { return chart_top + static_cast<double>(rank) * pitch_; }
  double height() const { return pitch_ - (pitch_ > 20 ? 6 : 3); }
  double lines_end() const { return y_of(timeline_.ranks()); }

  /// A stage's number among those of its rank.
  void number_stages() {
    for (const std::vector<TimelineSpan>& spans : timeline_.spans) {
      std::set<int64_t> held;
      for (const TimelineSpan& span : spans) held.insert(span.action.stage);
      size_t number = 0;
      for (const int64_t stage : held) stages_[stage] = number++;
      chunks_ = std::max(chunks_, held.size());
    }
  }
  size_t shade(const Action& action) const { return stages_.at(action.stage) % shades; }
  std::string look_of(const Action& action) const { return fmt::format("k{}s{}", static_cast<int>(action.kind), shade(action)); }

  std::string definitions() const {
    std::string out = "<style>\n";
    for (size_t kind = 0; kind < looks.size(); ++kind)
      for (size_t s = 0; s < std::min(std::max<size_t>(chunks_, 1), shades); ++s)
        out += fmt::format(".k{}s{}{{fill:{}}}\n", kind, s, kind == 3 ? fmt::format("url(#hatch{})", s) : looks[kind].fills[s]);
    out += ".box{stroke:#ffffff;stroke-width:0.6}\n</style>\n<defs>\n";
    for (size_t s = 0; s < shades; ++s)
      out += fmt::format("<pattern id=\"hatch{0}\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
                         "<rect width=\"5\" height=\"5\" fill=\"{1}\"/><rect width=\"1.2\" height=\"5\" fill=\"#ffffff\" fill-opacity=\"0.55\"/></pattern>\n",
                         s, looks[3].fills[s]);
    return out + "</defs>\n";
  }

  std::string legend() const {
    std::set<ActionKind> kinds;
    for (const std::vector<TimelineSpan>& spans : timeline_.spans)
      for (const TimelineSpan& span : spans) kinds.insert(span.action.kind);
    double x = chart_left;
    std::string out;
    const size_t shown = std::min(chunks_, shades);
    for (const ActionKind kind : kinds) {
      for (size_t s = 0; s < shown; ++s, x += 16) out += fmt::format("<rect x=\"{:.1f}\" y=\"66\" width=\"15\" height=\"15\" class=\"k{}s{}\"/>\n", x, static_cast<int>(kind), s);
      const std::string_view name = looks[static_cast<size_t>(kind)].name;
      out += svg_text(x + 6, 78, 12, "start", name, "fill=\"#333333\"");
      x += 22 + 7.0 * static_cast<double>(name.size());
    }
    std::string more = "number: microbatch";
    if (shown > 1) more += "; shades: the rank's stages, first to last";
    if (!kinds.empty()) out += svg_text(x, 78, 12, "start", more + "; grey: idle", "fill=\"#666666\"");
    return out;
  }

  void line_of(int64_t rank) {
    const std::vector<TimelineSpan>& spans = timeline_.spans[static_cast<size_t>(rank)];
    const double y = y_of(rank), size = height();
    body_ += svg_text(chart_left - 8, y + size / 2 + 4, pitch_ > 20 ? 12 : 10, "end", fmt::format("rank {}", rank), "fill=\"#444444\"");
    body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#ececec\"/>\n", chart_left, y, side_, size);
    double busy = 0;
    for (const TimelineSpan& span : spans) busy += span.end - span.begin;
    if (timeline_.makespan() > 0)
      body_ += svg_text(chart_left + side_ + 8, y + size / 2 + 4, pitch_ > 20 ? 12 : 10, "start", fmt::format("{:.1f} %", 100 * busy / timeline_.makespan()), "fill=\"#444444\"");
    if (boxes_ <= most_described) described_boxes(rank, spans);
    else plain_boxes(rank, spans);
    labels(rank, spans);
  }

  void described_boxes(int64_t rank, const std::vector<TimelineSpan>& spans) {
    for (const TimelineSpan& span : spans)
      body_ += fmt::format("<rect class=\"box {}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\"><title>{}: {} to {}</title></rect>\n", look_of(span.action), x_of(span.begin),
                           y_of(rank), (span.end - span.begin) * scale_, height(), to_string(span.action), time_text(span.begin - begin_, timeline_.makespan()),
                           time_text(span.end - begin_, timeline_.makespan()));
  }

  void plain_boxes(int64_t rank, const std::vector<TimelineSpan>& spans) {
    std::map<std::string, std::string> paths;
    for (const TimelineSpan& span : spans) {
      const double width = (span.end - span.begin) * scale_;
      paths[look_of(span.action)] += fmt::format("M{:.2f},{:.1f}h{:.2f}v{:.1f}h{:.2f}Z", x_of(span.begin), y_of(rank), width, height(), -width);
    }
    for (const auto& [look, path] : paths) body_ += fmt::format("<path class=\"box {}\" d=\"{}\"/>\n", look, path);
  }

  void labels(int64_t rank, const std::vector<TimelineSpan>& spans) {
    const double font = pitch_ > 20 ? 11 : 9;
    std::map<std::string_view, std::string> by_ink;
    for (const TimelineSpan& span : spans) {
      const std::string label = std::to_string(span.action.microbatch);
      if ((span.end - span.begin) * scale_ < 0.6 * font * static_cast<double>(label.size()) + 2) continue;
      by_ink[looks[static_cast<size_t>(span.action.kind)].ink] +=
          fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x_of((span.begin + span.end) / 2), y_of(rank) + height() / 2 + 0.36 * font, label);
    }
    for (const auto& [ink, texts] : by_ink) body_ += fmt::format("<g font-size=\"{:g}\" text-anchor=\"middle\" fill=\"{}\">{}</g>\n", font, ink, texts);
  }

  void axis() {
    if (scale_ == 0) return;
    const double whole = timeline_.makespan(), step = tick(whole, side_ / 110), y = lines_end() + 2;
    for (int64_t i = 0; static_cast<double>(i) * step <= whole * (1 + 1e-9); ++i) {
      const double time = static_cast<double>(i) * step, x = chart_left + time * scale_;
      body_ += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#888888\"/>\n", x, y, y + 5);
      body_ += svg_text(x, y + 18, 11, "middle", i == 0 ? "0" : time_text(time, whole), "fill=\"#666666\"");
    }
    body_ += svg_text(chart_left + side_ + 8, 78, 11, "start", "busy", "fill=\"#666666\"");
  }

  const Timeline& timeline_;
  std::map<int64_t, size_t> stages_;
  std::set<int64_t> microbatches_;
  size_t boxes_ = 0, chunks_ = 0;
  bool drawn_ = false;
  double begin_ = 0, side_ = 0, scale_ = 0, pitch_ = 0;
  std::string body_;
};

}  // namespace

std::string to_svg(const Timeline& timeline) { return TimelinePicture(timeline).draw(); }

}  // namespace quire
