#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "server/host/engine_plan.h"

namespace shoal {

/// Hashes the weights of a model while its ranks load them, so that the pages are read from the
/// disk only once. The hash covers every byte, because a fingerprint that two models share would
/// tell a client that answers may be compared which may not.
class ModelFingerprint {
 public:
  /// Begins to read, on a thread of its own if there can be one. The files must stay open until
  /// finish().
  explicit ModelFingerprint(const ModelFiles& files);
  ~ModelFingerprint();  ///< does not wait for the rest of the files

  /// Waits for the hash and returns the fingerprint of the answers: of the weights, config.json,
  /// the type that they are computed in, the device and the arithmetic. "fp_" and 16 hexadecimal
  /// digits. DATA_LOSS: a file cannot be read.
  Result<std::string> finish(const std::string& dtype, const std::string& arithmetic);

 private:
  void read_weights();

  std::vector<WatchedFile> files_;
  const std::string config_;
  uint64_t hash_ = 0;
  Status failure_;
  std::atomic<bool> stop_ = false;  // nobody wants the hash any more
  std::thread thread_;
};

/// A hash of bytes that go on from a hash of those before them.
uint64_t hash_bytes(uint64_t before, const char* bytes, size_t count);

}  // namespace shoal
