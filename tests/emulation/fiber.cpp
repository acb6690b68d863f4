#include "fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "sanitizers.h"

namespace emulation {

namespace {

constexpr size_t page = 4096;
constexpr size_t stack_bytes = size_t{128} << 10;  ///< touched page by page: most threads use two

}  // namespace

#ifdef __x86_64__
// Callee-saved registers go onto the old stack, the stack pointer into *save; the new stack gives its own back.
extern "C" void emulation_switch(void** save, void* load);
__asm__(R"(
.text
.globl emulation_switch
.hidden emulation_switch
.type emulation_switch,@function
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulation_switch,.-emulation_switch
)");
#endif

void prepare(Fiber& fiber, void (*entry)()) {
  if (fiber.stack == nullptr) {
    void* const memory = mmap(nullptr, stack_bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory, page, PROT_NONE);  // an overflow ends the program there
    fiber.stack = static_cast<char*>(memory) + page;
    fiber.stack_bytes = stack_bytes;
  }
  open_memory(fiber.stack, fiber.stack_bytes);  // frames that a finished thread left closed
  fiber.bottom = fiber.stack;
  fiber.bottom_bytes = fiber.stack_bytes;
  fiber.fake_stack = nullptr;
#ifdef EMULATION_THREAD_SANITIZER
  if (fiber.sanitizer_fiber == nullptr) fiber.sanitizer_fiber = __tsan_create_fiber(0);
#endif
#ifdef __x86_64__
  void** top = reinterpret_cast<void**>(fiber.stack + fiber.stack_bytes);
  *--top = nullptr;  // so that a function is entered with the alignment that it expects
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = fiber.stack_bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
#endif
}

void adopt_thread([[maybe_unused]] Fiber& fiber) {
#ifdef EMULATION_THREAD_SANITIZER
  fiber.sanitizer_fiber = __tsan_get_current_fiber();
#endif
#ifdef EMULATION_ADDRESS_SANITIZER
  pthread_attr_t attributes;
  void* lowest = nullptr;
  size_t bytes = 0;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &lowest, &bytes);
  pthread_attr_destroy(&attributes);
  fiber.bottom = lowest;
  fiber.bottom_bytes = bytes;
#endif
}

void switch_fiber(Fiber& from, Fiber& to, [[maybe_unused]] bool dying) {
#ifdef EMULATION_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(dying ? nullptr : &from.fake_stack, to.bottom, to.bottom_bytes);
#endif
#ifdef EMULATION_THREAD_SANITIZER
  __tsan_switch_to_fiber(to.sanitizer_fiber, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef __x86_64__
  emulation_switch(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.context, &to.context);
#endif
#ifdef EMULATION_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void forget([[maybe_unused]] Fiber& fiber) {
#ifdef EMULATION_THREAD_SANITIZER
  if (fiber.sanitizer_fiber != nullptr) __tsan_destroy_fiber(fiber.sanitizer_fiber);
  fiber.sanitizer_fiber = nullptr;
#endif
}

void as_fiber([[maybe_unused]] Fiber& self, [[maybe_unused]] Fiber& other, void (*code)(void*), void* argument) {
#ifdef EMULATION_THREAD_SANITIZER
  __tsan_switch_to_fiber(other.sanitizer_fiber, __tsan_switch_to_fiber_no_sync);
#endif
  code(argument);
#ifdef EMULATION_THREAD_SANITIZER
  __tsan_switch_to_fiber(self.sanitizer_fiber, __tsan_switch_to_fiber_no_sync);
#endif
}

void free_stack(Fiber& fiber) {
  forget(fiber);
  if (fiber.stack == nullptr) return;
  open_memory(fiber.stack, fiber.stack_bytes);
  munmap(fiber.stack - page, fiber.stack_bytes + page);
  fiber.stack = nullptr;
}

}  // namespace emulation
