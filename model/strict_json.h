// JSON read strictly: what a lenient reader would pass over in silence (a key given twice, trailing bytes) is an error here.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace quire {

/// `where` and `path` go into the DataError that is thrown for invalid JSON, invalid UTF-8, a repeated key, or more than `depth` levels.
nlohmann::json parse_strict_json(std::string_view where, const std::string& path, std::string_view text, int depth = 32);

/// A short text of any value for messages, cut after 60 bytes.
std::string shortened(const nlohmann::json& value);

}  // namespace quire
