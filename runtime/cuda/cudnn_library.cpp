#include "runtime/cuda/cudnn_library.h"

#include <array>

#include "runtime/cuda/shared_library.h"
#include "runtime/cuda/versions.h"
#include "runtime/error.h"

namespace quire {

namespace {

/// Earlier ones lack parts of attention over packed documents, or err in it (9.10).
constexpr size_t oldest_cudnn = 91100;  ///< as cudnnGetVersion counts: 10000 * major + 100 * minor + patch

}  // namespace

void check_cudnn_version(size_t found) {
  if (found < oldest_cudnn)
    fail<UnsupportedError>("cuda", "found: cuDNN {}; needed: {} or newer, for model.attention_backend = \"cudnn\"; allowed: a newer one in LD_LIBRARY_PATH, or the backend \"block\"",
                           library_version_text(found), library_version_text(oldest_cudnn));
}

const Cudnn& cudnn() {
  static const Cudnn functions = [] {
    // Of the headers' major version: enumerators are those that this was compiled with.
    static const SharedLibrary library({fmt::format("libcudnn.so.{}", CUDNN_MAJOR)}, "model.attention_backend = \"cudnn\"", "the backend \"block\"");
    Cudnn table;
#define QUIRE_LOAD(name) table.name = library.function<decltype(::name)>(#name);
    QUIRE_CUDNN_FUNCTIONS(QUIRE_LOAD)
#undef QUIRE_LOAD
    check_cudnn_version(table.cudnnGetVersion());
    return table;
  }();
  return functions;
}

std::string cudnn_reason() {
  std::array<char, 4096> buffer{};
  cudnn().cudnnGetLastErrorString(buffer.data(), buffer.size());
  const std::string text = buffer.data(), mark = "Reason: ";
  const size_t begin = text.find(mark);  // the first is the innermost
  if (begin == std::string::npos) return text.substr(0, text.find('\n'));
  return text.substr(begin + mark.size(), text.find('\n', begin) - begin - mark.size());
}

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const std::string reason = cudnn_reason();
  fail<DeviceError>("cudnn", "{}: {}{}{}", call, cudnn().cudnnGetErrorString(status), reason.empty() ? "" : ": ", reason);
}

}  // namespace quire
