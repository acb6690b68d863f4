// Functions of NCCL, from a library loaded when first used.
#pragma once
#include <nccl.h>

#include <string>

namespace quire {

#define QUIRE_NCCL_FUNCTIONS(F)                                                                                                                          \
  F(ncclGetVersion) F(ncclGetUniqueId) F(ncclCommInitRankConfig) F(ncclCommDestroy) F(ncclCommAbort) F(ncclCommGetAsyncError) F(ncclGetErrorString)      \
  F(ncclGetLastError) F(ncclGroupStart) F(ncclGroupEnd) F(ncclSend) F(ncclRecv)

/// The functions of NCCL under their own names.
struct Nccl {
#define QUIRE_DECLARE(name) decltype(&::name) name;
  QUIRE_NCCL_FUNCTIONS(QUIRE_DECLARE)
#undef QUIRE_DECLARE
};
/// Loads the library at the first call. Throws UnsupportedError where it is missing or too old.
const Nccl& nccl();
/// Throws UnsupportedError (found, needed) for a version that is too old. `found` as ncclGetVersion says.
void check_nccl_version(int found);
/// Throws CommunicationError with the call's name unless it went well.
void check_nccl(ncclResult_t status, const char* call);
/// What is called while one lives belongs to one group of NCCL's, which `end` submits. An error on the way leaves no group open.
class NcclGroup {
 public:
  NcclGroup() { check_nccl(nccl().ncclGroupStart(), "ncclGroupStart"); }
  ~NcclGroup() {
    if (open_) nccl().ncclGroupEnd();
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  void end() {
    open_ = false;
    check_nccl(nccl().ncclGroupEnd(), "ncclGroupEnd");
  }

 private:
  bool open_ = true;
};
/// `2.28.9`
std::string nccl_version_text(int version);

}  // namespace quire
