#include "runtime/base/last_words.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cxxabi.h>
#include <exception>
#include <fcntl.h>
#include <iterator>
#include <new>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <typeinfo>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/base/process_limit.h"
#include "runtime/base/status.h"

// Everything below runs in a signal handler or without memory: it allocates nothing, takes no lock
// and calls only what is allowed there.

namespace shoal {
namespace {

constexpr int kInternalExitCode = 70;
/// A failed assert() ends in abort() too, and builds for development have asserts.
#ifdef NDEBUG
constexpr bool kHasAsserts = false;
#else
constexpr bool kHasAsserts = true;
#endif
/// How long the line may wait for a reader. Then SIGALRM ends the process.
constexpr unsigned kMostSeconds = 2;

/// A larger stack may be why a thread is refused, because it takes that much address space.
constexpr uint64_t kLargeStackBytes = uint64_t{1} << 30;

bool g_aborts_are_shortages = false;
/// What a library has said last. Two threads may mix their texts, which then are of little use.
std::atomic<char> g_library_error[200];
/// operator new was refused memory, even if the exception has been caught since.
std::atomic<bool> g_new_was_refused = false;

/// One line on the stack. What does not fit is left out.
class Line {
 public:
  Line& operator<<(const char* text) {
    while (*text != '\0' && size_ + 1 < sizeof text_) text_[size_++] = *text++;
    return *this;
  }
  Line& operator<<(uint64_t number) {
    char digits[24];
    size_t at = sizeof digits;
    digits[--at] = '\0';
    do {
      digits[--at] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number != 0);
    return *this << digits + at;
  }
  Line& operator<<(const void* address) {
    char digits[sizeof(uintptr_t) * 2 + 1] = {};
    auto number = reinterpret_cast<uintptr_t>(address);
    for (size_t at = sizeof digits - 1; at-- > 0; number >>= 4)
      digits[at] = "0123456789abcdef"[number & 15];
    return *this << "0x" << digits;
  }
  /// Writes it. Nobody else writes: a process that ends may overtake its own log.
  void say() {
    text_[size_++] = '\n';
    ::signal(SIGALRM, SIG_DFL);
    ::alarm(kMostSeconds);
    pollfd room{STDERR_FILENO, POLLOUT, 0};
    // A full pipe must not delay the end for ever. The alarm does not help a process that is PID 1,
    // or that has SIGALRM blocked.
    if (::poll(&room, 1, static_cast<int>(kLastLineMs)) > 0) {
      clear_progress_line();
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text_, size_);
    }
    ::alarm(0);
  }

 private:
  char text_[900];
  size_t size_ = 0;
};

/// Begins the line with "shoal: error: rank 1: ". A bug and JSON have the code before it too. With
/// --log-format json the line is JSON, without the time.
void begin(Line* line, bool is_bug) {
  const char* const code = is_bug ? "INTERNAL" : "RESOURCE_EXHAUSTED";
  const int rank = process_rank();
  if (log_options().format == LogFormat::kJson) {
    *line << "{\"level\":\"ERROR\",\"process\":\"" << (rank == kFrontRank ? "front" : "worker");
    *line << "\",\"pid\":" << static_cast<uint64_t>(::getpid());
    if (rank != kFrontRank) *line << ",\"rank\":" << static_cast<uint64_t>(rank);
    *line << ",\"message\":\"" << code << ": ";
    return;
  }
  *line << "shoal: error: ";
  if (is_bug) *line << code << ": ";
  if (rank != kFrontRank) *line << "rank " << static_cast<uint64_t>(rank) << ": ";
}

void say(Line* line) {
  if (log_options().format == LogFormat::kJson) *line << "\"}";
  line->say();
}

[[noreturn]] void finish(Line* line, int exit_code) {
  say(line);
  ::_exit(exit_code);
}

/// Adds, for example, "; its open files are limited to 16 (ulimit -n)". Adds nothing if there is no
/// limit.
void add_limit(Line* line, __rlimit_resource_t resource, const char* unit, const char* command) {
  struct rlimit limit;
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  *line << "; " << unit << " are limited to " << limit.rlim_cur << " (" << command << ")";
}

void add_memory(Line* line) {
  *line << "memory was refused";
  add_limit(line, RLIMIT_AS, "its bytes of address space", "ulimit -v");
  add_limit(line, RLIMIT_DATA, "its bytes of data", "ulimit -d");
  struct rlimit stack;
  if (::getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur != RLIM_INFINITY &&
      stack.rlim_cur > kLargeStackBytes) {
    *line << "; the stack of each thread takes " << uint64_t{stack.rlim_cur}
          << " bytes of address space (ulimit -s)";
  }
  *line << "; give it more memory, or lower --kv-cache-memory or -tp";
}

void add_threads(Line* line) {
  *line << "a thread or process was refused";
  add_limit(line, RLIMIT_NPROC, "its user's processes and threads", "ulimit -u");
  *line << "; raise that, or the container's limit of processes (pids)";
}

void add_denied_threads(Line* line) {
  *line << "a thread or process was refused: Operation not permitted" << process_denial();
}

void add_small_stack(Line* line) {
  struct rlimit limit = {};
  ::getrlimit(RLIMIT_STACK, &limit);
  *line << "the stack is limited to " << uint64_t{limit.rlim_cur} << " bytes (ulimit -s), and "
        << kLeastStackBytes << " are needed; usual is ulimit -s 8192";
}

void add_descriptors(Line* line) {
  *line << "a file descriptor was refused";
  add_limit(line, RLIMIT_NOFILE, "its open files", "ulimit -n");
}

/// Tries what a thread would need. The child ends at once and runs none of the handlers of fork().
bool processes_are_refused() {
  const long child = ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) ::_exit(0);
  if (child < 0) return errno == EAGAIN || errno == ENOMEM;
  ::waitpid(static_cast<pid_t>(child), nullptr, 0);
  return false;
}

