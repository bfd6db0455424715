#pragma once
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/thread_pool.h"
#include "runtime/rank/rank_work.h"
#include "runtime/rank/test_fault.h"

namespace shoal {

/// Waits for ever for a thread of this rank's team that sleeps.
inline void wait_for_own_thread() {
  ThreadPool(2).run([](int thread) {
    while (thread == 1) ::pause();
  });
}

/// What this process reads from a descriptor that it has inherited.
inline std::string first_bytes(int fd) {
  char bytes[8] = {};
  const ssize_t got = ::pread(fd, bytes, sizeof bytes, 0);
  return got < 0 ? "cannot be read" : std::string(bytes, static_cast<size_t>(got));
}

/// Answers a step with the plan and the number of ranks. The plan may ask for a fault instead.
class EchoWork final : public RankWork {
 public:
  Result<std::string> begin(RankContext& context) override {
    context_ = &context;
    SHOAL_RETURN_IF_ERROR(context.loaded({1, 1}));
    if (context.start().work == "broken") return Status::error(Code::kNotFound, "no such model");
    if (context.start().work == "refused")
      return Status::error(Code::kAborted, "the bits would be others").blamed_on(Fault::kPolicy);
    return cat("rank ", context.start().rank);
  }

  Result<std::string> step(uint64_t, std::string_view plan) override {
    const int rank = context_->start().rank;
    if (plan == "die" && rank == 1) crash();
    if (plan == "dump" && rank == 1) dump_for_long();
    if (plan == "be killed" && rank == 1) ::raise(SIGKILL);
    if (plan == "stop" && rank == 1) ::raise(SIGSTOP);
    if (plan == "spin" && rank == 1) use_processor(1e9);
    if (plan == "compute" && rank == 1) use_processor(0.8);
    if (plan == "stuck team" && rank == 1) wait_for_own_thread();
    if (plan == "own" && rank == 1) return Status::error(Code::kInternal, "cannot compute this");
    SHOAL_RETURN_IF_ERROR(context_->communicator().barrier());
    if (plan.starts_with("read ")) return first_bytes(std::atoi(plan.data() + 5));
    return cat(plan, " on ", context_->start().world_size);
  }

 private:
  /// Dies at once: a sanitizer would catch the signal and look up names for seconds, which the
  /// others would have to take for a rank that hangs.
  static void crash() {
    std::signal(SIGSEGV, SIG_DFL);
    std::raise(SIGSEGV);
  }

  /// Dies with a very large address space, of which hardly anything has memory. The core file is
  /// small, but the kernel needs many seconds to write it, because it looks at all of that space.
  static void dump_for_long() {
    constexpr size_t kBytes = size_t{1} << 42;
    void* const wide = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (wide != MAP_FAILED) *static_cast<volatile char*>(wide) = 1;
    std::raise(SIGSEGV);
  }

  RankContext* context_ = nullptr;
};

}  // namespace shoal
