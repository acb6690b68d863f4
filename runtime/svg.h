// Words in SVG pictures.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

/// As text or attribute of an XML document: `&`, `<`, `>` and quotes escaped, control characters as blanks.
std::string svg_escaped(std::string_view text);

/// A text element with its baseline at y. `anchor`: start, middle, end. `more`: further attributes.
std::string svg_text(double x, double y, double size, std::string_view anchor, std::string_view text, std::string_view more = "");

/// 12,345
std::string grouped(int64_t number);

}  // namespace quire
