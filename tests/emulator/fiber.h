#pragma once
#include <cstddef>

namespace shoal::emulator {

/// A function with a stack of its own that can stop in its middle and go on later. Only the thread
/// that made a fiber may resume it. AddressSanitizer is told where its stack lies, and
/// ThreadSanitizer sees it as a thread of its own that a switch does not synchronise: if two fibers
/// use the same memory, only barrier_release and barrier_acquire order them.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs body(argument) until it suspends itself or ends. Precondition: the fiber has not been
  /// started, or its last body has ended.
  void start(void (*body)(void*), void* argument);
  /// Goes on where the body suspended itself.
  void resume();
  /// Called by the body: goes back to whoever resumed the fiber.
  void suspend();
  bool ended() const { return ended_; }

 private:
  static void run(void* fiber);
  void switch_to_it();
  void finish_switch_to_it();

  struct Context;     // of the machine, in fiber.cc
  Context* context_;  ///< where the fiber's own stack is, and where it goes on
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool ended_ = true;
};

/// Everything that this fiber has done happens before whatever follows a barrier_acquire of the
/// same address in another fiber or thread.
void barrier_release(void* address);
void barrier_acquire(void* address);

}  // namespace shoal::emulator
