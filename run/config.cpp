#include "run/config.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "run/config_schema.h"
#include "runtime/digest.h"
#include "runtime/error.h"

namespace quire {
namespace {

/// At most `limit` bytes of a text, cut at a character's start.
std::string shortened(std::string_view text, size_t limit = 60) {
  if (text.size() <= limit) return std::string(text);
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xc0) == 0x80) --limit;
  return std::string(text.substr(0, limit)) + "...";
}

std::string joined(const std::vector<std::string>& texts, const char* between) {
  std::string out;
  for (const std::string& text : texts) (out += out.empty() ? "" : between) += text;
  return out;
}

/// What stands in a file, for messages.
std::string found_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return toml_text(shortened(text->get())) + " (a text)";
  if (const auto* list = node.as_array()) return fmt::format("a list of {}", list->size());
  if (node.is_table()) return "a section";
  if (const auto* integer = node.as_integer()) return fmt::format("{}", integer->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* boolean = node.as_boolean()) return boolean->get() ? "true" : "false";
  return "a date or time";
}

bool assign(const toml::node& node, int64_t& value) {
  if (const auto* integer = node.as_integer()) return value = integer->get(), true;
  return false;
}
bool assign(const toml::node& node, double& value) {
  if (const auto* number = node.as_floating_point()) return value = number->get(), true;
  if (const auto* integer = node.as_integer()) return value = static_cast<double>(integer->get()), true;
  return false;
}
bool assign(const toml::node& node, bool& value) {
  if (const auto* boolean = node.as_boolean()) return value = boolean->get(), true;
  return false;
}
bool assign(const toml::node& node, std::string& value) {
  if (const auto* text = node.as_string()) return value = text->get(), true;
  return false;
}
template <class T>
bool assign(const toml::node& node, std::vector<T>& values) {
  std::vector<T> read;
  const auto* list = node.as_array();
  if (list == nullptr) {
    if constexpr (!std::is_same_v<T, int64_t>) return false;
    read.resize(1);
    if (!assign(node, read.front())) return false;
  } else {
    for (const toml::node& entry : *list)
      if (!assign(entry, read.emplace_back())) return false;
  }
  values = std::move(read);
  return true;
}

toml::table parse_toml(std::string_view text, const std::string& name) {
  try {
    return toml::parse(text, std::string_view(name));
  } catch (const toml::parse_error& error) {
    const std::string line = toml_text(shortened(error.description(), 200));  // escapes what would break the line
    fail<ConfigError>(fmt::format("{}:{}", name, static_cast<int64_t>(error.source().begin.line)), "not valid TOML: {}",
                      std::string_view(line).substr(1, line.size() - 2));
  }
}

[[noreturn]] void unknown_key(std::string_view section, std::string_view name, const std::string& place) {
  std::vector<std::string> names, full_names;
  std::string elsewhere;
  for (const ConfigKey& key : config_schema()) {
    if (key.section == section) names.push_back(key.name);
    if (key.name == name && elsewhere.empty()) elsewhere = key.full_name();
    full_names.push_back(key.full_name());
  }
  const std::string full = section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
  std::string near = nearest(name, names);
  near = !near.empty() ? fmt::format("{}.{}", section, near) : !elsewhere.empty() ? elsewhere : nearest(full, full_names);
  fail<ConfigError>(place, "unknown key {}{}; docs/config.md lists all keys", shortened(toml_text(full), 80),
                    near.empty() ? "" : fmt::format(", did you mean {}?", near));
}

[[noreturn]] void unknown_section(std::string_view section, const std::string& place) {
  const std::string near = nearest(section, config_sections());
  fail<ConfigError>(place, "unknown section {}{}; allowed: {}", shortened(toml_text(section), 80),
                    near.empty() ? "" : fmt::format(", did you mean [{}]?", near), joined(config_sections(), ", "));
}

bool is_section(std::string_view name) {
  const std::vector<std::string>& sections = config_sections();
  return std::find(sections.begin(), sections.end(), std::string(name)) != sections.end();
}

