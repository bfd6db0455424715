// Readers that stop, by every kind of file that stderr may be. Each case runs in a child with an
// alarm, so that a write that waits for ever ends the child.
#include "runtime/base/patient_writer.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "tests/guard.h"
#include "tests/in_child.h"

namespace shoal {
namespace {

/// Both ends of something that processes talk through; the writer's end blocks.
struct Ends {
  int reader = -1;
  int writer = -1;
};

Ends make_pipe() {
  int ends[2];
  return ::pipe(ends) == 0 ? Ends{ends[0], ends[1]} : Ends();
}

Ends make_socket() {
  int ends[2];
  return ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 ? Ends{ends[0], ends[1]} : Ends();
}

Ends make_terminal() {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) return {};
  return {master, ::open(::ptsname(master), O_RDWR | O_NOCTTY)};
}

/// Fills it up, as a writer of another process would, and leaves it blocking.
void fill(int fd) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  for (int full = 0; full < 5; ::usleep(10'000)) {  // a terminal finds more room a little later
    ++full;
    for (size_t size : {size_t{4096}, size_t{1}}) {
      const std::string text(size, '.');
      while (::write(fd, text.data(), text.size()) > 0) full = 0;
    }
  }
  ::fcntl(fd, F_SETFL, 0);
}

/// Everything that can be read at once.
std::string drain(int fd) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  std::string text;
  char buffer[65536];
  for (int empty = 0; empty < 3;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
    if (got <= 0) ++empty, ::usleep(10'000);  // a terminal hands its text on a little later
  }
  return text;
}

/// Logs three lines that nobody reads and, once there is room again, a fourth one.
std::string log_to_a_stuck_reader(const Ends& ends) {
  if (ends.writer < 0) return "skip: this machine does not make one";
  ::alarm(kGuardMs / 1000);
  ::signal(SIGPIPE, SIG_IGN);
  ::dup2(ends.writer, STDERR_FILENO);
  fill(STDERR_FILENO);
  for (int line = 1; line <= 3; ++line) log_info(cat("line ", line));
  (void)drain(ends.reader);
  log_info("line 4");
  const std::string text = drain(ends.reader);
  const size_t told = text.find("3 log lines were lost: nobody read them"),
               next = text.find("line 4");
  if (told == std::string::npos || next == std::string::npos || next < told) return text + "!";
  return text.find("line 3") == std::string::npos ? "" : "a lost line came";
}

TEST(PatientWriter, AStuckReaderCostsLinesAndNoTime) {
  EXPECT_EQ(in_child([] { return log_to_a_stuck_reader(make_pipe()); }), "");
  EXPECT_EQ(in_child([] { return log_to_a_stuck_reader(make_socket()); }), "");
  const std::string terminal = in_child([] { return log_to_a_stuck_reader(make_terminal()); });
  EXPECT_TRUE(terminal.empty() || terminal.starts_with("skip")) << terminal;
}

TEST(PatientWriter, APipeThatCannotBeOpenedAgainWaitsForNobodyEither) {
  const std::string said = in_child([]() -> std::string {
    char folder[] = "/tmp/shoal-no-proc-XXXXXX";
    if (::mkdtemp(folder) == nullptr || ::chdir(folder) != 0 || ::rmdir(folder) != 0)
      return "no folder";
    if (::chroot(".") != 0) return "skip: no chroot";
    return log_to_a_stuck_reader(make_pipe());
  });
  if (said.starts_with("skip")) GTEST_SKIP() << said;
  EXPECT_EQ(said, "");
}

TEST(PatientWriter, LeavesTheSharedDescriptionBlocking) {
  EXPECT_EQ(in_child([]() -> std::string {
              const Ends ends = make_pipe();
              PatientWriter writer(ends.writer);
              if (!writer.write("x", 0)) return "not written";
              return ::fcntl(ends.writer, F_GETFL) & O_NONBLOCK ? "it does not block" : "";
            }),
            "");
}

TEST(PatientWriter, WaitsAsLongAsItIsTold) {
  EXPECT_EQ(in_child([]() -> std::string {
              ::alarm(kGuardMs / 1000);
              const Ends ends = make_pipe();
              fill(ends.writer);
              const pid_t reader = ::fork();
              if (reader == 0) {
                ::usleep(50'000);
                (void)drain(ends.reader);
                ::_exit(0);
              }
              PatientWriter writer(ends.writer);
              if (writer.write("too early", 0) || writer.error() != EAGAIN) return "no room";
              return writer.write("the reason of an end", kGuardMs) ? "" : "lost";
            }),
            "");
}

TEST(PatientWriter, ALongTextGoesOnWhereItsReaderStopped) {
  EXPECT_EQ(in_child([]() -> std::string {
              ::alarm(kGuardMs / 1000);
              const Ends ends = make_pipe();
              PatientWriter writer(ends.writer);
              const std::string all(200'000, 'a');
              if (!writer.write(all, 0)) return "nothing of it went";
              if (writer.write("b", 0)) return "it went between";
              std::string got = drain(ends.reader);
              while (got.size() < all.size() && !writer.write("b", 0)) got += drain(ends.reader);
              got += drain(ends.reader);
              return got == all + "b" ? "" : cat(got.size(), " bytes");
            }),
            "");
}

TEST(PatientWriter, AFullFileIsAnErrorAndNoSignal) {
  EXPECT_EQ(in_child([]() -> std::string {
              ::signal(SIGXFSZ, SIG_IGN);  // as main() does
              char name[] = "/tmp/shoal-log-XXXXXX";
              const Fd file(::mkstemp(name));
              ::unlink(name);
              ::dup2(file.get(), STDERR_FILENO);
              const struct rlimit limit { 100, 100 };
              ::setrlimit(RLIMIT_FSIZE, &limit);
              for (int line = 0; line < 10; ++line)
                log_info("a line of forty bytes and more......");
              PatientWriter writer(STDERR_FILENO);
              if (writer.write("x", 0) || writer.error() != EFBIG) return "not refused";
              if (::ftruncate(file.get(), 0) != 0 || ::lseek(file.get(), 0, SEEK_SET) != 0)
                return "no truncate";
              log_lost_lines();
              char text[101] = {};
              [[maybe_unused]] const ssize_t got = ::pread(file.get(), text, 100, 0);
              return std::string(text).find("log lines were lost: File too") == std::string::npos
                         ? text
                         : "";
            }),
            "");
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  PatientWriter writer(full.get());
  EXPECT_FALSE(writer.write("x", 0));
  EXPECT_EQ(writer.error(), ENOSPC);
}

TEST(PatientWriter, FollowsADescriptorThatBecomesAnotherFile) {
  EXPECT_EQ(in_child([]() -> std::string {
              const Ends first = make_pipe(), second = make_pipe();
              PatientWriter writer(first.writer);
              if (!writer.write("1", 0)) return "not written";
              ::dup2(second.writer, first.writer);
              if (!writer.write("2", 0)) return "not written to the second";
              return drain(first.reader) == "1" && drain(second.reader) == "2" ? "" : "mixed";
            }),
            "");
}

}  // namespace
}  // namespace shoal
