// Functions of cuDNN, from a library loaded when first used.
#pragma once
#include <cudnn.h>

#include <string>

namespace quire {

#define QUIRE_CUDNN_FUNCTIONS(F)                                                                                                                         \
  F(cudnnGetVersion) F(cudnnGetErrorString) F(cudnnGetLastErrorString) F(cudnnCreate) F(cudnnDestroy) F(cudnnSetStream) F(cudnnBackendCreateDescriptor)  \
  F(cudnnBackendDestroyDescriptor) F(cudnnBackendSetAttribute) F(cudnnBackendGetAttribute) F(cudnnBackendFinalize) F(cudnnBackendExecute)

/// The functions of cuDNN under their own names.
struct Cudnn {
#define QUIRE_DECLARE(name) decltype(&::name) name;
  QUIRE_CUDNN_FUNCTIONS(QUIRE_DECLARE)
#undef QUIRE_DECLARE
};
/// Loads the library at the first call. Throws UnsupportedError where it is missing or too old.
const Cudnn& cudnn();
/// Throws UnsupportedError (found, needed) for a version that is too old. `found` as cudnnGetVersion says.
void check_cudnn_version(size_t found);
/// What the library gives as the reason of its last refusal on this thread; "" for nothing.
std::string cudnn_reason();
/// Throws DeviceError with the call's name and the library's reason unless it went well.
void check_cudnn(cudnnStatus_t status, const char* call);

}  // namespace quire
