// The command line of a program. CLI11 stands behind it and is seen by command_line.cpp alone: it takes more of a compiler's time than any of these programs.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace quire {

/// An option or a positional argument, as it is being described.
class CommandLineOption {
 public:
  explicit CommandLineOption(CLI::Option* option) : option_(option) {}
  CommandLineOption& required();
  /// --help shows the value that it has without being given.
  CommandLineOption& with_default();
  /// What --help calls the value: FILE, say.
  CommandLineOption& type_name(const std::string& name);
  CommandLineOption& within(int64_t least, int64_t most);
  CommandLineOption& positive();
  CommandLineOption& not_negative();
  CommandLineOption& not_empty();
  CommandLineOption& one_of(const std::vector<std::string>& allowed);
  CommandLineOption& excludes(const CommandLineOption& other);
  /// Takes one value each time it is given; without this a list takes all that follow.
  CommandLineOption& one_at_a_time();
  /// Not in --help: for the program's own use.
  CommandLineOption& hidden();
  /// After parse(): whether the command line has it.
  bool given() const;

 private:
  CLI::Option* option_;
};

class CommandLine {
 public:
  /// `program` is named by errors, `description` heads --help.
  CommandLine(const std::string& program, const std::string& description);
  ~CommandLine();
  /// `name` is --NAME, or NAME of a positional argument; parse() writes to `value`: a std::string, an optional or a vector of them, int, int64_t, uint64_t or double.
  template <class T>
  CommandLineOption option(const std::string& name, T& value, const std::string& what);
  CommandLineOption flag(const std::string& name, bool& value, const std::string& what);
  /// The status with which to end at once, where help was asked for (printed, 0) or the command line is wrong (one line on stderr, 1).
  std::optional<int> parse(int argc, const char* const* argv);

 private:
  const std::string program_;
  const std::unique_ptr<CLI::App> app_;
};

}  // namespace quire
