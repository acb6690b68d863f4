// Libraries that the runtime loads when it first needs them, as the emulated loader knows them.
#pragma once
#include <string>

namespace emulation {

struct Library {
  std::string prefix;                    ///< with which its file's name begins: `libcublasLt.so`
  bool (*present)();
  void* (*function)(const char* name);   ///< null for one that it does not have
};
Library cublaslt_library();
Library cudnn_library();
Library nccl_library();

}  // namespace emulation
