#include "server/grpc/grpc_version.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <grpcpp/grpcpp.h>

#include "runtime/base/cat.h"
#include "runtime/base/log.h"

namespace shoal {

namespace {

/// The numbers of "1.51.1"; 0 for what is missing or not a number.
std::array<int, 3> numbers_of(std::string_view version) {
  std::array<int, 3> numbers{};
  for (int& number : numbers) {
    const size_t end = std::min(version.find('.'), version.size());
    (void)std::from_chars(version.data(), version.data() + end, number);
    version.remove_prefix(std::min(end + 1, version.size()));
  }
  return numbers;
}

}  // namespace

bool bounds_headers(std::string_view version) {
  const auto [major, minor, patch] = numbers_of(version);
  if (major != 1 || minor >= 57) return major >= 1;
  if (minor == 53) return patch >= 2;
  if (minor == 54) return patch >= 3;
  return (minor == 55 || minor == 56) && patch >= 2;
}

void warn_of_endless_headers(std::string_view host) {
  if (bounds_headers(grpc::Version())) return;
  log_warning(cat("this program has gRPC ", grpc::Version(),
                  ", which keeps headers without end in memory (CVE-2023-33953). Connections "
                  "that send them are closed, but only after some MiB: if strangers can reach ",
                  host, ", put a proxy in front (SECURITY.md)"));
}

}  // namespace shoal
