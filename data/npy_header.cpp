#include "data/npy_header.h"

#include <array>
#include <charconv>

#include "runtime/error.h"

namespace quire {

namespace {

/// The text that follows `'key':` in the header's Python dictionary, without leading blanks.
std::string_view value_of(std::string_view header, std::string_view key, const std::string& path) {
  const size_t at = header.find(fmt::format("'{}'", key));
  const size_t colon = at == std::string_view::npos ? at : header.find(':', at);
  if (colon == std::string_view::npos) fail<DataError>("npy", "'{}' has no '{}' in its header", path, key);
  header.remove_prefix(colon + 1);
  while (!header.empty() && header.front() == ' ') header.remove_prefix(1);
  return header;
}

}  // namespace

NpyHeader read_npy_header(const File& file, const std::string& path) {
  const int64_t size = file.size();
  std::array<std::byte, 12> head{};
  if (size >= 12) file.read_at(0, head);
  const std::string_view magic(reinterpret_cast<const char*>(head.data()), 6);
  if (size < 12 || magic != std::string_view("\x93NUMPY", 6))
    fail<DataError>(
        "npy", "'{}' does not begin with NumPy's magic; ids without a header (OLMo's files) need format = \"raw\" and a token type",
        path);
  const auto byte = [&](size_t i) { return static_cast<int64_t>(head[i]); };
  const int64_t version = byte(6);
  if (version < 1 || version > 3) fail<DataError>("npy", "'{}' is of version {}; known: 1, 2, 3", path, version);
  const int64_t length = version == 1 ? byte(8) | byte(9) << 8 : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  const int64_t before = version == 1 ? 10 : 12;
  if (length > (1 << 20) || before + length > size)
    fail<DataError>("npy", "'{}' has a header of {} bytes in a file of {}: it is truncated or damaged", path, length, size);
  std::string header(static_cast<size_t>(length), '\0');
  file.read_at(before, std::as_writable_bytes(std::span(header)));

  NpyHeader result{TokenType::u16, before + length, 0};
  const std::string_view type = value_of(header, "descr", path).substr(0, 5);
  if (type == "'<u2'") result.type = TokenType::u16;
  else if (type == "'<u4'") result.type = TokenType::u32;
  else if (type == "'<i4'") result.type = TokenType::i32;
  else if (type == "'<i8'") result.type = TokenType::i64;
  else fail<DataError>("npy", "'{}' holds {}; known: '<u2', '<u4', '<i4', '<i8'", path, type);

  std::string_view shape = value_of(header, "shape", path);
  shape = shape.substr(0, shape.find(')') + 1);
  int64_t count = -1;
  if (shape.size() > 2 && shape.front() == '(') {
    const auto [end, error] = std::from_chars(shape.data() + 1, shape.data() + shape.size(), count);
    const std::string_view rest(end, static_cast<size_t>(shape.data() + shape.size() - end));
    if (error != std::errc() || (rest != ",)" && rest != ", )" && rest != ")")) count = -1;
  }
  if (count < 0) fail<DataError>("npy", "'{}' has the shape {}; ids are one-dimensional", path, shape);
  const int64_t width = size_of(result.type);
  if (count > size / width || size - result.begin != count * width)
    fail<DataError>("npy", "'{}' has {} bytes of data, its {} ids need {}: it is truncated or damaged", path, size - result.begin,
                    count, count * width);
  result.count = count;
  return result;
}

}  // namespace quire