bool descriptors_are_refused() {
  const int copy = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return errno == EMFILE || errno == ENFILE;
  ::close(copy);
  return false;
}

/// Adds what is refused right now. False: nothing is.
bool add_what_is_refused(Line* line) {
  if (g_new_was_refused || stack_is_refused()) {
    add_memory(line);
  } else if (processes_are_refused()) {
    add_threads(line);
  } else if (clone3_is_denied()) {
    add_denied_threads(line);
  } else if (descriptors_are_refused()) {
    add_descriptors(line);
  } else {
    return false;
  }
  return true;
}

void add_library_error(Line* line) {
  if (g_library_error[0] == '\0') return;
  char text[std::size(g_library_error)] = {};
  for (size_t i = 0; i + 1 < sizeof text; ++i) text[i] = g_library_error[i];
  *line << "; it said last: " << text;
}

void on_abort(int number, siginfo_t* info, void*) {
  if (info->si_code != SI_TKILL) {  // somebody else sent it
    ::raise(number);
    return;
  }
  Line line;
  begin(&line, false);
  line << "a library gave up (abort): ";
  if (add_what_is_refused(&line)) {
    add_library_error(&line);
    finish(&line, kShortageExitCode);
  }
  // Without a reason for another conclusion abort() goes on and ends this process with SIGABRT.
  if (!g_aborts_are_shortages || kHasAsserts) return;
  line << "it does so if memory, a thread or a descriptor is refused, and does not say which";
  add_limit(&line, RLIMIT_AS, "its bytes of address space", "ulimit -v");
  add_limit(&line, RLIMIT_NPROC, "its user's processes and threads", "ulimit -u");
  add_limit(&line, RLIMIT_NOFILE, "its open files", "ulimit -n");
  add_library_error(&line);
  finish(&line, kShortageExitCode);
}

[[noreturn]] void end_of_shortage(void (*add)(Line*)) {
  Line line;
  begin(&line, false);
  add(&line);
  finish(&line, kShortageExitCode);
}

[[noreturn]] void end_of_bug(const char* what) {
  Line line;
  begin(&line, true);
  line << what;
  finish(&line, kInternalExitCode);
}

[[noreturn]] void end_of(const std::system_error& error) {
  switch (error.code().value()) {
    case EAGAIN:
      end_of_shortage(stack_is_refused() ? add_memory : add_threads);
    case ENOMEM:
      end_of_shortage(add_memory);
    case EPERM:
      end_of_shortage(add_denied_threads);
    case EMFILE:
    case ENFILE:
      end_of_shortage(add_descriptors);
    default:
      end_of_bug(error.what());
  }
}

struct FaultSignal {
  int number;
  const char* meaning;
};

