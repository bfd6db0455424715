#include "runtime/base/quantity.h"

#include <bit>
#include <cstdio>
#include <iterator>

#include "runtime/base/cat.h"
#include "runtime/base/number_text.h"

namespace shoal {
namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

std::string rounded(int64_t bytes, const char* mega, const char* giga) {
  if (bytes >= kGiB) return cat((bytes + kGiB - 1) / kGiB, giga);
  const auto mebibytes = static_cast<uint64_t>((bytes + kMiB - 1) / kMiB);
  const uint64_t size = std::bit_ceil(mebibytes);
  return size == 1024 ? cat(1, giga) : cat(size, mega);
}

}  // namespace

std::string bytes_text(int64_t bytes) {
  const std::string rounded = rounded_bytes_text(bytes);
  return rounded.empty() ? cat(bytes, " B") : cat(bytes, " B (", rounded, ")");
}

std::string rounded_bytes_text(int64_t bytes) {
  if (bytes < 64 * kKiB) return "";
  if (bytes < 1024 * kKiB - kKiB / 2) return cat((bytes + kKiB / 2) / kKiB, " KiB");
  const bool large = bytes >= 10 * kGiB;
  char text[64];
  std::snprintf(text, sizeof text, "%.1f %s",
                static_cast<double>(bytes) / static_cast<double>(large ? kGiB : kMiB),
                large ? "GiB" : "MiB");
  return text;
}

std::string metric_text(double value, std::string_view unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  // What rounds to 1000 is 1.00 with the next prefix.
  for (; value >= 999.5 && prefix + 1 < std::size(kPrefixes); ++prefix) value /= 1000;
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return cat(with_decimals(value, decimals), ' ', kPrefixes[prefix], unit);
}

std::string round_size(int64_t bytes) {
  return rounded(bytes, "m", "g");
}

std::string round_quantity(int64_t bytes) {
  return rounded(bytes, "Mi", "Gi");
}

std::string age_text(int64_t seconds) {
  constexpr int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  if (seconds < 2 * kMinute) return cat(seconds, " s");
  if (seconds < 2 * kHour) return cat(seconds / kMinute, " min");
  if (seconds < 2 * kDay) return cat(seconds / kHour, " h");
  return cat(seconds / kDay, " days");
}

}  // namespace shoal
