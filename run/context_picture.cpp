#include "run/context_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/svg.h"

namespace quire {

namespace {

constexpr double side = 760, band = 22, map_left = 96, map_top = 118, gap = 70, margin = 24;
constexpr size_t most_arrows = 72;
constexpr int64_t most_lifelines = 12, most_cells = 128, most_areas = 2048;
constexpr const char* dashes[] = {"", "7 3", "2 3", "9 3 2 3", "4 4", "1 2", "12 4", "6 2 2 2 2 2"};

/// With a white rim, over lines.
std::string rimmed_text(double x, double y, double size, std::string_view anchor, std::string_view text, std::string_view more) {
  return svg_text(x, y, size, anchor, text, fmt::format("{} stroke=\"#ffffff\" stroke-width=\"3\" stroke-linejoin=\"round\"", more)) +
         svg_text(x, y, size, anchor, text, more);
}

struct Point {
  double x, y;  // key, query
};
using Polygon = std::vector<Point>;

/// The part of a convex polygon where a * x + b * y <= c.
Polygon clipped(const Polygon& polygon, double a, double b, double c) {
  Polygon out;
  for (size_t i = 0; i < polygon.size(); ++i) {
    const Point p = polygon[i], q = polygon[(i + 1) % polygon.size()];
    const double at_p = a * p.x + b * p.y - c, at_q = a * q.x + b * q.y - c;
    if (at_p <= 0) out.push_back(p);
    if ((at_p < 0 && at_q > 0) || (at_p > 0 && at_q < 0)) out.push_back({p.x + (q.x - p.x) * at_p / (at_p - at_q), p.y + (q.y - p.y) * at_p / (at_p - at_q)});
  }
  return out;
}

/// A maximal piece of a document within a shard.
struct MapPiece {
  TokenRange document, range;
};

class Picture {
 public:
  Picture(const ContextPlan& plan, const Documents& whole, int64_t window)
      : plan_(plan), window_(window), scale_(side / static_cast<double>(std::max<int64_t>(plan.tokens, 1))) {
    for (const DocumentRun& run : whole.runs()) documents_.push_back({run.global, run.global + run.length});
    if (plan.exchange == ContextExchange::heads)
      head_steps_ = head_steps();
    else
      planned_ = &plan.for_window(window).steps;
    for (const ContextStep& step : steps()) transfers_ += step.transfers.size();
    as_arrows_ = plan.ranks <= most_lifelines && transfers_ <= most_arrows;
    column_ = std::clamp(420.0 / static_cast<double>(plan.ranks), 44.0, 90.0);
    cell_ = std::clamp(520.0 / static_cast<double>(plan.ranks), 6.0, 26.0);
    panel_ = std::max(as_arrows_ ? column_ * static_cast<double>(plan.ranks) : cell_ * static_cast<double>(std::min(plan.ranks, most_cells)) + 34, 430.0);
  }

  std::string draw(const PictureText& text) {
    body_.clear();
    mask();
    bands();
    axes();
    const double bottom = std::max(map_top + band + side + 40, panel());
    const double width = map_left + band + side + gap + panel_ + margin;
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" font-family=\"sans-serif\">\n",
        width, bottom, width, bottom);
    out += fmt::format("<title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", svg_escaped(text.title));
    out += svg_text(margin, 38, 20, "start", text.title, "font-weight=\"bold\" fill=\"#222222\"");
    out += svg_text(margin, 62, 14, "start", text.subtitle, "fill=\"#444444\"");
    return out + body_ + "</svg>\n";
  }

 private:
  std::string colour(int64_t rank) const { return rank_colour(rank, plan_.ranks); }
  double key_x(double token) const { return map_left + band + token * scale_; }
  double query_y(double token) const { return map_top + band + token * scale_; }
  /// Documents of less are drawn together.
  bool tiny(const TokenRange& range) const { return static_cast<double>(range.tokens()) * scale_ < 1; }

  std::string path_of(const Polygon& polygon) const {
    if (polygon.size() < 3) return {};
    std::string path;
    for (size_t i = 0; i < polygon.size(); ++i) path += fmt::format("{}{:.1f},{:.1f}", i == 0 ? 'M' : 'L', key_x(polygon[i].x), query_y(polygon[i].y));
    return path + "Z";
  }

