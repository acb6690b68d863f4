#include "tools/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdio>

namespace quire {

CommandLineOption& CommandLineOption::required() { return option_->required(), *this; }
CommandLineOption& CommandLineOption::with_default() { return option_->capture_default_str(), *this; }
CommandLineOption& CommandLineOption::type_name(const std::string& name) { return option_->type_name(name), *this; }
CommandLineOption& CommandLineOption::within(int64_t least, int64_t most) { return option_->check(CLI::Range(least, most)), *this; }
CommandLineOption& CommandLineOption::positive() { return option_->check(CLI::PositiveNumber), *this; }
CommandLineOption& CommandLineOption::not_negative() {
  option_->check([](const std::string& value) {  // CLI11's own check names the largest of doubles in 309 digits
    double number = 0;
    return CLI::detail::lexical_cast(value, number) && number >= 0 ? std::string() : "Value " + value + " is no number from 0 on";
  });
  return *this;
}
CommandLineOption& CommandLineOption::not_empty() {
  option_->check([](const std::string& value) { return value.empty() ? std::string("a name is missing") : std::string(); });
  return *this;
}
CommandLineOption& CommandLineOption::one_of(const std::vector<std::string>& allowed) { return option_->check(CLI::IsMember(allowed)), *this; }
CommandLineOption& CommandLineOption::excludes(const CommandLineOption& other) { return option_->excludes(other.option_), *this; }
CommandLineOption& CommandLineOption::one_at_a_time() { return option_->allow_extra_args(false), *this; }
CommandLineOption& CommandLineOption::hidden() { return option_->group(""), *this; }
bool CommandLineOption::given() const { return option_->count() > 0; }

CommandLine::CommandLine(const std::string& program, const std::string& description) : program_(program), app_(std::make_unique<CLI::App>(description)) {}
CommandLine::~CommandLine() = default;

template <class T>
CommandLineOption CommandLine::option(const std::string& name, T& value, const std::string& what) {
  return CommandLineOption(app_->add_option(name, value, what));
}
template CommandLineOption CommandLine::option(const std::string&, std::string&, const std::string&);
template CommandLineOption CommandLine::option(const std::string&, std::optional<std::string>&, const std::string&);
template CommandLineOption CommandLine::option(const std::string&, std::vector<std::string>&, const std::string&);
template CommandLineOption CommandLine::option(const std::string&, int&, const std::string&);
template CommandLineOption CommandLine::option(const std::string&, int64_t&, const std::string&);
template CommandLineOption CommandLine::option(const std::string&, uint64_t&, const std::string&);
template CommandLineOption CommandLine::option(const std::string&, double&, const std::string&);

CommandLineOption CommandLine::flag(const std::string& name, bool& value, const std::string& what) { return CommandLineOption(app_->add_flag(name, value, what)); }

std::optional<int> CommandLine::parse(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::CallForHelp& help) {
    return app_->exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "[%s] %s; --help lists the options\n", program_.c_str(), error.what());
    return 1;
  }
}

}  // namespace quire
