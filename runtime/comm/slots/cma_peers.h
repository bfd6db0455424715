#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <sys/uio.h>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/world.h"
#include "runtime/comm/spin.h"

namespace shoal {

/// A private anonymous mapping, all pages of which are present. The destructor unmaps it, so that a
/// peer that reads it too late gets an error instead of unrelated bytes. Move-only.
class PrivateMemory {
 public:
  PrivateMemory() = default;
  PrivateMemory(PrivateMemory&& other) noexcept;
  PrivateMemory& operator=(PrivateMemory&& other) noexcept;
  ~PrivateMemory();
  /// RESOURCE_EXHAUSTED: no address space or memory is left.
  static Result<PrivateMemory> create(size_t bytes);
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// What a rank tells the others about itself before they can read its memory. All ranks run the
/// same program on the same machine, so the memory layout is the format.
struct CmaHello {
  uint64_t magic = kMagic;
  /// Also stored at `address`, which proves that the memory read there is this rank's.
  uint64_t nonce = 0;
  uint64_t address = 0;  ///< where its mapping starts
  uint64_t slot_bytes = 0;
  int32_t pid = 0;
  int32_t rank = 0;
  int32_t world_size = 0;
  int32_t has_page = 0;  ///< 1 if its control words are in a shared page
  CpuMask cpus{};

  static constexpr uint64_t kMagic = 0x02'61'6d'63'6f'68'73;  // "shocma" and a version
};

/// Reads the ranks' memory with process_vm_readv, which the kernel must permit. The reader must
/// have the same user and the same pid namespace as the owner of the memory. Under Yama scope 1 the
/// owner must also have named a process with PR_SET_PTRACER, and the reader must descend from that
/// one.
class CmaPeers {
 public:
  explicit CmaPeers(std::vector<CmaHello> hellos) : hellos_(std::move(hellos)) {}

  const CmaHello& hello(int rank) const { return hellos_[rank]; }

  /// Fills `to` from `offset` in the rank's mapping. Returns 0 or an errno: ESRCH or EFAULT if the
  /// rank has gone, EPERM if reading is forbidden.
  int read(int rank, size_t offset, void* to, size_t bytes) const;
  /// Reads several pieces at once, the same number on both sides and at most IOV_MAX. from_offsets
  /// count from the start of the rank's mapping, and are changed into addresses. Returns the same
  /// errors as read.
  int read_pieces(int rank, std::span<const iovec> to, std::span<iovec> from_offsets) const;
  /// Returns 0 if the rank exists and the memory at its address is its own. Returns the same errors
  /// as read.
  int check(int rank) const;

 private:
  std::vector<CmaHello> hellos_;
};

}  // namespace shoal
