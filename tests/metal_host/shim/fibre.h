// A stack that code runs on until it hands back.
//
// swapcontext asks the operating system for the signal mask every time, and the address sanitizer clears its notes of
// the whole stack: together that is most of the time of a kernel with a barrier. So the usual processors have a switch
// of their own here; the thread sanitizer, which follows its fibres itself, and other processors go by ucontext.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#if GPU_TSAN || !(defined(__x86_64__) || defined(__aarch64__))
#define GPU_UCONTEXT 1
#include <ucontext.h>
#endif

#if !GPU_UCONTEXT
// Stores the registers that a call keeps and where they lie, and goes on where those of `to` were stored.
extern "C" void gpu_switch_stack(void** from, void* to);
#if defined(__x86_64__)
enum { kSavedWords = 6, kEntryWord = 6, kFrameWords = 8 };  // a call expects the stack 8 off a multiple of 16
asm(R"(
  .text
  .type gpu_switch_stack, @function
gpu_switch_stack:
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
)");
#else
enum { kSavedWords = 20, kEntryWord = 11, kFrameWords = 20 };  // x30, where to return to, is the twelfth
asm(R"(
  .text
  .type gpu_switch_stack, %function
gpu_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#endif
#endif

class Stack {
 public:
  // Whether there was memory for it. A fibre that outgrows it stops at its last page.
  bool allocate() {
    memory_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory_ != MAP_FAILED && mprotect(memory_, 4096, PROT_NONE) == 0;
  }

  // Has `code`, which does not return, run from its beginning at the next resume.
  void prepare(void (*code)()) {
#if GPU_UCONTEXT
    getcontext(&inside_);
    inside_.uc_stack.ss_sp = memory_;
    inside_.uc_stack.ss_size = kBytes;
    inside_.uc_link = nullptr;
    makecontext(&inside_, code, 0);
#else
    uintptr_t* frame = reinterpret_cast<uintptr_t*>(static_cast<char*>(memory_) + kBytes) - kFrameWords;
    for (int i = 0; i < kFrameWords; ++i) frame[i] = 0;
    frame[kEntryWord] = reinterpret_cast<uintptr_t>(code);
    inside_ = frame;
#endif
  }

  void resume() {
#if GPU_UCONTEXT
    swapcontext(&outside_, &inside_);
#else
    gpu_switch_stack(&outside_, inside_);
#endif
  }

  // From inside, to where resume was called.
  void hand_back() {
#if GPU_UCONTEXT
    swapcontext(&inside_, &outside_);
#else
    gpu_switch_stack(&inside_, outside_);
#endif
  }

 private:
  enum { kBytes = 64 * 1024 };
#if GPU_UCONTEXT
  ucontext_t inside_, outside_;
#else
  void *inside_, *outside_;
#endif
  void* memory_;
};
