#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "tests/emulator/report.h"

/// Ranks whose kernels run at the same time share memory by flags: store_release says that
/// everything that the kernel has written is in memory, and load_acquire says that this has been
/// seen. So flags alone tell whether a slot may be read, and when it may be written again:
/// - What another stream's kernel has written may be read once a flag of that kernel, or of a later
///   one, has been seen.
/// - What another stream's kernel has read may be written once a flag of a later kernel has been
///   seen, because only its end shows that all of its lanes have read.
/// This file checks that for all memory of this process's devices in which flags are, as soon as
/// the first one has been set there. It does not know what the host has waited for, nor kernels of
/// other processes. ThreadSanitizer checks the same by itself, and is not to learn of any order
/// from the locks here, so that under it nothing of this is done.
namespace shoal::emulator {

#ifdef SHOAL_TSAN
inline constexpr bool kFlagsAreFollowed = false;
#else
inline constexpr bool kFlagsAreFollowed = true;
#endif

/// A stream, and how much of the work of other streams it has seen.
class Actor {
 public:
  Actor();
  /// The number of the operation that begins, from 1.
  void begin(uint64_t operation) { operation_ = operation; }

  /// The stream's number, and that of its operation, in one word that is never 0.
  uint64_t moment() const { return (uint64_t{number_} << 48) | operation_; }
  /// Whether a flag has been seen that was set at this moment of another stream, or after it.
  bool has_seen(uint64_t moment) const;

  /// The stream sets a flag. Whoever sees the flag then also knows everything that this stream has
  /// seen and done.
  void tell(const uint64_t* flag) const;
  /// The stream has looked at a flag, and found this value.
  void look(const uint64_t* flag, uint64_t value);

 private:
  const uint32_t number_;
  uint64_t operation_ = 0;
  std::map<uint32_t, uint64_t> seen_;  ///< the last operation of each stream whose flag was seen
  std::unordered_map<const uint64_t*, uint64_t>
      found_;               ///< the value of each flag at the last look
  uint64_t forgotten_ = 0;  ///< how many pieces had gone by then
};
/// The stream whose operation the calling thread runs, or nullptr.
extern thread_local constinit Actor* acting;

/// For one piece of device memory: for each 16 bytes of it, the moment (Actor::moment) of the last
/// read and of the last write. From these it sees whether an access comes before a flag allows it.
class Traces {
 public:
  explicit Traces(size_t bytes) : bytes_(bytes) {}
  /// From now on accesses are followed.
  void begin();
  bool has_begun() const { return begun_.load(std::memory_order_acquire); }

  /// An access by the running kernel to bytes that begin `at` bytes behind the piece's beginning.
  /// One that no flag allows is reported.
  void read(size_t at, size_t bytes, const Place& place);
  void write(size_t at, size_t bytes, const Place& place);

 private:
  struct Last {
    std::atomic<uint64_t> read{0}, written{0};  ///< moments; 0: never
  };
  const size_t bytes_;
  std::once_flag once_;
  std::unique_ptr<Last[]> units_;
  std::atomic<bool> begun_{false};
};

/// The piece has gone, and what was known of flags in it.
void forget_flags(const void* begin, size_t bytes);

}  // namespace shoal::emulator