  /// Pairs of these queries and keys of one document.
  Polygon area(const TokenRange& queries, const TokenRange& keys) const {
    const double a = queries.begin, b = queries.end, c = keys.begin, d = keys.end;
    Polygon polygon = clipped({{c, a}, {d, a}, {d, b}, {c, b}}, 1, -1, 0);
    return window_ > 0 ? clipped(polygon, -1, 1, static_cast<double>(window_)) : polygon;
  }

  std::vector<MapPiece> pieces_of(const std::vector<TokenRange>& shard) const {
    std::vector<MapPiece> pieces;
    for (const TokenRange& range : shard) {
      auto document = std::ranges::upper_bound(documents_, range.begin, {}, &TokenRange::end);
      for (; document != documents_.end() && document->begin < range.end; ++document)
        pieces.push_back({*document, {std::max(range.begin, document->begin), std::min(range.end, document->end)}});
    }
    return pieces;
  }

  /// Owners of the places of a band, half a pixel each: whoever holds most of one; -1 for none.
  std::vector<int64_t> owners(bool tiny_only) const {
    const auto count = static_cast<size_t>(2 * side);
    std::vector<double> most(count, 0);
    std::vector<int64_t> owner(count, -1);
    for (size_t r = 0; r < plan_.shards.size(); ++r)
      for (const MapPiece& piece : pieces_of(plan_.shards[r])) {
        if (tiny_only && !tiny(piece.document)) continue;
        const double begin = 2 * scale_ * piece.range.begin, end = 2 * scale_ * piece.range.end;
        for (auto i = static_cast<size_t>(begin); i < count && static_cast<double>(i) < end; ++i) {
          const double part = std::min(end, static_cast<double>(i + 1)) - std::max(begin, static_cast<double>(i));
          if (part > most[i]) {
            most[i] = part;
            owner[i] = static_cast<int64_t>(r);
          }
        }
      }
    return owner;
  }

