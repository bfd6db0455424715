#include "runtime/comm/slots/cma_communicator.h"

#include <cerrno>
#include <cstring>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "runtime/base/counted.h"
#include "runtime/comm/slots/cma_slots.h"
#include "runtime/comm/slots/slot_communicator.h"

namespace shoal {
namespace {

constexpr size_t kMinSlotBytes = 4096;

Status check(World world, size_t page_bytes, size_t slot_bytes) {
  if (world.size < 1 || world.rank < 0 || world.rank >= world.size) {
    return Status::error(Code::kInvalidArgument,
                         cat("cma communicator: rank ", world.rank, " of ", world.size));
  }
  if (slot_bytes < kMinSlotBytes || slot_bytes % 64 != 0) {
    return Status::error(Code::kInvalidArgument,
                         cat("cma communicator: slots of ", slot_bytes, " bytes"));
  }
  if (page_bytes != 0 && page_bytes < cma_page_bytes(world.size)) {
    return Status::error(
        Code::kInvalidArgument,
        cat("cma communicator of ", counted(world.size, "rank"), ": ", page_bytes,
            " shared bytes are given, ", cma_page_bytes(world.size), " are needed"));
  }
  return {};
}

/// Allocates this rank's mapping and returns the hello that describes it.
Result<CmaHello> introduce(CmaGroup& group) {
  CmaHello mine;
  if (::getrandom(&mine.nonce, sizeof mine.nonce, 0) != sizeof mine.nonce) {
    return Status::error(Code::kInternal, "getrandom for a rank's nonce", errno);
  }
  SHOAL_ASSIGN_OR_RETURN(group.memory,
                         PrivateMemory::create(cma_rank_bytes(group.world.size, group.slot_bytes)));
  group.control().nonce = mine.nonce;
  mine.address = reinterpret_cast<uint64_t>(group.memory.data());
  mine.slot_bytes = group.slot_bytes;
  mine.pid = ::getpid();
  mine.rank = group.world.rank;
  mine.world_size = group.world.size;
  mine.has_page = group.page.size() > 0 ? 1 : 0;
  mine.cpus = calling_thread_cpus();
  return mine;
}

/// Returns a peer's hello if it has the same settings as this rank's.
Result<CmaHello> accept(const std::string& bytes, const CmaHello& mine, int rank) {
  CmaHello theirs;
  if (bytes.size() == sizeof theirs) std::memcpy(&theirs, bytes.data(), sizeof theirs);
  if (bytes.size() != sizeof theirs || theirs.magic != CmaHello::kMagic || theirs.rank != rank ||
      theirs.world_size != mine.world_size || theirs.slot_bytes != mine.slot_bytes ||
      theirs.has_page != mine.has_page) {
    return Status::error(Code::kInvalidArgument, cat("cma handshake: rank ", rank,
                                                     " has other settings than rank ", mine.rank));
  }
  return theirs;
}

Status reading_failed(int rank, int pid, int error) {
  const std::string what =
      cat("read the memory of rank ", rank, " (process ", pid, ") with process_vm_readv");
  if (error == EPERM || error == ENOSYS) {
    return Status::error(
        Code::kPermissionDenied,
        cat(what,
            ": forbidden by seccomp, kernel.yama.ptrace_scope, another user, or a user namespace"),
        error);
  }
  return Status::error(Code::kUnavailable, what, error);
}

Result<std::vector<CmaHello>> accept_all(const std::vector<std::string>& all, const CmaHello& mine,
                                         World world) {
  if (all.size() != static_cast<size_t>(world.size)) {
    return Status::error(Code::kInternal,
                         cat("cma handshake: ", all.size(), " of ", counted(world.size, "rank")));
  }
  std::vector<CmaHello> hellos;
  for (int rank = 0; rank < world.size; ++rank) {
    SHOAL_ASSIGN_OR_RETURN(const CmaHello theirs,
                           accept(all[static_cast<size_t>(rank)], mine, rank));
    hellos.push_back(theirs);
  }
  return hellos;
}

}  // namespace

size_t cma_rank_bytes(int world_size, size_t slot_bytes) {
  return kCmaControlBytes + (2 + static_cast<size_t>(world_size) - 1) * slot_bytes;
}

size_t cma_page_bytes(int world_size) {
  return static_cast<size_t>(world_size) * sizeof(RankControl);
}

Result<std::unique_ptr<Communicator>> open_cma_communicator(World world, int page_fd,
                                                            size_t page_bytes, size_t slot_bytes,
                                                            int64_t timeout_ms,
                                                            const Exchange& exchange,
                                                            Interrupted interrupted) {
  SHOAL_RETURN_IF_ERROR(check(world, page_bytes, slot_bytes));
  auto group = std::make_unique<CmaGroup>();
  group->world = world;
  group->slot_bytes = slot_bytes;
  if (page_bytes != 0) {
    SHOAL_ASSIGN_OR_RETURN(group->page, ShmSegment::open(page_fd, page_bytes));
  }
  // Under Yama scope 1 only an ancestor, or a process declared with PR_SET_PTRACER, may read our
  // memory. Ranks are siblings, so each declares the parent, which admits all its descendants.
  // Without Yama the call fails harmlessly.
  ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(::getppid()), 0, 0, 0);
  SHOAL_ASSIGN_OR_RETURN(const CmaHello mine, introduce(*group));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                         exchange(std::string(reinterpret_cast<const char*>(&mine), sizeof mine)));
  SHOAL_ASSIGN_OR_RETURN(std::vector<CmaHello> hellos, accept_all(all, mine, world));
  group->peers = CmaPeers(std::move(hellos));
  for (int rank = 0; rank < world.size; ++rank) {
    if (const int error = group->peers.check(rank); error != 0) {
      return reading_failed(rank, group->peers.hello(rank).pid, error);
    }
  }
  SlotSettings settings{"cma", world, slot_bytes, timeout_ms, std::move(interrupted)};
  const CmaGroup& kept = *group;
  if (page_bytes == 0) {
    return std::unique_ptr<Communicator>(std::make_unique<SlotCommunicator<PolledFlags, CmaSlots>>(
        std::move(settings), CmaSlots(std::move(group)), PolledFlags(kept)));
  }
  return std::unique_ptr<Communicator>(std::make_unique<SlotCommunicator<SharedFlags, CmaSlots>>(
      std::move(settings), CmaSlots(std::move(group)), SharedFlags(world, kept.page.data())));
}

}  // namespace shoal
