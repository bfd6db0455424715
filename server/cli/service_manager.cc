#include "server/cli/service_manager.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/cat.h"
#include "runtime/base/log.h"
#include "runtime/base/text_values.h"

namespace shoal {

namespace {

/// How long a message that must not be lost waits for a manager that is slow to read.
constexpr int kWaitMs = 1'000;

/// The variable's value, which nobody else shall see.
std::string take_variable(const char* name) {
  const char* value = std::getenv(name);
  const std::string text = value == nullptr ? "" : value;
  ::unsetenv(name);
  return text;
}

int64_t microseconds(double seconds) {
  return static_cast<int64_t>(std::min(seconds, 1e12) * 1e6);
}

/// Otherwise a text could forge further lines.
std::string one_line(std::string_view text) {
  std::string line(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

}  // namespace

ServiceManager::ServiceManager() {
  address_ = take_variable("NOTIFY_SOCKET");
  const std::string interval = take_variable("WATCHDOG_USEC");
  const std::string pid = take_variable("WATCHDOG_PID");
  if (address_.empty()) return;
  const bool abstract = address_[0] == '@';
  if ((!abstract && address_[0] != '/') || address_.size() >= sizeof(sockaddr_un::sun_path)) {
    log_warning(cat("NOTIFY_SOCKET is no socket of this host: ", shown(address_)));
    return;
  }
  if (abstract) address_[0] = '\0';
  socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // A pid that is not ours means that a parent is watched, and not this process.
  if (!pid.empty() && pid != std::to_string(::getpid())) return;
  const Result<int64_t> micros = parse_int_flag("WATCHDOG_USEC", interval, 1, INT64_MAX / 2);
  // Three times in the interval, so that one that is late does no harm.
  if (micros.ok()) watchdog_ = std::chrono::microseconds(*micros / 3);
}

void ServiceManager::send(const std::string& text, int wait_ms) {
  if (!socket_.valid()) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, address_.data(), address_.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  const Deadline deadline = Deadline::after_ms(wait_ms);
  for (;;) {
    if (::sendto(socket_.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&address), size) >= 0)
      return;
    // A full queue cannot be polled for without connecting to it.
    if ((errno != EAGAIN && errno != EINTR) || deadline.passed()) break;
    ::poll(nullptr, 0, deadline.remaining_ms(20));
  }
  const int error = errno;
  if (wait_ms > 0 && !std::exchange(failed_, true))
    log_warning(
        cat("the service manager cannot be told how this server is doing: ", std::strerror(error)));
}

void ServiceManager::starting(double limit_s) {
  send(cat("STATUS=starting\nEXTEND_TIMEOUT_USEC=", microseconds(limit_s)), kWaitMs);
}

void ServiceManager::status(std::string_view text) {
  send(cat("STATUS=", one_line(text)), 0);
}

void ServiceManager::ready(std::string_view status_text) {
  send(cat("READY=1\nSTATUS=", one_line(status_text)), kWaitMs);
}

void ServiceManager::stopping(std::string_view status_text, double limit_s) {
  send(cat("STOPPING=1\nSTATUS=", one_line(status_text),
           "\nEXTEND_TIMEOUT_USEC=", microseconds(limit_s)),
       kWaitMs);
}

void ServiceManager::alive() {
  if (watchdog_.count() == 0) return;
  const Clock::time_point now = Clock::now();
  if (now - last_alive_ < watchdog_) return;
  last_alive_ = now;
  send("WATCHDOG=1", 0);
}

}  // namespace shoal
