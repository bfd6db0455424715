#include "runtime/base/terminal.h"

#include <charconv>
#include <cstdlib>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

constexpr size_t kFewestColumns = 20, kMostColumns = 10'000;

/// A variable of the environment; empty if it is not set.
std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

const char* code_of(Paint paint) {
  switch (paint) {
    case Paint::kBold:
      return "1";
    case Paint::kRed:
      return "1;31";
    case Paint::kYellow:
      return "33";
    case Paint::kGreen:
      return "32";
  }
  return "0";
}

bool is_width(size_t columns) {
  return columns >= kFewestColumns && columns <= kMostColumns;
}

}  // namespace

bool is_terminal(int fd) {
  return ::isatty(fd) == 1;
}

bool wants_colour(int fd) {
  if (!variable("NO_COLOR").empty()) return false;
  const std::string_view forced = variable("CLICOLOR_FORCE");
  if (!forced.empty() && forced != "0") return true;
  const std::string_view term = variable("TERM");
  return is_terminal(fd) && !term.empty() && term != "dumb";
}

size_t columns_of(int fd) {
  const std::string_view text = variable("COLUMNS");
  size_t columns = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  if (error == std::errc() && end == text.data() + text.size() && is_width(columns)) return columns;
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && is_width(size.ws_col)) return size.ws_col;
  return kUsualColumns;
}

std::string painted(std::string_view text, Paint paint, bool wanted) {
  if (!wanted) return std::string(text);
  return cat("\x1b[", code_of(paint), "m", text, "\x1b[0m");
}

}  // namespace shoal
