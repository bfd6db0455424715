#include "runtime/transport/needs/reservation.h"

#include <algorithm>
#include <sys/resource.h>

#include "runtime/base/cat.h"
#include "runtime/base/page_size.h"
#include "runtime/base/quantity.h"

namespace shoal {
namespace {

/// The largest size of one file within the limit, in whole pages, because a part of a page is
/// charged as a whole one. At least a page, so that create reports what is wrong if that is too
/// much.
int64_t largest_piece(int64_t bytes) {
  struct rlimit limit;
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(bytes))
    return bytes;
  const auto page = static_cast<int64_t>(page_size());
  return std::max(static_cast<int64_t>(limit.rlim_cur) / page * page, page);
}

}  // namespace

Result<std::vector<ShmSegment>> reserve_for_library(int64_t bytes, const std::string& directory) {
  std::vector<ShmSegment> pieces;
  const int64_t piece = largest_piece(bytes);
  for (int64_t taken = 0; taken < bytes; taken += piece) {
    Result<ShmSegment> segment =
        ShmSegment::create(static_cast<size_t>(std::min(piece, bytes - taken)), directory);
    if (!segment.ok())
      return segment.status().while_doing(cat("take ", bytes_text(bytes), " in ", directory));
    pieces.push_back(std::move(segment).value());
  }
  return pieces;
}

}  // namespace shoal
