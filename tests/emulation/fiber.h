// A stack of its own for every emulated thread, and the switch between them.
#pragma once
#include <cstddef>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulation {

struct Fiber {
  char* stack = nullptr;
  size_t stack_bytes = 0;
  void* stack_pointer = nullptr;
#ifndef __x86_64__
  ucontext_t context;
#endif
  // Of the sanitizers; always there, so that instrumented and plain files agree on the layout.
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t bottom_bytes = 0;
  void* sanitizer_fiber = nullptr;
};

/// Makes `fiber` start in `entry` when it is next switched to; takes a stack the first time.
void prepare(Fiber& fiber, void (*entry)());
/// Makes `fiber` stand for the calling thread's own stack.
void adopt_thread(Fiber& fiber);
/// Goes on in `to`; returns when something switches back to `from`. `from` never runs again where it is `dying`.
void switch_fiber(Fiber& from, Fiber& to, bool dying = false);
/// After an error, when what runs on the stack is given up: the sanitizer's picture of it starts anew.
void forget(Fiber& fiber);
/// Runs `code(argument)` as the given fiber would, for sanitizers only: edges that start and end a block.
void as_fiber(Fiber& self, Fiber& other, void (*code)(void*), void* argument);
void free_stack(Fiber& fiber);

}  // namespace emulation
