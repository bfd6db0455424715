#include "runtime/transport/needs/nccl_releases.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

/// Where the figures are from:
///   - 2.31.2 and 2.32.3 were read out of the published libraries, for both major versions of CUDA:
///     the sizes at the calls of ncclShmOpen in the machine code, and the structs in the debugging
///     information. The source of 2.32.3 was not at hand, so that the factors of its pool are
///     derived: ops[294912] and freeOps[144] give them.
///   - 2.28.9 and 2.30.7 were read out of their libraries, and compiled from the headers of their
///     tags, with the same results.
///   - The others were compiled from the headers of the tags v2.12.12-1, 2.14.3, 2.17.1, 2.18.1,
///     2.18.6, 2.19.4, 2.20.5, 2.21.5, 2.22.3, 2.23.4, 2.24.3, 2.25.1, 2.26.2 to .6, 2.27.3 to .7,
///     2.28.3, 2.28.7, 2.29.2 to .7, 2.30.3 and 2.30.4. For the pools of 2.13, 2.15 and 2.16 this
///     was not done, because those before and after them are equal.
constexpr std::array<NcclRelease, 22> kReleases = {{
    {12, 12, 64, 1024, 64, 0, 0, 0},    {13, 4, 64, 1024, 64, 0, 0, 0},
    {14, 3, 64, 1024, 64, 0, 0, 0},     {15, 5, 64, 1024, 64, 0, 0, 0},
    {16, 5, 64, 1024, 64, 0, 0, 0},     {17, 1, 64, 1024, 64, 0, 0, 0},
    {18, 6, 64, 1024, 64, 0, 0, 0},     {19, 4, 64, 1024, 64, 0, 8, 80},
    {20, 5, 88, 1024, 64, 0, 8, 1472},  {21, 5, 112, 1024, 64, 0, 8, 1504},
    {22, 3, 112, 1024, 64, 0, 8, 1504}, {23, 4, 160, 1024, 64, 0, 8, 2560},
    {24, 3, 216, 1024, 64, 0, 8, 2304}, {25, 1, 216, 2048, 72, 0, 8, 2560},
    {26, 6, 224, 2048, 72, 0, 8, 2576}, {27, 7, 224, 2048, 72, 0, 8, 2592},
    {28, 3, 232, 2048, 72, 0, 0, 2688}, {28, 9, 232, 2048, 72, 0, 0, 2816},
    {29, 7, 232, 2048, 72, 0, 0, 2816}, {30, 7, 232, 2048, 72, 0, 0, 1664},
    {31, 2, 232, 2048, 72, 8, 0, 1664}, {32, 3, 232, 2048, 144, 8, 0, 256},
}};
static_assert(nccl_pool_bytes(kReleases[0]) == 4194656);
static_assert(nccl_pool_bytes(kReleases[15]) + kNcclRefcountBytes == 33030532);
static_assert(nccl_pool_bytes(kReleases[19]) + kNcclRefcountBytes == 34210180);
static_assert(nccl_pool_bytes(kReleases[20]) == 34210184);
static_assert(nccl_pool_bytes(kReleases[21]) == 68420264);

}  // namespace

std::span<const NcclRelease> nccl_releases() {
  return kReleases;
}

const NcclRelease& nccl_release_of(const NcclVersion& version) {
  if (version.major > 2) return kReleases.back();
  const NcclRelease* found = &kReleases.front();
  for (const NcclRelease& release : kReleases) {
    if (release.minor > version.minor) break;
    found = &release;
    if (release.minor == version.minor && release.last_patch >= version.patch) break;
  }
  return *found;
}

bool is_known_nccl(const NcclVersion& version) {
  const NcclRelease& release = nccl_release_of(version);
  return version.major == 2 && version.minor == release.minor &&
         version.patch <= release.last_patch;
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
  if (parts[2] >= 0 || version.major != 2) return version;
  for (const NcclRelease& release : kReleases) {
    if (release.minor != version.minor) continue;
    version.patch = release.last_patch;
    version.last_patch = true;
  }
  return version;
}

}  // namespace shoal
