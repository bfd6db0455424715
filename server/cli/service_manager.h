#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"

namespace shoal {

/// Tells systemd how a service of Type=notify is doing, as sd_notify(3) says: lines of text in a
/// datagram to the socket that NOTIFY_SOCKET names. Without that variable nothing is sent. A
/// manager that does not read is waited for only briefly, and the log says once that it cannot be
/// told.
class ServiceManager {
 public:
  /// Takes the variables out of the environment, because ranks must not speak for the service. Make
  /// it before any other process or thread exists.
  ServiceManager();

  /// The service is being started, which may take this long.
  void starting(double limit_s);
  /// Shown by systemctl status. May be called from any thread.
  void status(std::string_view text);
  void ready(std::string_view status_text);
  /// The service stops, which may take this long.
  void stopping(std::string_view status_text, double limit_s);
  /// The front does its work. Call it often; it is passed on as often as WATCHDOG_USEC asks for.
  void alive();

 private:
  void send(const std::string& text, int wait_ms);

  Fd socket_;            // none: nobody asks
  std::string address_;  // the bytes of sun_path, with a leading zero for an abstract name
  std::chrono::microseconds watchdog_{0};  // between two signs of life; 0: nobody asks
  Clock::time_point last_alive_{};
  bool failed_ = false;  // and the log says so
};

}  // namespace shoal
