// What sanitizers are told: which memory is out of bounds, which accesses are the emulator's own, what orders what.
#pragma once
#include <cstddef>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EMULATION_THREAD_SANITIZER 1
#endif
#if __has_feature(address_sanitizer)
#define EMULATION_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) && !defined(EMULATION_THREAD_SANITIZER)
#define EMULATION_THREAD_SANITIZER 1  // the machine itself is compiled without instrumentation and gets this name from the build
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(EMULATION_ADDRESS_SANITIZER)
#define EMULATION_ADDRESS_SANITIZER 1
#endif

#ifdef EMULATION_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
void AnnotateIgnoreSyncBegin(const char*, int);
void AnnotateIgnoreSyncEnd(const char*, int);
void __tsan_write_range(void*, unsigned long);
}
#endif
#ifdef EMULATION_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulation {

/// While one lives, this fiber's accesses are the emulator's own bookkeeping: ThreadSanitizer looks at none of them, and takes no order from them.
class Quiet {
 public:
#ifdef EMULATION_THREAD_SANITIZER
  Quiet() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
  }
  ~Quiet() {
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Quiet() {}
  ~Quiet() {}
#endif
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};

/// What was done before `release` of an address stands before what follows `acquire` of it. Both without effect inside a `Quiet`.
inline void release([[maybe_unused]] void* address) {
#ifdef EMULATION_THREAD_SANITIZER
  __tsan_release(address);
#endif
}
inline void acquire([[maybe_unused]] void* address) {
#ifdef EMULATION_THREAD_SANITIZER
  __tsan_acquire(address);
#endif
}

/// A library's function has written to the caller's memory: ThreadSanitizer looks at this, too. Without effect inside a `Quiet`.
inline void wrote([[maybe_unused]] void* address, [[maybe_unused]] size_t bytes) {
#ifdef EMULATION_THREAD_SANITIZER
  __tsan_write_range(address, bytes);
#endif
}

/// AddressSanitizer reports every access to these bytes until they are opened again.
inline void close_memory([[maybe_unused]] const void* address, [[maybe_unused]] size_t bytes) {
#ifdef EMULATION_ADDRESS_SANITIZER
  ASAN_POISON_MEMORY_REGION(address, bytes);
#endif
}
inline void open_memory([[maybe_unused]] const void* address, [[maybe_unused]] size_t bytes) {
#ifdef EMULATION_ADDRESS_SANITIZER
  ASAN_UNPOISON_MEMORY_REGION(address, bytes);
#endif
}

#ifdef EMULATION_ADDRESS_SANITIZER
constexpr bool closes_memory = true;
#else
constexpr bool closes_memory = false;
#endif

}  // namespace emulation
