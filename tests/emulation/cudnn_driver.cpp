// A libcuda.so.1 that lets cuDNN plan for a device that is not there: it says that there is no driver, and takes kernels without looking at them. Nothing can be
// run with it. Without cuda.h: what is missing has no parameters here.
extern "C" {

using Status = int;
constexpr Status success = 0, stub_library = 34, no_device = 100;
constexpr int registers = 4, most_threads = 0;  // attributes of a kernel

Status cuInit(unsigned) { return stub_library; }
Status cuDriverGetVersion(int* version) {
  *version = 13000;
  return success;
}

Status cuLibraryLoadData(void** library, const void*, void*, void**, unsigned, void*, void**, unsigned) {
  *library = reinterpret_cast<void*>(0x1000);
  return success;
}
Status cuLibraryUnload(void*) { return success; }
Status cuLibraryGetKernel(void** kernel, void*, const char*) {
  *kernel = reinterpret_cast<void*>(0x2000);
  return success;
}
Status cuKernelGetAttribute(int* value, int attribute, void*, int) {
  *value = attribute == registers ? 168 : attribute == most_threads ? 384 : 0;
  return success;
}
Status cuKernelSetAttribute(int, int, void*, int) { return success; }

Status cuModuleLoadData(void** loaded, const void*) {
  *loaded = reinterpret_cast<void*>(0x3000);
  return success;
}
Status cuModuleLoadDataEx(void** loaded, const void* image, unsigned, void*, void**) { return cuModuleLoadData(loaded, image); }
Status cuModuleUnload(void*) { return success; }
Status cuModuleGetFunction(void** function, void*, const char*) {
  *function = reinterpret_cast<void*>(0x4000);
  return success;
}
Status cuFuncGetAttribute(int* value, int, void*) {
  *value = 0;
  return success;
}
Status cuFuncSetAttribute(void*, int, int) { return success; }
Status cuGetErrorString(Status, const char** text) {
  *text = "no driver: planning alone";
  return success;
}
Status cuGetErrorName(Status error, const char** text) { return cuGetErrorString(error, text); }

#define MISSING(name) \
  Status name() { return no_device; }
MISSING(cuCtxGetCurrent) MISSING(cuCtxGetDevice) MISSING(cuCtxGetLimit) MISSING(cuCtxPopCurrent) MISSING(cuCtxPopCurrent_v2) MISSING(cuCtxPushCurrent) MISSING(cuCtxPushCurrent_v2)
MISSING(cuDeviceGet) MISSING(cuDeviceGetAttribute) MISSING(cuDeviceGetCount) MISSING(cuDevicePrimaryCtxRelease) MISSING(cuDevicePrimaryCtxReset) MISSING(cuDevicePrimaryCtxRetain)
MISSING(cuLaunchCooperativeKernel) MISSING(cuLaunchKernel) MISSING(cuLaunchKernelEx) MISSING(cuLibraryLoadFromFile) MISSING(cuLinkAddData) MISSING(cuLinkAddData_v2)
MISSING(cuLinkAddFile_v2) MISSING(cuLinkComplete) MISSING(cuLinkCreate) MISSING(cuLinkCreate_v2) MISSING(cuLinkDestroy) MISSING(cuMemcpyDtoH_v2) MISSING(cuModuleGetGlobal_v2)
MISSING(cuModuleLoadFatBinary) MISSING(cuOccupancyMaxActiveBlocksPerMultiprocessor) MISSING(cuOccupancyMaxPotentialClusterSize) MISSING(cuStreamGetCtx) MISSING(cuStreamSynchronize)
MISSING(cuTensorMapEncodeTiled)
#undef MISSING
}
