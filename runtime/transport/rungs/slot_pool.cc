#include "runtime/transport/rungs/slot_pool.h"

#include <algorithm>

#include "runtime/base/counted.h"
#include "runtime/base/quantity.h"
#include "runtime/comm/slots/shm_communicator.h"

namespace shoal {

int64_t in_pages(size_t bytes, const HostFacts& facts) {
  const auto page = static_cast<size_t>(std::max<int64_t>(facts.page_bytes, 1));
  return static_cast<int64_t>((bytes + page - 1) / page * page);
}

Consumer slot_pool(const RungContext& context, size_t slot_bytes, int64_t inodes) {
  const int ranks = context.world_size;
  return {cat("2 slots of ", bytes_text(static_cast<int64_t>(slot_bytes)),
              " and 256 B of control words for each of ", counted(ranks, "rank")),
          in_pages(shm_communicator_bytes(ranks, slot_bytes), context.facts), inodes};
}

Result<std::unique_ptr<Communicator>> open_slot_pool(OpenArgs args, const char* name) {
  return open_shm_communicator(args.world, args.shm.get(), static_cast<size_t>(args.shm_bytes),
                               args.timeout_ms, std::move(args.interrupted), name);
}

Status check_file_size(int64_t bytes, const HostFacts& facts) {
  const int64_t limit = facts.limits.fsize_bytes;
  if (limit < 0 || bytes <= limit) return {};
  return Status::error(Code::kResourceExhausted,
                       cat("it needs a file of ", bytes_text(bytes), "; the file size limit is ",
                           bytes_text(limit), " (ulimit -f)"));
}

Status check_memfd(int64_t bytes, const HostFacts& facts) {
  if (facts.memfd_error != 0) {
    return Status::error(Code::kUnavailable, "no memfd can be made (memfd_create with sealing)",
                         facts.memfd_error);
  }
  return check_file_size(bytes, facts);
}

}  // namespace shoal
