#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "runtime/base/status.h"

namespace shoal::shmtest {

/// A memory cgroup of our own, v2 or v1, below or beside the one that this process is in. It
/// changes no setting of the machine. It is removed with the object, once no process is in it.
class MemoryCgroup {
 public:
  MemoryCgroup() = default;
  MemoryCgroup(MemoryCgroup&& other) noexcept
      : folder_(std::exchange(other.folder_, "")), v2_(other.v2_) {}
  MemoryCgroup& operator=(MemoryCgroup&& other) noexcept {
    std::swap(folder_, other.folder_);
    std::swap(v2_, other.v2_);
    return *this;
  }
  ~MemoryCgroup();

  /// Error: FAILED_PRECONDITION if there is no memory controller, or no permission to make a group.
  static Result<MemoryCgroup> create(uint64_t limit_bytes);

  bool exists() const { return !folder_.empty(); }
  /// Moves the calling process into the group.
  Status join() const;
  uint64_t oom_kills() const;

 private:
  MemoryCgroup(std::string folder, bool v2) : folder_(std::move(folder)), v2_(v2) {}

  std::string folder_;
  bool v2_ = false;
};

}  // namespace shoal::shmtest
