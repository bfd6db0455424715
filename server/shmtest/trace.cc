#include "server/shmtest/trace.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fstream>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <utility>

#include "server/shmtest/seccomp.h"

namespace shoal::shmtest {
namespace {

/// A thread that waits in the kernel, for example for a disk, cannot be let go before that is over.
/// A call of ptrace() is not held up longer than this by such threads.
constexpr int64_t kPatienceMs = 1'000;

/// The text after "KEY:" and white space in /proc/THREAD/status; empty if there is none.
std::string status_field(const std::string& thread, std::string_view key) {
  std::ifstream in(cat("/proc/", thread, "/status"));
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ':') continue;
    const size_t value = line.find_first_not_of(" \t", key.size() + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

std::string process_of(pid_t thread) {
  return status_field(cat(thread), "Tgid");
}

std::string name_of(const std::string& process) {
  std::ifstream in(cat("/proc/", process, "/comm"));
  std::string name;
  std::getline(in, name);
  return name;
}

std::vector<std::string> numbers_in(const std::string& folder) {
  std::vector<std::string> found;
  DIR* entries = ::opendir(folder.c_str());
  if (entries == nullptr) return found;
  while (const dirent* entry = ::readdir(entries)) {
    if (std::atoi(entry->d_name) > 0) found.emplace_back(entry->d_name);
  }
  ::closedir(entries);
  return found;
}

/// Calls visit(thread id, its state's letter) for each thread that this process traces.
template <typename Visit>
void for_each_traced(const Visit& visit) {
  for (const std::string& process : numbers_in("/proc")) {
    for (const std::string& thread : numbers_in(cat("/proc/", process, "/task"))) {
      const std::string path = cat(process, "/task/", thread);
      if (status_field(path, "TracerPid") != cat(::getpid())) continue;
      const std::string state = status_field(path, "State");
      visit(std::atoi(thread.c_str()), state.empty() ? 'X' : state[0]);
    }
  }
}

/// Lets a stopped thread go on in one of ptrace()'s ways. Signal 0 delivers none.
void resume(__ptrace_request how, pid_t pid, int signal) {
  // It fails if the process has been killed meanwhile, and waitpid() then reports that.
  ::ptrace(how, pid, nullptr, static_cast<long>(signal));
}

bool is_fault(int signal) {
  return signal == SIGBUS || signal == SIGSEGV || signal == SIGILL || signal == SIGFPE ||
         signal == SIGTRAP;
}

bool catches(const std::string& process, int signal) {
  const uint64_t caught = std::strtoull(status_field(process, "SigCgt").c_str(), nullptr, 16);
  return (caught >> (signal - 1) & 1) != 0;
}

/// True if the thread is of the first process of a namespace that the command has made, and has
/// faulted without a handler. While such a process is traced, the kernel does not let a fault kill
/// it, and it would fault forever.
bool is_kept_alive(pid_t thread, int signal) {
  siginfo_t info{};
  if (::ptrace(PTRACE_GETSIGINFO, thread, nullptr, &info) != 0 || info.si_code <= 0) return false;
  const std::string process = process_of(thread), ids = status_field(process, "NSpid");
  return ids.find('\t') != std::string::npos && ids.ends_with("\t1") && !catches(process, signal);
}

/// Sends the number, and the descriptor unless it is -1.
bool send_offer(int socket, int error, int fd) {
  iovec data = {&error, sizeof error};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof error;
}

/// What offer_trace() sent: the listener, or why there is none.
Result<Fd> receive_offer(int socket) {
  int error = 0;
  iovec data = {&error, sizeof error};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (got != sizeof error) return Status::error(Code::kUnavailable, "the command did not start");
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS)
    return Status::error(Code::kFailedPrecondition, "watch for calls of ptrace", error);
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return Fd(fd);
}

}  // namespace

void offer_trace(int socket) {
  Result<Fd> listener = announce_ptrace();
  const int error = listener.ok() ? 0 : listener.status().causes().back().os_error;
  if (!send_offer(socket, error, listener.ok() ? listener->get() : -1)) return;
  char answer = 0;
  while (::recv(socket, &answer, 1, 0) < 0 && errno == EINTR) {
  }
}

void Tracer::begin(int socket, pid_t command) {
  Result<Fd> listener = receive_offer(socket);
  if (listener.ok()) {
    // The command has the filter already, so that its calls need answers even if it is not traced.
    listener_ = std::move(*listener);
    constexpr long kEvents = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE;
    if (::ptrace(PTRACE_SEIZE, command, nullptr, kEvents) == 0) {
      state_ = State::kOn;
    } else {
      note_ = root_reason(Status::error(Code::kFailedPrecondition, "trace the command", errno));
    }
  } else {
    note_ = root_reason(listener.status());
  }
  (void)::send(socket, "", 1, MSG_NOSIGNAL);
}

void Tracer::look(short revents) {
  if ((revents & POLLIN) != 0) receive();
  // No process with the filter is left.
  if ((revents & POLLIN) == 0 && (revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) listener_.reset();
  if (state_ == State::kEnding) let_go_of_the_rest();
  if (state_ == State::kOn || state_ == State::kEnding) return;
  for (const uint64_t id : std::exchange(held_, {})) {
    seccomp_notif_resp answer = {id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    // It fails if the caller was killed, or if a signal has interrupted its call.
    ::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_SEND, &answer);
  }
}

void Tracer::receive() {
  // A later kernel may write more than this header knows.
  union {
    seccomp_notif call;
    char room[1024];
  } notice;
  std::memset(&notice, 0, sizeof notice);
  if (::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_RECV, &notice) != 0) return;
  held_.push_back(notice.call.id);
  if (state_ == State::kOn) end_for(static_cast<pid_t>(notice.call.pid));
}

void Tracer::end_for(pid_t caller) {
  state_ = State::kEnding;
  const std::string process = process_of(caller);
  note_ = cat("process ", process, " (", name_of(process),
              ") calls ptrace itself, as LeakSanitizer and gdb do");
  patience_ = Deadline::after_ms(kPatienceMs);
  // This interrupts the caller too. The kernel then starts its call again, and announces it again.
  for_each_traced([](pid_t thread, char) { ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr); });
}

