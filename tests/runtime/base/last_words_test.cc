// Processes that really end: each case is a child whose stderr and exit code are looked at.
#include "runtime/base/last_words.h"

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <gtest/gtest.h>
#include <iterator>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <new>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"

namespace shoal {
namespace {

struct End {
  std::string text;
  int exit_code = -1;  // -1: ended by the signal
  int signal = 0;
};

/// Runs the body in a child that has installed its last words, and that must not return from it.
End end_of(const std::function<void()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    const struct rlimit no_core { 0, 0 };
    ::setrlimit(RLIMIT_CORE, &no_core);
    install_last_words();
    [&]() noexcept { body(); }();
    ::_exit(0);
  }
  ::close(ends[1]);
  End end;
  char buffer[1024];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    end.text.append(buffer, static_cast<size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  return end;
}

bool sanitized() {
  return std::getenv("SHOAL_TEST_SANITIZED") != nullptr;
}

TEST(LastWords, OfAFailedAllocation) {
  const End thrown = end_of([] { throw std::bad_alloc(); });
  EXPECT_EQ(thrown.exit_code, kShortageExitCode);
  EXPECT_EQ(thrown.text.find("shoal: error: memory was refused"), 0u) << thrown.text;
  if (sanitized()) return;  // a sanitizer has an end of its own for this
  const End real = end_of([] {
    const struct rlimit limit { 1 << 30, 1 << 30 };
    ::setrlimit(RLIMIT_AS, &limit);
    for (;;) {
      void* volatile taken = ::operator new (size_t{1} << 26);
      (void)taken;
    }
  });
  EXPECT_EQ(real.exit_code, kShortageExitCode);
  EXPECT_NE(real.text.find("address space are limited to 1073741824 (ulimit -v)"),
            std::string::npos)
      << real.text;
}

TEST(LastWords, OfARankNameIt) {
  const End end = end_of([] {
    set_process_rank(3);
    throw std::bad_alloc();
  });
  EXPECT_EQ(end.text.find("shoal: error: rank 3: memory was refused"), 0u) << end.text;
}

TEST(LastWords, OfAThreadThatCannotBeStarted) {
  const End end = end_of([] {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  EXPECT_EQ(end.exit_code, kShortageExitCode);
  EXPECT_NE(end.text.find("a thread or process was refused"), std::string::npos) << end.text;
}

TEST(LastWords, OfABugAreAnInternalError) {
  const End end = end_of([] { throw std::runtime_error("the sky is falling"); });
  EXPECT_EQ(end.exit_code, 70);
  EXPECT_EQ(end.text, "shoal: error: INTERNAL: the sky is falling\n");
  EXPECT_EQ(end_of([] { std::terminate(); }).exit_code, 70);
}

TEST(LastWords, OfALibraryThatAbortsNameWhatIsRefused) {
  const End files = end_of([] {
    const struct rlimit limit { 3, 3 };
    ::setrlimit(RLIMIT_NOFILE, &limit);
    remember_library_error("caf\xc3\xa9\x7f \"x\"");
    std::abort();
  });
  EXPECT_EQ(files.exit_code, kShortageExitCode);
  EXPECT_NE(files.text.find("a library gave up (abort): a file descriptor was refused; its open "
                            "files are limited to 3 (ulimit -n)"),
            std::string::npos)
      << files.text;
  EXPECT_NE(files.text.find("; it said last: caf     x"), std::string::npos) << files.text;
  if (::getuid() != 0) return;  // root has no limit of processes, and can become somebody who has
  const End processes = end_of([] {
    const struct rlimit limit { 1, 1 };
    ::setrlimit(RLIMIT_NPROC, &limit);
    if (::setuid(65'124) == 0) std::abort();
  });
  EXPECT_EQ(processes.exit_code, kShortageExitCode);
  EXPECT_NE(processes.text.find("processes and threads are limited to 1 (ulimit -u)"),
            std::string::npos)
      << processes.text;
}

TEST(LastWords, AnAbortWithoutAShortageIsTakenForOneInTheFrontAlone) {
  EXPECT_EQ(end_of([] { std::abort(); }).signal, SIGABRT);
  EXPECT_EQ(end_of([] { ::kill(::getpid(), SIGABRT); }).signal, SIGABRT) << "from outside";
#ifdef NDEBUG
  const End front = end_of([] {
    take_aborts_for_shortages();
    std::abort();
  });
  EXPECT_EQ(front.exit_code, kShortageExitCode);
  EXPECT_NE(front.text.find("and does not say which"), std::string::npos) << front.text;
#endif
}

/// How the body ends whose faults are told.
End fault_of(const std::function<void()>& body) {
  return end_of([&] {
    install_fault_words();
    body();
  });
}

/// Takes `frames` frames of the stack. The stack has no room for all of them.
__attribute__((noinline)) int overflow(int frames, volatile char* above) {
  volatile char frame[4096];
  frame[0] = *above;
  return frames == 0 ? 0 : overflow(frames - 1, frame) + frame[0];
}

/// An address that the compiler does not know.
volatile uintptr_t g_nowhere = 16;

/// From now on the kernel sends SIGSYS for getppid().
void forbid_getppid() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(code), code};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

TEST(LastWords, OfAFaultNameTheSignalWhichEndsTheProcess) {
  if (sanitized()) GTEST_SKIP() << "a sanitizer has a report of its own for this";
  const struct {
    int signal;
    const char* says;
    std::function<void()> fault;
  } cases[] = {
      {SIGSEGV, "SIGSEGV, an access to memory that it does not have (address 0x0000000000000010)",
       [] { *reinterpret_cast<volatile int*>(g_nowhere) = 1; }},
      {SIGSEGV, "SIGSEGV, an access to memory",
       [] {
         volatile char first = 0;
         ::_exit(overflow(1 << 30, &first));
       }},
      {SIGBUS, "SIGBUS, an access to a mapped file that was cut short",
       [] {
         const int file = ::memfd_create("short", 0);
         *static_cast<volatile char*>(
             ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) = 1;
       }},
      {SIGSYS, "SIGSYS, a system call that a seccomp filter forbids (number ",
       [] {
         forbid_getppid();
         ::getppid();
       }},
      {SIGILL, "SIGILL, an instruction that the processor does not know, which process ",
       [] { ::raise(SIGILL); }},
      {SIGFPE, " has sent", [] { ::kill(::getpid(), SIGFPE); }},
  };
  for (const auto& one : cases) {
    const End end = fault_of(one.fault);
    EXPECT_EQ(end.signal, one.signal) << end.text;
    EXPECT_EQ(end.text.find("shoal: error: INTERNAL: the program dies of SIG"), 0u) << end.text;
    EXPECT_NE(end.text.find(one.says), std::string::npos) << end.text;
    EXPECT_EQ(std::count(end.text.begin(), end.text.end(), '\n'), 1) << end.text;
  }
}

TEST(LastWords, OfAFaultLeaveAHandlerThatIsThereAlone) {
  const End end = fault_of([] { ::_exit(3); });
  EXPECT_EQ(end.exit_code, 3);
  const End handled = end_of([] {
    std::signal(SIGFPE, [](int) { ::_exit(4); });
    install_fault_words();
    ::raise(SIGFPE);
  });
  EXPECT_EQ(handled.exit_code, 4);
}

TEST(LastWords, AreALineOfJsonInAJsonLog) {
  const End end = end_of([] {
    set_log_options({LogLevel::kInfo, LogFormat::kJson});
    set_process_rank(2);
    throw std::bad_alloc();
  });
  const Result<Json> line = parse_json(end.text, "stderr");
  ASSERT_TRUE(line.ok()) << end.text;
  EXPECT_EQ(line->value("rank", -1), 2);
  EXPECT_EQ(line->value("message", "").find("RESOURCE_EXHAUSTED: memory was refused"), 0u);
}

TEST(LastWords, WaitForNoReaderForEver) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    const std::string page(4096, '.');
    for (int i = 0; i < 16; ++i) {
      [[maybe_unused]] const ssize_t filled = ::write(STDERR_FILENO, page.data(), page.size());
    }
    install_last_words();
    const std::function<void()> fail = [] { throw std::bad_alloc(); };
    [&]() noexcept { fail(); }();
  }
  int status = 0;
  ::waitpid(child, &status, 0);  // CTest's limit is the deadline
  EXPECT_TRUE(WIFEXITED(status) || WTERMSIG(status) == SIGALRM);
}

}  // namespace
}  // namespace shoal