  void mask() {
    const double end = static_cast<double>(plan_.tokens);
    body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:g}\" height=\"{:g}\" fill=\"#fafafa\"/>\n", key_x(0), query_y(0), side, side);
    body_ += fmt::format("<path d=\"{}\" fill=\"#ebebeb\"/>\n", path_of({{0, 0}, {end, end}, {0, end}}));
    if (plan_.ranks > most_areas) {
      documents_alone();
      return;
    }
    std::vector<std::string> specks(plan_.shards.size());
    const std::vector<int64_t> owner = owners(true);
    for (size_t i = 0; i < owner.size(); ++i)
      if (owner[i] >= 0) {
        const double a = static_cast<double>(i) / (2 * scale_), b = static_cast<double>(i + 1) / (2 * scale_);
        specks[static_cast<size_t>(owner[i])] += path_of({{a, a}, {b, b}, {a, b}});
      }
    std::string light, full;
    for (size_t r = 0; r < plan_.shards.size(); ++r) {
      const std::vector<MapPiece> pieces = pieces_of(plan_.shards[r]);
      std::string all, own = std::move(specks[r]);
      for (size_t q = 0; q < pieces.size(); ++q) {
        if (tiny(pieces[q].document)) continue;
        const std::string whole = path_of(area(pieces[q].range, {pieces[q].document.begin, pieces[q].range.end}));
        if (plan_.exchange == ContextExchange::heads) {  // every rank computes it, for its heads
          own += whole;
          continue;
        }
        all += whole;
        for (size_t k = q + 1; k-- > 0 && pieces[k].document == pieces[q].document;) own += path_of(area(pieces[q].range, pieces[k].range));
      }
      const std::string fill = colour(static_cast<int64_t>(r));
      if (!all.empty()) light += fmt::format("<path data-rank=\"{}\" d=\"{}\" fill=\"{}\" fill-opacity=\"0.38\"/>\n", r, all, fill);
      if (!own.empty()) full += fmt::format("<path data-rank=\"{}\" d=\"{}\" fill=\"{}\"/>\n", r, own, fill);
    }
    body_ += light + full;
    outline();
  }

  /// Parts of ranks would be smaller than can be seen.
  void documents_alone() {
    std::string areas;
    for (const TokenRange& document : documents_)
      if (!tiny(document)) areas += path_of(area(document, document));
    body_ += fmt::format("<path d=\"{}\" fill=\"#9a9a9a\"/>\n", areas);
  }

  void outline() {
    std::string outlines;
    for (const TokenRange& document : documents_)
      if (static_cast<double>(document.tokens()) * scale_ >= 6) outlines += path_of(area(document, document));
    if (!outlines.empty()) body_ += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"#333333\" stroke-width=\"0.6\" stroke-opacity=\"0.6\"/>\n", outlines);
  }

  void bands() {
    const std::vector<int64_t> owner = owners(false);
    std::vector<std::string> areas(plan_.shards.size());
    std::string labels;
    for (size_t i = 0, j = 0; i < owner.size(); i = j) {
      for (j = i + 1; j < owner.size() && owner[j] == owner[i];) ++j;
      if (owner[i] < 0) continue;
      const double from = static_cast<double>(i) / 2, length = static_cast<double>(j - i) / 2;
      const double x = map_left + band + from, y = map_top + band + from;
      areas[static_cast<size_t>(owner[i])] += fmt::format("M{:.1f},{:.1f}h{:.1f}v{:g}h{:.1f}Z", x, map_top, length, band - 4, -length);
      areas[static_cast<size_t>(owner[i])] += fmt::format("M{:.1f},{:.1f}v{:.1f}h{:g}v{:.1f}Z", map_left, y, length, band - 4, -length);
      if (length < 15) continue;
      labels += svg_text(x + length / 2, map_top + 13, 11, "middle", std::to_string(owner[i]), "fill=\"#ffffff\" font-weight=\"bold\"");
      labels += svg_text(map_left + (band - 4) / 2, y + length / 2 + 4, 11, "middle", std::to_string(owner[i]), "fill=\"#ffffff\" font-weight=\"bold\"");
    }
    for (size_t r = 0; r < areas.size(); ++r)
      if (!areas[r].empty())
        body_ += fmt::format("<path class=\"band\" data-rank=\"{}\" d=\"{}\" fill=\"{}\"/>\n", r, areas[r], colour(static_cast<int64_t>(r)));
    body_ += labels;
  }

  void axes() {
    for (int64_t i = 0; i <= 4; ++i) {
      const int64_t token = plan_.tokens * i / 4;
      const auto at = static_cast<double>(token);
      body_ += svg_text(map_left - 8, query_y(at) + (i == 0 ? 8 : i == 4 ? 0 : 4), 11, "end", grouped(token), "fill=\"#666666\"");
      body_ += svg_text(key_x(at), map_top - 8, 11, i == 0 ? "start" : i == 4 ? "end" : "middle", grouped(token), "fill=\"#666666\"");
    }
    body_ += svg_text(key_x(0) + side / 2, map_top - 24, 12, "middle", "keys, and the rank that holds them", "fill=\"#444444\"");
    const double x = 30, y = query_y(0) + side / 2;
    body_ += svg_text(x, y, 12, "middle",
                     plan_.exchange == ContextExchange::heads ? "queries, and the rank that holds them" : "queries, and the rank that computes them",
                     fmt::format("fill=\"#444444\" transform=\"rotate(-90 {:.1f} {:.1f})\"", x, y));
  }

  /// Everybody sends everybody the heads that are theirs; outputs return.
  std::vector<ContextStep> head_steps() const {
    ContextStep step;
    for (int32_t to = 0; to < plan_.ranks; ++to)
      for (int32_t from = 0; from < plan_.ranks; ++from)
        if (from != to && !plan_.shards[static_cast<size_t>(from)].empty()) step.transfers.push_back({from, to, plan_.shards[static_cast<size_t>(from)]});
    if (step.transfers.empty()) return {};
    return {step};
  }

  double panel_x() const { return map_left + band + side + gap; }

  double legend() {
    double y = map_top - 28;
    const bool heads = plan_.exchange == ContextExchange::heads;
    const bool parts = plan_.ranks <= most_areas;
    const std::pair<std::string, std::string> entries[] = {
        {"fill=\"#555555\"", !parts  ? "computed; the parts of so many ranks can not be seen"
                                  : heads ? "queries of the rank's own; computed by all ranks, each for its heads"
                                          : "computed with keys of the rank's own"},
        {"fill=\"#555555\" fill-opacity=\"0.38\"", heads || !parts ? "" : "computed with keys received"},
        {"fill=\"#ebebeb\"", "in a causal row without documents; not computed"}};
    for (const auto& [fill, words] : entries) {
      if (words.empty()) continue;
      body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" {}/>\n", panel_x(), y, fill);
      body_ += svg_text(panel_x() + 22, y + 11.5, 12, "start", words, "fill=\"#333333\"");
      y += 20;
    }
    return y + 16;
  }

  static int64_t rows_of(const ContextStep& step) {
    int64_t rows = 0;
    for (const KeyTransfer& transfer : step.transfers) rows += tokens_of(transfer.rows);
    return rows;
  }

  std::string step_name(size_t s) const {
    if (plan_.exchange == ContextExchange::heads) return "heads: queries, keys and values there, outputs back; rows of one layer";
    return fmt::format("{} {}: {} transfer{}, {} rows of one layer", plan_.exchange == ContextExchange::gather ? "gather" : "step", s + 1, steps()[s].transfers.size(),
                       steps()[s].transfers.size() == 1 ? "" : "s", grouped(rows_of(steps()[s])));
  }

  /// Returns where it ends.
  double panel() {
    double y = legend();
    if (transfers_ == 0) {
      body_ += svg_text(panel_x(), y + 10, 14, "start", "No keys travel: every document is whole on one rank.", "fill=\"#222222\"");
      return y + 40;
    }
    if (as_arrows_) return arrows(y);
    return plan_.ranks <= most_cells ? table(y) : totals(y);
  }

  double arrows(double y) {
    const auto x_of = [&](int64_t rank) { return panel_x() + (static_cast<double>(rank) + 0.5) * column_; };
    const double head = y + 12;
    std::string lines;
    y = head + 26;
    for (size_t s = 0; s < steps().size(); ++s) {
      lines += rimmed_text(panel_x(), y + 8, 12, "start", step_name(s), "fill=\"#222222\" font-weight=\"bold\"");
      y += 28;
      const char* dash = dashes[s % std::size(dashes)];
      for (const KeyTransfer& transfer : steps()[s].transfers) {
        const double from = x_of(transfer.from), to = x_of(transfer.to), way = to > from ? 1 : -1;
        const std::string fill = colour(transfer.from);
        lines += fmt::format("<g class=\"transfer\" data-step=\"{}\" data-from=\"{}\" data-to=\"{}\" data-rows=\"{}\">", s + 1, transfer.from,
                             transfer.to, tokens_of(transfer.rows));
        lines += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"2\"{}/>", from, y,
                             to - way * 8, y, fill, *dash ? fmt::format(" stroke-dasharray=\"{}\"", dash) : "");
        lines += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>", from, y, fill);
        lines += fmt::format("<path d=\"M{:.1f},{:.1f}L{:.1f},{:.1f}L{:.1f},{:.1f}Z\" fill=\"{}\"/>", to, y, to - way * 9, y - 4.5, to - way * 9,
                             y + 4.5, fill);
        lines += rimmed_text((from + to) / 2, y - 3, 10, "middle", grouped(tokens_of(transfer.rows)), "fill=\"#222222\"");
        lines += "</g>\n";
        y += 17;
      }
      y += 6;
    }
    for (int64_t rank = 0; rank < plan_.ranks; ++rank) {
      body_ += fmt::format(
          "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\" stroke-width=\"5\" stroke-opacity=\"0.22\"/>\n",
          x_of(rank), head, y, colour(rank));
      body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"20\" rx=\"4\" fill=\"{}\"/>\n", x_of(rank) - column_ / 2 + 3,
                           head - 12, column_ - 6, colour(rank));
      body_ += svg_text(x_of(rank), head + 2.5, 11, "middle", fmt::format("rank {}", rank), "fill=\"#ffffff\" font-weight=\"bold\"");
    }
    body_ += lines;
    return y + margin;
  }

  double table(double y) {
    const double x = panel_x() + 30, size = cell_ * static_cast<double>(plan_.ranks);
    y += 14;
    body_ += svg_text(x, y, 13, "start", "who sends (down) to whom (across): the darker, the more rows of one layer", "fill=\"#222222\" font-weight=\"bold\"");
    y += 32;
    int64_t most = 1;
    for (const ContextStep& step : steps())
      for (const KeyTransfer& transfer : step.transfers) most = std::max(most, tokens_of(transfer.rows));
    body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#f4f4f4\"/>\n", x, y, size, size);
    const int64_t every = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(16 / cell_)));
    for (int64_t rank = 0; rank < plan_.ranks; ++rank) {
      const double at = (static_cast<double>(rank) + 0.5) * cell_;
      body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"5\" height=\"{:.1f}\" fill=\"{}\"/>\n", x - 7, y + at - cell_ / 2, cell_ - 0.5,
                           colour(rank));
      body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"5\" fill=\"{}\"/>\n", x + at - cell_ / 2, y - 7, cell_ - 0.5,
                           colour(rank));
      if (rank % every != 0) continue;
      body_ += svg_text(x - 10, y + at + 4, 10, "end", std::to_string(rank), "fill=\"#444444\"");
      body_ += svg_text(x + at, y - 11, 10, "middle", std::to_string(rank), "fill=\"#444444\"");
    }
    for (size_t s = 0; s < steps().size(); ++s)
      for (const KeyTransfer& transfer : steps()[s].transfers) {
        const int64_t rows = tokens_of(transfer.rows);
        body_ += fmt::format(
            "<rect class=\"transfer\" data-step=\"{}\" data-from=\"{}\" data-to=\"{}\" data-rows=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
            "height=\"{:.1f}\" "
            "fill=\"{}\" fill-opacity=\"{:.2f}\"/>\n",
            s + 1, transfer.from, transfer.to, rows, x + transfer.to * cell_, y + transfer.from * cell_, cell_ - 0.5, cell_ - 0.5,
            colour(transfer.from), 0.2 + 0.8 * std::sqrt(static_cast<double>(rows) / static_cast<double>(most)));
      }
    return list_of_steps(x, y + size + 24);
  }

  /// Of so many ranks that no pair of them can be seen.
  double totals(double y) {
    int64_t rows = 0;
    for (const ContextStep& step : steps()) rows += rows_of(step);
    body_ += svg_text(panel_x(), y + 10, 13, "start",
                     fmt::format("{} transfers between {} ranks, {} rows of one layer", grouped(static_cast<int64_t>(transfers_)), plan_.ranks, grouped(rows)),
                     "fill=\"#222222\" font-weight=\"bold\"");
    return list_of_steps(panel_x(), y + 36);
  }

  double list_of_steps(double x, double y) {
    constexpr size_t shown = 8;
    for (size_t s = 0; s < std::min(shown, steps().size()); ++s, y += 17) body_ += svg_text(x, y, 12, "start", step_name(s), "fill=\"#333333\"");
    if (steps().size() > shown) {
      int64_t rows = 0;
      size_t transfers = 0;
      for (size_t s = shown; s < steps().size(); ++s) {
        rows += rows_of(steps()[s]);
        transfers += steps()[s].transfers.size();
      }
      body_ += svg_text(x, y, 12, "start", fmt::format("steps {} to {}: {} transfers, {} rows", shown + 1, steps().size(), transfers, grouped(rows)),
                       "fill=\"#333333\"");
      y += 17;
    }
    return y + margin;
  }

  const ContextPlan& plan_;
  int64_t window_;
  double scale_;
  std::vector<TokenRange> documents_;
  const std::vector<ContextStep>& steps() const { return planned_ ? *planned_ : head_steps_; }

  const std::vector<ContextStep>* planned_ = nullptr;
  std::vector<ContextStep> head_steps_;
  size_t transfers_ = 0;
  bool as_arrows_ = true;
  double column_ = 0, cell_ = 0, panel_ = 0;
  std::string body_;
};

}  // namespace

std::string rank_colour(int64_t rank, int64_t ranks) {
  // Okabe and Ito's colours (2008), told apart by everybody, darkened for white labels; beyond them hues a golden angle apart.
  static constexpr const char* few[] = {"#0072b2", "#d55e00", "#009e73", "#b8578c", "#c98a00", "#3a9bd0", "#7a4fa3", "#6b7a1f"};
  if (ranks <= static_cast<int64_t>(std::size(few))) return few[rank % static_cast<int64_t>(std::size(few))];
  const double hue = std::fmod(static_cast<double>(rank) * 137.50776405, 360.0), value = rank % 3 == 0 ? 0.82 : rank % 3 == 1 ? 0.62 : 0.72, saturation = 0.72;
  std::string text = "#";
  for (const double offset : {5.0, 3.0, 1.0}) {
    const double k = std::fmod(offset + hue / 60, 6.0);
    text += fmt::format("{:02x}", static_cast<int>(std::lround(255 * (value - value * saturation * std::clamp(std::min(k, 4 - k), 0.0, 1.0)))));
  }
  return text;
}

std::string context_picture(const ContextPlan& plan, const Documents& whole, int64_t window, const PictureText& text) {
  return Picture(plan, whole, window).draw(text);
}

}  // namespace quire
