// Typed errors in one house form: `[where] what is wrong: found, allowed, way out`.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// Base of everything this library throws on purpose. `what()` reads `[where] message`.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ShapeError : public Error { using Error::Error; };        ///< sizes that do not fit together
class DTypeError : public Error { using Error::Error; };        ///< a dtype an operation can not take
class ConfigError : public Error { using Error::Error; };       ///< a wrong key, value or combination of settings
class DataError : public Error { using Error::Error; };         ///< a file or text whose content is wrong
class FileError : public Error { using Error::Error; };         ///< the operating system refused a file operation
class UnsupportedError : public Error { using Error::Error; };  ///< right, but not something Quire does
class StateError : public Error { using Error::Error; };        ///< a call at the wrong moment
class DeviceError : public Error { using Error::Error; };        ///< a device or its library refused a call
class OutOfMemoryError : public Error { using Error::Error; };  ///< names the biggest users
class NonFiniteError : public Error { using Error::Error; };    ///< loss or gradients stayed NaN or infinite
class ScheduleError : public Error { using Error::Error; };     ///< a schedule that is incomplete, out of order or can not end
class BoundaryError : public Error { using Error::Error; };     ///< document boundaries that arrived are not those of the plan
class CommunicationError : public Error { using Error::Error; };///< another rank failed, or was waited for too long
class AbortedError : public CommunicationError { using CommunicationError::CommunicationError; };  ///< another rank has said already what went wrong

/// `[where] formatted message`.
std::string error_text(std::string_view where, fmt::string_view format, fmt::format_args arguments);

/// Throws `E` with that text.
template <class E = Error, class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail(std::string_view where, fmt::format_string<Args...> format, Args&&... args) {
  throw E(error_text(where, format, fmt::make_format_args(args...)));
}

/// The entry of `known` with the least edit distance to `word` (neighbours exchanged count once), or "" where none is near (more than a third of
/// its letters off).
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace quire