/// Reads a file and overrides into a Config, and remembers where every key was set.
class TomlReader {
 public:
  explicit TomlReader(std::string name) : name_(std::move(name)) {}

  void read(std::string_view text, const std::string& folder) {
    const toml::table root = parse_toml(text, name_);
    for (const auto& [section, node] : root) {
      const std::string place = place_of(section);
      const auto* table = node.as_table();
      if (table == nullptr) {
        if (is_section(section.str())) fail<ConfigError>(place, "{} is {}; allowed: a section [{}]", section.str(), found_text(node), section.str());
        unknown_key("", section.str(), place);
      }
      if (!is_section(section.str())) unknown_section(section.str(), place);
      for (const auto& [key, value] : *table) {
        const ConfigKey* known = find_key(section.str(), key.str());
        if (known == nullptr) unknown_key(section.str(), key.str(), place_of(key));
        set(*known, value, place_of(key), folder);
      }
    }
  }

  /// `section.key=value`; a text needs no quotes.
  void read_override(const std::string& argument) {
    const std::string place = "command line";
    const size_t equals = argument.find('='), dot = argument.find('.');
    if (equals == std::string::npos || dot == std::string::npos || dot > equals)
      fail<ConfigError>(place, "{} is not an override; allowed: section.key=value", shortened(toml_text(argument), 80));
    const std::string section = argument.substr(0, dot), name = argument.substr(dot + 1, equals - dot - 1), value = argument.substr(equals + 1);
    if (!is_section(section)) unknown_section(section, place);
    const ConfigKey* key = find_key(section, name);
    if (key == nullptr) unknown_key(section, name, place);
    const bool is_text = std::holds_alternative<std::string*>(key->slot(config));
    if (is_text && (value.empty() || (value.front() != '"' && value.front() != '\''))) {
      set(*key, toml::value<std::string>(value), place, "");
      return;
    }
    const bool takes_list = key->type_name().starts_with("list") || (key->type_name().ends_with("list") && value.find(',') != std::string::npos);
    const bool bare_list = takes_list && !value.starts_with('[');
    toml::table table;
    try {
      table = parse_toml(bare_list ? "value = [" + value + "]" : "value = " + value, "command line");
    } catch (const ConfigError&) {
    }
    const toml::node* node = table.get("value");
    if (node == nullptr || table.size() != 1)
      fail<ConfigError>(place, "{} is {}; allowed: {}", key->full_name(), shortened(toml_text(value), 80), key->allowed());
    set(*key, *node, place, "");
  }

  Config finish(bool reads_files = true) {
    resolve_config(config, places_, name_, reads_files);
    if (config.data.dataset_path.empty())
      fail<ConfigError>(name_, "data.dataset_path is not set; allowed: a folder made by prepare, or a .bin, .npy or text file");
    if (config.run.dir.empty())
      config.run.dir = std::filesystem::absolute(std::filesystem::path("runs") / std::filesystem::path(name_).stem()).lexically_normal().string();
    return config;
  }

  Config config;

 private:
  std::string place_of(const toml::key& key) const { return fmt::format("{}:{}", name_, static_cast<int64_t>(key.source().begin.line)); }

  void set(const ConfigKey& key, const toml::node& node, const std::string& place, const std::string& folder) {
    const ConfigSlot slot = key.slot(config);
    if (!std::visit([&](auto* value) { return assign(node, *value); }, slot))
      fail<ConfigError>(place, "{} is {}; allowed: {}", key.full_name(), found_text(node), key.allowed());
    places_[key.full_name()] = place;
    if (auto* const* text = std::get_if<std::string*>(&slot); text != nullptr && !folder.empty())
      if (std::string& path = **text; !path.empty() && key.names_file(path)) path = (std::filesystem::path(folder) / path).string();
  }

  std::string name_;
  ConfigPlaces places_;
};

