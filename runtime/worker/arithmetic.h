#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/kernel_table.h"
#include "runtime/base/status.h"
#include "runtime/rank/rank_work.h"

namespace shoal {

/// What the bits of an answer come from: the kernels, the sum over ranks, the tables of the rotary
/// embedding, and the choice of a token. And the checksum, by which a rank that is started again
/// shows that it has the same weights.
inline constexpr std::array kArithmeticParts = {
    "embed",    "rms_norm",  "matmul_f32", "matmul_f16", "matmul_bf16", "residual_add",
    "qkv",      "attention", "silu_mul",   "add",        "argmax",      "chunk_sums",
    "checksum", "tree_sum",  "rotary",     "sampler"};

/// A hash of what each part gives for fixed inputs. It is the same for every kernel set, processor
/// and compiler, because every answer is.
struct ArithmeticFingerprint {
  std::array<uint64_t, kArithmeticParts.size()> parts{};

  /// One number for all parts.
  uint64_t value() const;
  /// value() as sixteen hexadecimal digits.
  std::string text() const;
  friend bool operator==(const ArithmeticFingerprint&, const ArithmeticFingerprint&) = default;
};
template <typename Archive>
void fields(Archive& archive, ArithmeticFingerprint& f) {
  for (uint64_t& part : f.parts) archive(part);
}

/// Computes the fingerprint on this processor. It takes a few milliseconds on an optimised build.
/// Precondition: the thread has called set_float_environment(). RESOURCE_EXHAUSTED: no memory.
Result<ArithmeticFingerprint> compute_fingerprint(const KernelTable& kernels);

/// The fingerprint that every build of this version must have. A change of it is a change of all
/// answers, which needs a reason in the change log.
const ArithmeticFingerprint& expected_fingerprint();

/// Computes this rank's fingerprint, lets all ranks see it, and compares it with the others' and
/// with expected_fingerprint(). INTERNAL: this rank's differs; the message names the first part
/// that does, with its values here, in the other ranks and in the build. A rank whose own values
/// are right succeeds, so that the rank that is reported is the wrong one.
Status check_arithmetic(const KernelTable& kernels, RankContext& context);

}  // namespace shoal
