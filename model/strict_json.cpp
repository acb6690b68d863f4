#include "model/strict_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "runtime/error.h"

namespace quire {

nlohmann::json parse_strict_json(std::string_view where, const std::string& path, std::string_view text, int depth) {
  using nlohmann::json;
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int level, json::parse_event_t event, json& value) {
    switch (event) {
      case json::parse_event_t::object_start: keys.emplace_back(); [[fallthrough]];
      case json::parse_event_t::array_start:
        if (level >= depth) fail<DataError>(where, "'{}': JSON is nested deeper than {} levels", path, depth);
        break;
      case json::parse_event_t::object_end: keys.pop_back(); break;
      case json::parse_event_t::key:
        if (!keys.back().insert(value.get_ref<const std::string&>()).second)
          fail<DataError>(where, "'{}': the key {} is given twice", path, shortened(value));
        break;
      default: break;
    }
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& error) {
    fail<DataError>(where, "'{}' is not valid JSON: {}", path, error.what());
  }
}

std::string shortened(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace quire
