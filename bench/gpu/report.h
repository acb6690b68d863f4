// What a phase of tools/gpu_report finds: texts and tables, written as markdown and JSON after every line, so that nothing is lost when the phase is ended.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace quire::gpu_report {

/// A text, or a number with as many digits behind the point as people should see.
struct Cell {
  Cell(const char* text_) : text(text_) {}
  Cell(std::string text_) : text(std::move(text_)) {}
  Cell(double number_, int digits_) : number(number_), digits(digits_) {}
  std::string text;
  std::optional<double> number;
  int digits = 0;
  /// As people see it; "-" for what is no finite number.
  std::string shown() const;
};

/// `key` names it in JSON, `heading` in markdown.
struct Column {
  std::string key, heading;
};

/// Text as a JSON string, quotes included.
std::string json_text(const std::string& text);
/// A number in JSON: all its digits; null for what is not finite.
std::string json_number(double number);

/// Not thread-safe. `folder` empty: nothing is written.
class PhaseReport {
 public:
  /// Files: FOLDER/PHASE.md and FOLDER/PHASE.json.
  PhaseReport(std::string folder, std::string phase, std::string title);

  void note(const std::string& text);
  /// Begins a table; `row` adds to it. Throws StateError for a key that is there already.
  void table(const std::string& key, const std::string& caption, std::vector<Column> columns);
  /// Throws StateError where there is no table, or it has another number of columns.
  void row(std::vector<Cell> cells);
  /// Something is wrong: counted, and shown first.
  void failure(const std::string& text);
  /// The phase came to its end by itself.
  void complete();

  /// Of the last table.
  int64_t rows() const { return tables_.empty() ? 0 : static_cast<int64_t>(tables_.back().rows.size()); }
  int64_t failures() const { return static_cast<int64_t>(failures_.size()); }
  std::string markdown() const;
  std::string json() const;

 private:
  struct Table {
    std::string key, caption;
    std::vector<Column> columns;
    std::vector<std::vector<Cell>> rows;
  };
  struct Part {
    std::string note;
    std::optional<size_t> table;
  };
  /// Each file as a whole, or as it was.
  void save() const;

  std::string folder_, phase_, title_;
  std::vector<Part> parts_;
  std::vector<Table> tables_;
  std::vector<std::string> failures_;
  bool complete_ = false;
};

}  // namespace quire::gpu_report