constexpr FaultSignal kFaultSignals[] = {
    {SIGSEGV, "SIGSEGV, an access to memory that it does not have"},
    {SIGBUS, "SIGBUS, an access to a mapped file that was cut short, or to broken memory"},
    {SIGFPE, "SIGFPE, an operation that the processor cannot do"},
    {SIGILL, "SIGILL, an instruction that the processor does not know"},
    {SIGSYS, "SIGSYS, a system call that a seccomp filter forbids"},
};

/// Large enough for the registers of any processor.
alignas(16) char g_fault_stack[size_t{64} << 10];

void on_fault(int number, siginfo_t* info, void*) {
  const bool sent = info->si_code <= 0;
  Line line;
  begin(&line, true);
  line << "the program dies of ";
  for (const FaultSignal& fault : kFaultSignals)
    if (fault.number == number) line << fault.meaning;
  if (sent) {
    line << ", which process " << static_cast<uint64_t>(info->si_pid) << " has sent";
  } else if (number == SIGSYS) {
    line << " (number " << static_cast<uint64_t>(info->si_syscall) << ")";
  } else {
    line << " (address " << info->si_addr << ")";
  }
  say(&line);
  // The instruction fails again after the return, with the default action, so that a core file
  // shows it. What was sent, a system call, and broken memory that nobody has read yet do not come
  // again.
  const bool unread = number == SIGBUS && info->si_code == BUS_MCEERR_AO;
  if (!sent && !unread && number != SIGSYS) return;
  ::raise(number);
  ::_exit(128 + number);  // as PID 1, for which the kernel drops what is sent
}

[[noreturn]] void on_terminate() {
  // To catch the exception takes memory, for which there is a small reserve. If that fails too,
  // this function is called again. The type alone takes none.
  static std::atomic<bool> begun = false;
  const std::type_info* type = abi::__cxa_current_exception_type();
  const bool no_memory = type != nullptr && (*type == typeid(std::bad_alloc) ||
                                             *type == typeid(std::bad_array_new_length));
  if (no_memory || begun.exchange(true) || (type == nullptr && g_new_was_refused))
    end_of_shortage(add_memory);
  if (type == nullptr) end_of_bug("unexpected end");
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::system_error& error) {
    end_of(error);
  } catch (const std::exception& error) {
    end_of_bug(error.what());
  } catch (...) {
    end_of_bug("an exception of an unknown kind");
  }
}

}  // namespace

void install_last_words() {
  std::set_terminate(on_terminate);
  std::set_new_handler([] {
    g_new_was_refused = true;
    std::set_new_handler(nullptr);  // the next try throws std::bad_alloc
  });
  struct sigaction action {};
  action.sa_sigaction = on_abort;
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND);
  ::sigaction(SIGABRT, &action, nullptr);
}

void install_fault_words() {
  stack_t stack{};
  ::sigaltstack(nullptr, &stack);
  if ((stack.ss_flags & SS_DISABLE) != 0) {  // otherwise it is a sanitizer's
    stack = {.ss_sp = g_fault_stack, .ss_flags = 0, .ss_size = sizeof g_fault_stack};
    ::sigaltstack(&stack, nullptr);
  }
  for (const FaultSignal& fault : kFaultSignals) {
    struct sigaction action {
    }, before{};
    ::sigaction(fault.number, nullptr, &before);
    if (before.sa_handler != SIG_DFL) continue;
    action.sa_sigaction = on_fault;
    action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND | SA_NODEFER | SA_ONSTACK);
    ::sigaction(fault.number, &action, nullptr);
  }
}

void refuse_small_stack() {
  struct rlimit limit;
  if (::getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < kLeastStackBytes)
    end_of_shortage(add_small_stack);
}

void remember_library_error(std::string_view text) {
  const size_t size = std::min(text.size(), std::size(g_library_error) - 1);
  for (size_t i = 0; i < size; ++i) {
    // The line may be JSON, and a character of several bytes may be cut in two at the end. A char
    // has a sign on x86 and none on Arm.
    const bool plain = text[i] >= ' ' && text[i] <= '~' && text[i] != '"' && text[i] != '\\';
    g_library_error[i] = plain ? text[i] : ' ';
  }
  g_library_error[size] = '\0';
}

void take_aborts_for_shortages() {
  g_aborts_are_shortages = true;
}

}  // namespace shoal
