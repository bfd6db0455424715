#include "runtime/transport/needs/nccl_releases.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

/// Found by compiling the headers of the tags v2.12.12-1, 2.14.3, 2.17.1, 2.18.1, 2.18.6, 2.19.4,
/// 2.20.5, 2.21.5, 2.22.3, 2.23.4, 2.24.3, 2.25.1, 2.26.2 to .6, 2.27.3, 2.27.7, 2.28.3 to .9,
/// 2.29.2, 2.29.7, 2.30.3 to .7. The versions 2.13, 2.15 and 2.16 were not compiled, because those
/// before and after them are equal.
constexpr std::array<NcclRelease, 19> kReleases = {{
    {12, 12, 64, 1024, 64}, {13, 4, 64, 1024, 64},  {14, 3, 64, 1024, 64},  {15, 5, 64, 1024, 64},
    {16, 5, 64, 1024, 64},  {17, 1, 64, 1024, 64},  {18, 6, 64, 1024, 64},  {19, 4, 64, 1024, 64},
    {20, 5, 88, 1024, 64},  {21, 5, 112, 1024, 64}, {22, 3, 112, 1024, 64}, {23, 4, 160, 1024, 64},
    {24, 3, 216, 1024, 64}, {25, 1, 216, 2048, 72}, {26, 6, 224, 2048, 72}, {27, 7, 224, 2048, 72},
    {28, 9, 232, 2048, 72}, {29, 7, 232, 2048, 72}, {30, 7, 232, 2048, 72},
}};
static_assert(nccl_pool_bytes(kReleases[0]) + kNcclRefcountBytes == 4194660);
static_assert(nccl_pool_bytes(kReleases[15]) + kNcclRefcountBytes == 33030532);
static_assert(nccl_pool_bytes(kReleases[18]) + kNcclRefcountBytes == 34210180);

}  // namespace

std::span<const NcclRelease> nccl_releases() {
  return kReleases;
}

const NcclRelease& nccl_release_of(const NcclVersion& version) {
  if (version.major > 2) return kReleases.back();
  const int index =
      std::clamp<int>(version.minor - kReleases.front().minor, 0, kReleases.size() - 1);
  return kReleases[index];
}

Result<NcclVersion> parse_nccl_version(std::string_view text) {
  const Status bad = Status::error(
      Code::kInvalidArgument, cat("NCCL version \"", text, "\": not like 2.27.7, 2.27 or 22707"));
  std::array<int, 3> parts = {0, 0, -1};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  size_t count = 0;
  while (count < parts.size()) {
    const auto [next, error] = std::from_chars(at, end, parts[count]);
    if (error != std::errc() || parts[count] < 0) return bad;
    ++count;
    at = next;
    if (at == end || *at != '.') break;
    ++at;
  }
  // Packages name their builds "2.28.9+cuda13.0" or "2.28.9-1".
  if (at != end && *at != '+' && *at != '-') return bad;
  if (count == 1) {
    if (parts[0] < 20000 || parts[0] > 99999) return bad;
    return NcclVersion{parts[0] / 10000, parts[0] / 100 % 100, parts[0] % 100};
  }
  if (parts[1] > 99 || parts[2] > 99) return bad;
  NcclVersion version{parts[0], parts[1], std::max(parts[2], 0)};
  const bool known = version.major == 2 && version.minor >= kReleases.front().minor &&
                     version.minor <= kReleases.back().minor;
  if (parts[2] < 0 && known) version.patch = nccl_release_of(version).last_patch;
  return version;
}

}  // namespace shoal
