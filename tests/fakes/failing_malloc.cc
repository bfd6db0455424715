// A fake: an allocator that is refused memory at a call that the test has drawn. Preloaded, it
// takes the place of malloc and its relatives and hands every other call to glibc's own.
//
//   SHOAL_FAKE_MALLOC=front:4500      every call of the front from the 4500th on fails
//   SHOAL_FAKE_MALLOC=rank:4500:once  one call of each rank fails
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {

std::atomic<long> g_calls = 0;
std::atomic<long> g_first = -1;  // the number of the call that fails; -1: none does
bool g_once = false;

/// Whether this process is a rank: "shoal worker FD rank-N".
bool is_rank() {
  char words[256] = {};
  const int fd = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  const ssize_t got = fd < 0 ? 0 : ::read(fd, words, sizeof words - 1);
  ::close(fd);
  const size_t first = std::strlen(words) + 1;
  return got > 0 && first < sizeof words && std::strcmp(words + first, "worker") == 0;
}

__attribute__((constructor)) void configure() {
  const char* text = std::getenv("SHOAL_FAKE_MALLOC");
  if (text == nullptr) return;
  const bool rank = std::strncmp(text, "rank:", 5) == 0;
  if (rank != is_rank()) return;
  const char* number = std::strchr(text, ':');
  if (number == nullptr) return;
  g_once = std::strstr(number, ":once") != nullptr;
  g_calls = 0;
  g_first = std::strtol(number + 1, nullptr, 10);
}

bool refused() {
  if (g_first < 0) return false;
  const long call = ++g_calls;
  if (g_once ? call != g_first : call < g_first) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void* malloc(size_t bytes) {
  return refused() ? nullptr : __libc_malloc(bytes);
}

__attribute__((visibility("default"))) void* calloc(size_t count, size_t bytes) {
  return refused() ? nullptr : __libc_calloc(count, bytes);
}

__attribute__((visibility("default"))) void* realloc(void* old, size_t bytes) {
  return refused() ? nullptr : __libc_realloc(old, bytes);
}

__attribute__((visibility("default"))) void* memalign(size_t alignment, size_t bytes) {
  return refused() ? nullptr : __libc_memalign(alignment, bytes);
}

__attribute__((visibility("default"))) void* aligned_alloc(size_t alignment, size_t bytes) {
  return refused() ? nullptr : __libc_memalign(alignment, bytes);
}

__attribute__((visibility("default"))) int posix_memalign(void** out, size_t alignment,
                                                          size_t bytes) {
  void* const memory = refused() ? nullptr : __libc_memalign(alignment, bytes);
  if (memory == nullptr) return ENOMEM;
  *out = memory;
  return 0;
}
}
