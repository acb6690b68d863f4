/* What the driver says of this machine's cards, asked for without CUDA's headers: tools/gpu_report compiles this first.
   probe [FOLDER]...: lines `library PATH`, `driver VERSION` (as 1000 * major + 10 * minor), and per card `card INDEX MAJOR MINOR NAME`; or one line `problem TEXT`. Folders are looked
   in where the loader finds no driver. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char** folders) {
  char path[4096] = "libcuda.so.1";
  void* library = dlopen(path, RTLD_NOW);
  for (int i = 1; library == NULL && i < count; ++i) {
    snprintf(path, sizeof path, "%s/libcuda.so.1", folders[i]);
    library = dlopen(path, RTLD_NOW);
  }
  if (library == NULL) return puts("problem no CUDA driver (libcuda.so.1)"), 1;
  int (*const init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
  int (*const driver_version)(int*) = (int (*)(int*))dlsym(library, "cuDriverGetVersion");
  int (*const device_count)(int*) = (int (*)(int*))dlsym(library, "cuDeviceGetCount");
  int (*const device_get)(int*, int) = (int (*)(int*, int))dlsym(library, "cuDeviceGet");
  int (*const device_name)(char*, int, int) = (int (*)(char*, int, int))dlsym(library, "cuDeviceGetName");
  int (*const attribute)(int*, int, int) = (int (*)(int*, int, int))dlsym(library, "cuDeviceGetAttribute");
  if (!init || !driver_version || !device_count || !device_get || !device_name || !attribute) return puts("problem a libcuda.so.1 that is no CUDA driver"), 1;
  printf("library %s\n", path);
  int version = 0, devices = 0;
  if (driver_version(&version) == 0) printf("driver %d\n", version);
  const int status = init(0);
  if (status == 100) return puts("problem no CUDA device (CUDA_VISIBLE_DEVICES hides those that it does not name)"), 1;
  if (status != 0) return printf("problem a CUDA driver that does not start (cuInit: error %d)\n", status), 1;
  if (device_count(&devices) != 0 || devices == 0) return puts("problem no CUDA device (CUDA_VISIBLE_DEVICES hides those that it does not name)"), 1;
  for (int i = 0; i < devices; ++i) {
    int device = 0, major = 0, minor = 0;
    char name[256] = "";
    enum { capability_major = 75, capability_minor = 76 };
    if (device_get(&device, i) != 0 || device_name(name, sizeof name, device) != 0 || attribute(&major, capability_major, device) != 0 ||
        attribute(&minor, capability_minor, device) != 0)
      return printf("problem a CUDA device %d that answers nothing\n", i), 1;
    printf("card %d %d %d %s\n", i, major, minor, name);
  }
  return 0;
}
