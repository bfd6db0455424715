#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "server/host/engine_plan.h"

namespace shoal {

/// Hashes the weights of a model while its ranks load them, so that the pages are read from the
/// disk only once. The hash covers every byte, because a fingerprint that two models share would
/// tell a client that answers may be compared which may not. A thread that hangs at a file whose
/// file system is gone is left behind with all that it uses.
class ModelFingerprint {
 public:
  /// Begins to read, on a thread of its own if there can be one. The files must stay open until
  /// finish().
  explicit ModelFingerprint(const ModelFiles& files);
  ~ModelFingerprint();  ///< does not wait for the rest of the files

  /// Waits for the hash and returns the fingerprint of the answers: of the weights, config.json,
  /// the type that they are computed in, the device and the arithmetic. "fp_" and 16 hexadecimal
  /// digits. DATA_LOSS: a file cannot be read; ABORTED (Fault::kModelChanged): none of its bytes
  /// has come for answer_s, which counts as two seconds if it is less.
  Result<std::string> finish(const std::string& dtype, const std::string& arithmetic,
                             double answer_s);

 private:
  class Reading;

  std::unique_ptr<Reading> reading_;  // what the thread works with
  const std::string config_;
  std::thread thread_;
};

/// A hash of bytes that go on from a hash of those before them.
uint64_t hash_bytes(uint64_t before, const char* bytes, size_t count);

}  // namespace shoal