void Tracer::let_go_of_the_rest() {
  bool more = false;
  // Do not wait for processes in an uninterruptible sleep. One of them may be a parent that waits
  // for its child of vfork(), and it sleeps until that child goes on.
  for_each_traced([&](pid_t, char state) { more |= std::strchr("DZX", state) == nullptr; });
  if (!more || patience_.passed()) state_ = State::kEnded;
}

void Tracer::stopped(pid_t pid, int status) {
  const int event = status >> 16, stop = WSTOPSIG(status);
  const int signal = event == 0 ? stop : 0;
  if (signal == SIGBUS) note_sigbus(pid);
  if (is_fault(signal) && is_kept_alive(pid, signal)) {
    // Nothing more will be heard of it, but it is sure to die.
    ended(std::atoi(process_of(pid).c_str()), signal);
    return resume(PTRACE_DETACH, pid, signal);
  }
  if (state_ != State::kOn) return resume(PTRACE_DETACH, pid, signal);
  // A process that SIGSTOP or the terminal has stopped stays so until SIGCONT.
  if (event == PTRACE_EVENT_STOP && stop != SIGTRAP) return resume(PTRACE_LISTEN, pid, 0);
  resume(PTRACE_CONT, pid, signal);
}

void Tracer::note_sigbus(pid_t thread) {
  const std::string process = process_of(thread);
  got_sigbus_[std::atoi(process.c_str())] = cat(process, " ", name_of(process));
}

void Tracer::ended(pid_t pid, int status) {
  const auto entry = got_sigbus_.find(pid);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) {
    sigbus_ = true;
    if (entry != got_sigbus_.end()) sigbus_process_ = entry->second;
  }
  if (entry != got_sigbus_.end()) got_sigbus_.erase(entry);
}

void Tracer::report(int fd) const {
  if (state_ == State::kOn) send_record(fd, "trace", "complete");
  if (state_ == State::kEnding || state_ == State::kEnded) send_record(fd, "trace", "ended");
  if (!note_.empty()) send_record(fd, "trace_note", note_);
  if (sigbus_) send_record(fd, "sigbus", sigbus_process_);
}

}  // namespace shoal::shmtest
