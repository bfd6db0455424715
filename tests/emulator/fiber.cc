#include "tests/emulator/fiber.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SHOAL_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SHOAL_ASAN 1
#endif
#endif
#ifdef SHOAL_ASAN
#include <sanitizer/asan_interface.h>
#endif
// These files are compiled without ThreadSanitizer, so the compiler does not say whether it is
// there.
#ifdef SHOAL_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}
#endif

namespace shoal::emulator {
namespace {

constexpr size_t kStackBytes = 68 * 1024;

/// Each stack begins at another cache line of its page, because otherwise the lanes of a block
/// would all use the same sets of the cache.
size_t next_skew() {
  static std::atomic<size_t> made{0};
  return made.fetch_add(1, std::memory_order_relaxed) % 61 * 64;
}

}  // namespace

struct Fiber::Context {
  unsigned char* memory = nullptr;
  const size_t skew = next_skew();
#if defined(__x86_64__)
  void* stack_pointer = nullptr;  ///< of the side that does not run
#else
  ucontext_t fiber, resumer;
#endif
#ifdef SHOAL_ASAN
  void* fake_stack = nullptr;  ///< of the resumer
  const void* resumer_bottom = nullptr;
  size_t resumer_bytes = 0;
#endif
#ifdef SHOAL_TSAN
  void* tsan_fiber = nullptr;
  void* tsan_resumer = nullptr;
#endif
};

#if defined(__x86_64__)
// Saves the registers that a function must preserve on the old stack, and takes them from the new
// one. The address of the old stack pointer's place is exchanged with its value.
asm(R"(
.text
.hidden shoal_emulator_switch
.globl shoal_emulator_switch
.type shoal_emulator_switch, @function
shoal_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq (%rdi), %rax
  movq %rsp, (%rdi)
  movq %rax, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.hidden shoal_emulator_enter
.globl shoal_emulator_enter
.type shoal_emulator_enter, @function
shoal_emulator_enter:
  movq %r12, %rdi
  call *%r13
  ud2
)");
extern "C" void shoal_emulator_switch(void** stack_pointer);
extern "C" void shoal_emulator_enter();
#endif

Fiber::Fiber() : context_(new Context) {
  void* memory = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  context_->memory = static_cast<unsigned char*>(memory);
#ifdef SHOAL_TSAN
  context_->tsan_fiber = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#ifdef SHOAL_ASAN
  __asan_unpoison_memory_region(context_->memory, kStackBytes);
#endif
#ifdef SHOAL_TSAN
  __tsan_destroy_fiber(context_->tsan_fiber);
#endif
  ::munmap(context_->memory, kStackBytes);
  delete context_;
}

void Fiber::run(void* self) {
  auto* fiber = static_cast<Fiber*>(self);
  fiber->finish_switch_to_it();
  fiber->body_(fiber->argument_);
  fiber->ended_ = true;
  fiber->suspend();
  std::abort();  // nobody resumes an ended fiber
}

void Fiber::start(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
  ended_ = false;
#ifdef SHOAL_ASAN
  // The last body has left its frames' red zones behind.
  __asan_unpoison_memory_region(context_->memory, kStackBytes);
#endif
#if defined(__x86_64__)
  auto* top = reinterpret_cast<void**>(context_->memory + kStackBytes - context_->skew);
  // What shoal_emulator_switch pops: r15, r14, r13, r12, rbx, rbp, and where it returns to. The
  // stack is aligned for the call in shoal_emulator_enter.
  void** frame = top - 9;
  frame[0] = frame[1] = frame[4] = frame[5] = nullptr;
  frame[2] = reinterpret_cast<void*>(&Fiber::run);
  frame[3] = this;
  frame[6] = reinterpret_cast<void*>(&shoal_emulator_enter);
  frame[7] = nullptr;
  context_->stack_pointer = frame;
#else
  ::getcontext(&context_->fiber);
  context_->fiber.uc_stack.ss_sp = context_->memory;
  context_->fiber.uc_stack.ss_size = kStackBytes;
  context_->fiber.uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(this);
  ::makecontext(&context_->fiber, reinterpret_cast<void (*)()>(+[](unsigned high, unsigned low) {
    run(reinterpret_cast<void*>((uintptr_t{high} << 32) | low));
  }),
                2, static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
#endif
  switch_to_it();
}

void Fiber::resume() {
  switch_to_it();
}

void Fiber::switch_to_it() {
#ifdef SHOAL_TSAN
  context_->tsan_resumer = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(context_->tsan_fiber, 1);  // 1: the switch does not synchronise
#endif
#ifdef SHOAL_ASAN
  __sanitizer_start_switch_fiber(&context_->fake_stack, context_->memory, kStackBytes);
#endif
#if defined(__x86_64__)
  shoal_emulator_switch(&context_->stack_pointer);
#else
  ::swapcontext(&context_->resumer, &context_->fiber);
#endif
#ifdef SHOAL_ASAN
  __sanitizer_finish_switch_fiber(context_->fake_stack, nullptr, nullptr);
#endif
}

void Fiber::finish_switch_to_it() {
#ifdef SHOAL_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &context_->resumer_bottom, &context_->resumer_bytes);
#endif
}

void Fiber::suspend() {
#ifdef SHOAL_TSAN
  __tsan_switch_to_fiber(context_->tsan_resumer, 1);
#endif
#ifdef SHOAL_ASAN
  void* mine = nullptr;
  __sanitizer_start_switch_fiber(ended_ ? nullptr : &mine, context_->resumer_bottom,
                                 context_->resumer_bytes);
#endif
#if defined(__x86_64__)
  shoal_emulator_switch(&context_->stack_pointer);
#else
  ::swapcontext(&context_->fiber, &context_->resumer);
#endif
#ifdef SHOAL_ASAN
  __sanitizer_finish_switch_fiber(mine, &context_->resumer_bottom, &context_->resumer_bytes);
#endif
}

void barrier_release([[maybe_unused]] void* address) {
#ifdef SHOAL_TSAN
  __tsan_release(address);
#endif
}
void barrier_acquire([[maybe_unused]] void* address) {
#ifdef SHOAL_TSAN
  __tsan_acquire(address);
#endif
}

}  // namespace shoal::emulator
