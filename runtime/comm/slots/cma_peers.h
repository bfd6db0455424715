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

/// A private anonymous mapping, every page of it present. Unmapped by its destructor, so that a
/// peer that reads it too late gets an error rather than somebody else's bytes. Move-only.
class PrivateMemory {
 public:
  PrivateMemory() = default;
  PrivateMemory(PrivateMemory&& other) noexcept;
  PrivateMemory& operator=(PrivateMemory&& other) noexcept;
  ~PrivateMemory();
  /// RESOURCE_EXHAUSTED: no address space or memory.
  static Result<PrivateMemory> create(size_t bytes);
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// What a rank tells the others of itself before they can read its memory. Same machine and same
/// program: memory layout is the format.
struct CmaHello {
  uint64_t magic = kMagic;
  uint64_t nonce = 0;    ///< stands at `address`: proof that what is read there is this rank's
  uint64_t address = 0;  ///< of its mapping
  uint64_t slot_bytes = 0;
  int32_t pid = 0;
  int32_t rank = 0;
  int32_t world_size = 0;
  int32_t has_page = 0;  ///< whether its control words are in a shared page
  CpuMask cpus{};

  static constexpr uint64_t kMagic = 0x01'61'6d'63'6f'68'73;  // "shocma" and a version
};

/// Reads the ranks' memory with process_vm_readv. A reading rank must be one that the owner lets
/// look: same user, same pid namespace, and under yama scope 1 a descendant of what the owner named
/// in PR_SET_PTRACER.
class CmaPeers {
 public:
  explicit CmaPeers(std::vector<CmaHello> hellos) : hellos_(std::move(hellos)) {}

  const CmaHello& hello(int rank) const { return hellos_[rank]; }

  /// Fills `to` from `offset` of the rank's mapping. 0, or an errno: ESRCH or EFAULT where the rank
  /// has gone, EPERM where reading is forbidden.
  int read(int rank, size_t offset, void* to, size_t bytes) const;
  /// The same for as many pieces on both sides, up to IOV_MAX; remote addresses count from the
  /// rank's mapping.
  int read_pieces(int rank, std::span<const iovec> to, std::span<iovec> from_offsets) const;
  /// Whether the rank is there and its mapping its own. Errors as read.
  int check(int rank) const;

 private:
  std::vector<CmaHello> hellos_;
};

}  // namespace shoal
