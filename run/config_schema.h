// The table of all configuration keys: it drives parsing, checks, nearest names, the stored text and docs/config.md.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "run/config.h"

namespace quire {

/// Where a key's value lives in a Config. A `vector<int64_t>` key also takes one integer.
using ConfigSlot = std::variant<int64_t*, double*, bool*, std::string*, std::vector<int64_t>*, std::vector<double>*, std::vector<std::string>*>;

struct ConfigKey {
  std::string section, name;
  ConfigSlot (*slot)(Config&);
  std::string doc;                         ///< one line
  double least = 0, most = 0;              ///< of numbers, and of a list's entries
  bool above_least = false, below_most = false;  ///< the bounds themselves are not allowed
  std::vector<std::string> choices = {};   ///< of texts; empty = any text
  bool is_path = false;
  std::string file_ending = {};            ///< besides the choices, the path of a file that ends so; "" = none
  bool may_differ = false;                 ///< when a run is resumed
  bool stored = true;                      ///< false for another name of a stored key
  std::string later = {};                  ///< why only the default is accepted for now; "" = every allowed value works

  /// Whether a value is a path, which is relative to the config.
  bool names_file(std::string_view value) const { return is_path || (!file_ending.empty() && value.ends_with(file_ending)); }
  std::string full_name() const { return section + "." + name; }
  std::string type_name() const;           ///< integer, number, true or false, text, path, list of ...
  std::string allowed() const;             ///< "an integer of 1 or more", "block or dense"
};

const std::vector<ConfigKey>& config_schema();
const std::vector<std::string>& config_sections();
const ConfigKey* find_key(std::string_view section, std::string_view name);

/// Where each given key was set ("file:line", "command line"), by full name.
using ConfigPlaces = std::map<std::string, std::string, std::less<>>;

/// Throws ConfigError unless the slot's value is in range, among the choices and implemented.
void check_key(const ConfigKey& key, Config& config, const ConfigPlaces& places, const std::string& name);

/// Resolves in place; `name` stands in messages about keys that were not given. Without `reads_files` a schedule's file is not looked at.
void resolve_config(Config& config, const ConfigPlaces& places, const std::string& name, bool reads_files = true);

/// The config that a run folder or a checkpoint keeps: as `parse_config`, though a schedule's file may be gone or changed since.
Config parse_stored_config(std::string_view text, const std::string& name, const std::string& folder = {});

/// A value as TOML writes it.
std::string value_text(const ConfigSlot& slot);
/// A text as a TOML string on one line, quotes included.
std::string toml_text(std::string_view text);

}  // namespace quire
