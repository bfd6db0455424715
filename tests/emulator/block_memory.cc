#include "tests/emulator/block_memory.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <utility>

#include "tests/emulator/lanes.h"

namespace shoal::emulator {

thread_local constinit const unsigned char* running_guard = nullptr;

namespace {

struct Raised {
  std::mutex mutex;
  std::map<std::pair<int, const void*>, size_t> bytes;
};
Raised& raised() {
  static auto& one = *new Raised;  // threads of streams may outlive static objects
  return one;
}

/// Whole pages, however large they are on the host.
constexpr size_t kMappedBytes = 128 * 1024, kGuardBytes = 64 * 1024;
static_assert(kMostBlockMemory <= kMappedBytes);
constexpr size_t kAlignment = 128;

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

thread_local constinit uintptr_t touched = 0;  // the address that a lane must not touch
struct sigaction before_us;

[[noreturn]] void report_touched() {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory_of_block());
  report(Fault::kOutsideBlock, {},
         "lane " + std::to_string(current_index.thread.x) + " touches byte " +
             std::to_string(touched - begin));
}

/// Lets the lane go on in report_touched() after the signal, as if it had called that where it was.
/// False: nobody has said here how to do that on this processor.
bool divert([[maybe_unused]] void* context) {
#if defined(__x86_64__)
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  constexpr greg_t kRedZone = 128;
  registers[REG_RSP] = ((registers[REG_RSP] - kRedZone) & ~greg_t{15}) - 8;
  registers[REG_RIP] = reinterpret_cast<greg_t>(&report_touched);
  return true;
#elif defined(__aarch64__)
  auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
  machine.pc = reinterpret_cast<uintptr_t>(&report_touched);
  return true;
#else
  return false;
#endif
}

void on_fault(int number, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  const auto guard = reinterpret_cast<uintptr_t>(running_guard);
  const bool sent = info->si_code <= 0;
  if (!sent && guard != 0 && at >= guard && at - guard < kGuardBytes) {
    touched = at;
    if (divert(context)) return;
  }
  // The signal is not about a guarded page, so the handler that was there before must get it. An
  // instruction that failed fails again after the return. A signal that was sent is raised again.
  ::sigaction(number, &before_us, nullptr);
  if (sent) ::raise(number);
}

void install_on_fault() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigaction(SIGSEGV, &action, &before_us);
  });
}

}  // namespace

BlockMemory::BlockMemory() {
  install_on_fault();
  void* mapped = ::mmap(nullptr, kMappedBytes + kGuardBytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED || ::mprotect(mapped, kMappedBytes, PROT_READ | PROT_WRITE) != 0)
    throw std::bad_alloc();
  mapped_ = static_cast<unsigned char*>(mapped);
  guard_ = mapped_ + kMappedBytes;
}

BlockMemory::~BlockMemory() {
  ::munmap(mapped_, kMappedBytes + kGuardBytes);
}

unsigned char* BlockMemory::begin_block(size_t bytes) {
  unsigned char* const begin = guard_ - aligned(bytes);
  std::memset(begin, 0xff, aligned(bytes));
  return begin;
}

void check_block_memory(const void* address, size_t bytes, const Place& place) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto begin = reinterpret_cast<uintptr_t>(memory_of_block());
  const size_t size = bytes_of_block();
  if (at >= begin && bytes <= size && at - begin <= size - bytes) return;
  const bool is_before = at < begin;
  report(Fault::kOutsideBlock, place,
         std::to_string(bytes) + " bytes that begin " +
             std::to_string(is_before ? begin - at : at - begin) + " bytes " +
             (is_before ? "before" : "after") + " its beginning, of " + std::to_string(size));
}

bool raise_block_memory(int device, const void* kernel, size_t bytes) {
  if (bytes > kMostBlockMemory) return false;
  const std::lock_guard<std::mutex> lock(raised().mutex);
  size_t& most = raised().bytes[{device, kernel}];
  most = std::max(most, bytes);
  return true;
}

bool may_have_block_memory(int device, const void* kernel, size_t bytes) {
  if (bytes <= kPlainBlockMemory) return true;
  const std::lock_guard<std::mutex> lock(raised().mutex);
  const auto found = raised().bytes.find({device, kernel});
  return found != raised().bytes.end() && bytes <= found->second;
}

}  // namespace shoal::emulator
