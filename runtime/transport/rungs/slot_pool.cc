#include "runtime/transport/rungs/slot_pool.h"

#include "runtime/comm/slots/shm_communicator.h"

namespace shoal {

Consumer slot_pool(int world_size, size_t slot_bytes, int64_t inodes) {
  return {cat("2 slots of ", slot_bytes, " B and 256 B of control words for each of ", world_size,
              " ranks"),
          static_cast<int64_t>(shm_communicator_bytes(world_size, slot_bytes)), inodes};
}

Result<std::unique_ptr<Communicator>> open_slot_pool(OpenArgs args, const char* name) {
  return open_shm_communicator(args.world, args.shm.get(), static_cast<size_t>(args.shm_bytes),
                               args.timeout_ms, std::move(args.interrupted), name);
}

Status check_file_size(int64_t bytes, const HostFacts& facts) {
  const int64_t limit = facts.limits.fsize_bytes;
  if (limit < 0 || bytes <= limit) return {};
  return Status::error(
      Code::kResourceExhausted,
      cat("needs a file of ", bytes, " bytes; the file size limit is ", limit, " (ulimit -f)"));
}

}  // namespace shoal
