#include "bench/gpu/report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "runtime/error.h"

namespace quire::gpu_report {

namespace {

/// Of a cell or caption in markdown: nothing ends a cell or a line.
std::string in_cell(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += "\\|";
    else if (c == '\n' || c == '\r') result += ' ';
    else result += c;
  }
  return result;
}

void write_whole(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  std::FILE* const file = std::fopen(fresh.c_str(), "wb");
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (!written || !closed || std::rename(fresh.c_str(), path.c_str()) != 0) fail<FileError>("gpu_report", "{}: can not be written: {}", path, std::strerror(errno));
}

}  // namespace

std::string Cell::shown() const {
  if (!number) return text;
  return std::isfinite(*number) ? fmt::format("{:.{}f}", *number, digits) : "-";
}

std::string json_text(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') (result += '\\') += c;
    else if (c == '\n') result += "\\n";
    else if (byte < 0x20) result += fmt::format("\\u{:04x}", byte);
    else result += c;
  }
  return result + "\"";
}

std::string json_number(double number) { return std::isfinite(number) ? fmt::format("{}", number) : "null"; }

PhaseReport::PhaseReport(std::string folder, std::string phase, std::string title) : folder_(std::move(folder)), phase_(std::move(phase)), title_(std::move(title)) { save(); }

void PhaseReport::note(const std::string& text) {
  parts_.push_back({text, {}});
  save();
}

void PhaseReport::table(const std::string& key, const std::string& caption, std::vector<Column> columns) {
  for (const Table& other : tables_)
    if (other.key == key) fail<StateError>("gpu_report", "table '{}' of {} is there already", key, phase_);
  parts_.push_back({"", tables_.size()});
  tables_.push_back({key, caption, std::move(columns), {}});
  save();
}

void PhaseReport::row(std::vector<Cell> cells) {
  if (tables_.empty()) fail<StateError>("gpu_report", "{} has no table yet", phase_);
  Table& table = tables_.back();
  if (cells.size() != table.columns.size()) fail<StateError>("gpu_report", "table '{}' has {} columns; found: a row of {}", table.key, table.columns.size(), cells.size());
  table.rows.push_back(std::move(cells));
  save();
}

void PhaseReport::failure(const std::string& text) {
  failures_.push_back(text);
  save();
}

void PhaseReport::complete() {
  complete_ = true;
  save();
}

std::string PhaseReport::markdown() const {
  std::string text = fmt::format("## {}\n", title_);
  if (!complete_) text += "\nNot complete: what follows was found before it ended.\n";
  for (const std::string& failure : failures_) text += fmt::format("\n**Failed:** {}\n", failure);
  for (const Part& part : parts_) {
    if (!part.table) {
      text += fmt::format("\n{}\n", part.note);
      continue;
    }
    const Table& table = tables_[*part.table];
    text += fmt::format("\n{}\n\n", table.caption);
    for (const Column& column : table.columns) text += fmt::format("| {} ", in_cell(column.heading));
    text += "|\n";
    for (size_t i = 0; i < table.columns.size(); ++i) text += "|---";
    text += "|\n";
    for (const auto& row : table.rows) {
      for (const Cell& cell : row) text += fmt::format("| {} ", in_cell(cell.shown()));
      text += "|\n";
    }
  }
  return text;
}

std::string PhaseReport::json() const {
  std::string text = fmt::format("{{\"phase\": {}, \"title\": {}, \"complete\": {}", json_text(phase_), json_text(title_), complete_);
  const auto list = [&](const char* key, const auto& texts) {
    text += fmt::format(", \"{}\": [", key);
    for (size_t i = 0; i < texts.size(); ++i) text += (i > 0 ? ", " : "") + json_text(texts[i]);
    text += "]";
  };
  std::vector<std::string> notes;
  for (const Part& part : parts_)
    if (!part.table) notes.push_back(part.note);
  list("failures", failures_);
  list("notes", notes);
  text += ", \"tables\": {";
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Table& table = tables_[t];
    text += fmt::format("{}{}: [", t > 0 ? ", " : "", json_text(table.key));
    for (size_t r = 0; r < table.rows.size(); ++r) {
      text += r > 0 ? ",\n  {" : "\n  {";
      for (size_t c = 0; c < table.columns.size(); ++c) {
        const Cell& cell = table.rows[r][c];
        text += fmt::format("{}{}: {}", c > 0 ? ", " : "", json_text(table.columns[c].key), cell.number ? json_number(*cell.number) : json_text(cell.text));
      }
      text += "}";
    }
    text += "]";
  }
  return text + "}}\n";
}

void PhaseReport::save() const {
  if (folder_.empty()) return;
  write_whole(folder_ + "/" + phase_ + ".md", markdown());
  write_whole(folder_ + "/" + phase_ + ".json", json());
}

}  // namespace quire::gpu_report
