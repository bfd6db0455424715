// Readers that stop, by every kind of file that stderr may be. Each case runs in a child with an
// alarm, so that a write that waits for ever ends the child.
#include "runtime/base/patient_writer.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <set>
#include <sstream>
#include <string>
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
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return {};
  const int room = 65536;  // what a machine gives may be more than a test writes
  ::setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  return {ends[0], ends[1]};
}

Ends make_terminal() {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) return {};
  return {master, ::open(::ptsname(master), O_RDWR | O_NOCTTY)};
}

/// Fills a pipe up, as a writer of another process would, and leaves it blocking.
void fill(int pipe) {
  ::fcntl(pipe, F_SETFL, O_NONBLOCK);
  for (size_t size : {size_t{4096}, size_t{1}}) {
    const std::string text(size, '.');
    while (::write(pipe, text.data(), text.size()) > 0) continue;
  }
  ::fcntl(pipe, F_SETFL, 0);
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

/// What a reader has got of a log: the numbered lines that came, and how many lines the log itself
/// says were lost.
struct Told {
  std::set<int> lines;
  int lost = 0;
  bool twice = false;  // a line came twice
};

Told read_log(const std::string& text) {
  Told told;
  std::istringstream whole_lines(text.substr(0, text.rfind('\n') + 1));
  for (std::string line; std::getline(whole_lines, line);) {
    const size_t head_end = line.find("] ");
    if (head_end == std::string::npos) continue;
    const std::string said = line.substr(head_end + 2);
    int number = 0;
    if (std::sscanf(said.c_str(), "line %d", &number) == 1) {
      if (!told.lines.insert(number).second) told.twice = true;
    } else if (std::sscanf(said.c_str(), "%d log line", &number) == 1 &&
               said.find(" lost: nobody read them") != std::string::npos) {
      told.lost += number;
    }
  }
  return told;
}

/// Logs a megabyte that nobody reads, for which none of these files has room, and then lines that
/// are read until one comes out. A terminal finds more room whenever it likes, so nobody knows
/// which lines are lost. But each comes once, or the reader is told that it lacks it.
std::string log_to_a_stuck_reader(const Ends& ends) {
  if (ends.writer < 0) return "skip: this machine does not make one";
  ::alarm(kGuardMs / 1000);
  ::signal(SIGPIPE, SIG_IGN);
  ::dup2(ends.writer, STDERR_FILENO);
  const std::string rest(180, '.');
  int logged = 0;
  while (logged < 5000) log_info(cat("line ", ++logged, " ", rest));
  std::string text;
  Told told;
  do {
    text += drain(ends.reader);
    log_info(cat("line ", ++logged));
    text += drain(ends.reader);
    told = read_log(text);
  } while (!told.lines.contains(logged));
  if (told.twice) return "a line came twice";
  if (told.lost == 0) return "no line was lost";
  const int known = static_cast<int>(told.lines.size()) + told.lost;
  return known == logged ? "" : cat(known, " of ", logged, " lines came or are known to be lost");
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
              PatientWriter writer(ends.writer);
              if (writer.write("too early", 0) || writer.error() != EAGAIN) return "no room";
              const pid_t reader = ::fork();
              if (reader == 0) {
                ::usleep(50'000);
                (void)drain(ends.reader);
                ::_exit(0);
              }
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

TEST(PatientWriter, ALineThatAFullFileHasCutIsEndedAndCounted) {
  EXPECT_EQ(in_child([]() -> std::string {
              ::signal(SIGXFSZ, SIG_IGN);
              char name[] = "/tmp/shoal-log-XXXXXX";
              const Fd file(::mkstemp(name));
              ::unlink(name);
              ::dup2(file.get(), STDERR_FILENO);
              rlimit all = {};
              ::getrlimit(RLIMIT_FSIZE, &all);
              const rlimit small = {100, all.rlim_max};
              ::setrlimit(RLIMIT_FSIZE, &small);  // the first line fits, and the second is cut
              for (int i = 1; i <= 3; ++i) log_info(cat("line ", i, " ", std::string(40, '.')));
              ::setrlimit(RLIMIT_FSIZE, &all);
              log_info("line 4");
              char bytes[1000] = {};
              if (::pread(file.get(), bytes, sizeof bytes - 1, 0) < 0) return "nothing to read";
              const std::string text = bytes;
              const size_t at = text.find(" log lines were lost: ");
              const size_t line = text.rfind('\n', at) + 1;
              const bool own_line = at != std::string::npos && text[line] == '2';  // the year
              return own_line && text.find("] 2 log lines were lost: ") != std::string::npos ? ""
                                                                                             : text;
            }),
            "");
}

}  // namespace
}  // namespace shoal