/// Values as TOML writes them.
struct Printer {
  std::string operator()(const int64_t& value) const { return fmt::format("{}", value); }
  std::string operator()(const double& value) const {  // the shortest text that reads back as the same double, with a mark of a fraction
    const std::string text = fmt::format("{}", value);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  std::string operator()(const bool& value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return toml_text(value); }
  template <class T>
  std::string operator()(const std::vector<T>& values) const {
    std::string out = "[";
    for (const T& value : values) out += (out.size() > 1 ? ", " : "") + (*this)(value);
    return out + "]";
  }
};

std::string read_stored(const Config& config, const ConfigKey& key) {
  Config copy = config;
  return value_text(key.slot(copy));
}

/// A text as a cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

Config parse_config(std::string_view text, const std::string& name, const std::string& folder, const std::vector<std::string>& overrides) {
  TomlReader reader(name);
  reader.read(text, folder);
  for (const std::string& argument : overrides) reader.read_override(argument);
  return reader.finish();
}

Config parse_stored_config(std::string_view text, const std::string& name, const std::string& folder) {
  TomlReader reader(name);
  reader.read(text, folder);
  return reader.finish(/*reads_files=*/false);
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides, FileSystem& fs) {
  return parse_config(read_text(fs, path), path, std::filesystem::path(path).parent_path().string(), overrides);
}

std::string toml_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') (out += '\\') += c;
    else if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) (out += "\\u00") += fmt::format("{:02x}", static_cast<unsigned char>(c));
    else out += c;
  }
  return out + '"';
}

std::string value_text(const ConfigSlot& slot) {
  return std::visit([](const auto* value) { return Printer{}(*value); }, slot);
}

std::string to_toml(const Config& config) {
  std::string out, section;
  for (const ConfigKey& key : config_schema()) {
    if (!key.stored) continue;
    if (key.section != section) out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section = key.section);
    out += fmt::format("{} = {}\n", key.name, read_stored(config, key));
  }
  return out;
}

uint64_t digest_of(const Config& config) {
  Digest digest;
  for (const ConfigKey& key : config_schema()) {
    if (!key.stored || key.may_differ) continue;
    const std::string line = fmt::format("{} = {}\n", key.full_name(), read_stored(config, key));
    digest.update(std::as_bytes(std::span(line)));
  }
  return digest.value();
}

void check_resumable(const Config& stored, const Config& now) {
  for (const ConfigKey& key : config_schema()) {
    if (!key.stored || key.may_differ) continue;
    const std::string before = read_stored(stored, key), after = read_stored(now, key);
    if (before != after)
      fail<ConfigError>("resume", "{} is {} but the run in {} has {}; allowed: the same, or another run.dir (with checkpoint.load_path to start from its "
                        "weights)", key.full_name(), after, toml_text(now.run.dir), before);
  }
}

std::string config_documentation() {
  std::string out =
      "# Configuration\n\n"
      "One TOML file describes a run; `section.key=value` on the command line overrides it (a text needs no quotes there). Relative paths in a file\n"
      "are relative to the file, those on the command line to the current directory. An unknown key or section, a wrong type, a value out of range and\n"
      "settings that contradict each other are refused with file, line and key. Keys marked * may change when a run is resumed; changing another one\n"
      "needs a new run folder. This page is printed from the schema in `run/config_schema.cpp`; a test compares the two.\n";
  Config defaults;
  std::string section;
  for (const ConfigKey& key : config_schema()) {
    if (key.section != section)
      out += fmt::format("\n## [{}]\n\n| key | type | default | allowed | |\n|---|---|---|---|---|\n", section = key.section);
    std::string note = key.doc;
    if (!key.later.empty()) note += fmt::format(" Only the default works: {}.", key.later);
    out += fmt::format("| {}{} | {} | `{}` | {} | {} |\n", key.name, key.may_differ ? " *" : "", key.type_name(), value_text(key.slot(defaults)),
                       cell(key.allowed()), cell(note));
  }
  return out;
}

}  // namespace quire
