#include "server/cli/command_io.h"

#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/terminal.h"

namespace shoal {

Status write_all(int fd, std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 &&
        errno == EAGAIN) {  // another program made this pipe non-blocking; we must not change that
      pollfd writable{fd, POLLOUT, 0};
      ::poll(&writable, 1, -1);
      continue;
    }
    if (n < 0) return Status::error(Code::kDataLoss, cat("write ", name), errno);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

Status write_stdout(std::string_view text) {
  return write_all(STDOUT_FILENO, text, "the output to stdout");
}

void say_done(std::string_view command, std::string_view text) {
  if (log_options().level <= LogLevel::kInfo) {
    log_info(text);
  } else if (log_options().format == LogFormat::kText) {
    (void)write_stderr(cat("shoal", command.empty() ? "" : " ", command, ": ", text, "\n"),
                       kLastLineMs);
  }
}

void say_aside(std::string_view command, std::string_view text) {
  if (log_options().level <= LogLevel::kInfo || is_terminal(STDERR_FILENO)) say_done(command, text);
}

bool reader_left(const Status& status) {
  return status.code() == Code::kDataLoss && status.causes().back().os_error == EPIPE;
}

Result<std::string> read_input(std::string_view flag, const std::string& path, size_t max_bytes) {
  const Fd opened(path == "-" ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int fd = path == "-" ? STDIN_FILENO : opened.get();
  if (fd < 0)
    return Status::error(Code::kInvalidArgument, cat(flag, " ", path, " cannot be opened"), errno);
  std::string text;
  constexpr size_t kStep = size_t{1} << 16;
  for (;;) {
    const size_t old_size = text.size();
    if (old_size > max_bytes) {
      return Status::error(
          Code::kInvalidArgument,
          cat(flag, " ", path, " has more than ", max_bytes, " B; split it into several files"));
    }
    text.resize(old_size + kStep);
    const ssize_t n = ::read(fd, text.data() + old_size, kStep);
    const int error = errno;
    text.resize(old_size + (n > 0 ? static_cast<size_t>(n) : 0));
    if (n == 0) return text;
    if (n < 0 && error == EAGAIN) {  // another program made this pipe non-blocking
      pollfd readable{fd, POLLIN, 0};
      ::poll(&readable, 1, -1);
    } else if (n < 0 && error != EINTR) {
      return Status::error(Code::kInvalidArgument, cat(flag, " ", path, " cannot be read"), error);
    }
  }
}

void for_each_numbered_line(
    std::string_view text,
    const std::function<void(std::string_view line, int64_t number)>& handle) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) handle(line, number);
  }
}

Status for_each_line(
    std::string_view text, std::string_view source,
    const std::function<Status(std::string_view line, const std::string& where)>& handle) {
  Status first;
  for_each_numbered_line(text, [&](std::string_view line, int64_t number) {
    if (first.ok()) first = handle(line, cat(source, " line ", number));
  });
  return first;
}

}  // namespace shoal
