#include "runtime/cuda/nccl_library.h"

#include "runtime/cuda/shared_library.h"
#include "runtime/error.h"

namespace quire {

namespace {

constexpr int oldest_nccl = NCCL_VERSION(2, 18, 1);  ///< the number of thread blocks is given for each communicator

}  // namespace

std::string nccl_version_text(int version) {
  const int thousands = version >= 10000 ? 10000 : 1000;  // 2.8.4 was 2804, 2.9.6 is 20906
  return fmt::format("{}.{}.{}", version / thousands, version % thousands / 100, version % 100);
}

void check_nccl_version(int found) {
  if (found < oldest_nccl)
    fail<UnsupportedError>("cuda", "found: NCCL {}; needed: {} or newer, for several ranks on devices; allowed: a newer one in LD_LIBRARY_PATH, one rank, or run.device = \"cpu\"", nccl_version_text(found),
                           nccl_version_text(oldest_nccl));
}

const Nccl& nccl() {
  static const Nccl functions = [] {
    // Of the headers' major version: types are those that this was compiled with.
    static const SharedLibrary library({fmt::format("libnccl.so.{}", NCCL_MAJOR)}, "several ranks on devices", "one rank, or run.device = \"cpu\"");
    Nccl table;
#define QUIRE_LOAD(name) table.name = library.function<decltype(::name)>(#name);
    QUIRE_NCCL_FUNCTIONS(QUIRE_LOAD)
#undef QUIRE_LOAD
    int version = 0;
    if (table.ncclGetVersion(&version) == ncclSuccess) check_nccl_version(version);
    else fail<UnsupportedError>("cuda", "ncclGetVersion does not say which NCCL this is; needed: {} or newer", nccl_version_text(oldest_nccl));
    return table;
  }();
  return functions;
}

void check_nccl(ncclResult_t status, const char* call) {
  if (status == ncclSuccess) return;
  const char* const more = nccl().ncclGetLastError(nullptr);
  fail<CommunicationError>("nccl", "{}: {}{}{}", call, nccl().ncclGetErrorString(status), more != nullptr && *more != '\0' ? ": " : "", more != nullptr ? more : "");
}

}  // namespace quire
