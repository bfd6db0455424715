#pragma once
#include <cstdint>
#include <string>

#include "runtime/base/cat.h"

namespace shoal {

enum class Op : uint8_t { kAllReduce = 1, kGather = 2, kBarrier = 3 };

/// Op and size (floats or bytes, below 2^56) in one word; both must agree between the ranks in
/// every step.
constexpr uint64_t make_tag(Op op, uint64_t amount) {
  return uint64_t{static_cast<uint8_t>(op)} << 56 | amount;
}

/// "all_reduce of 2048 floats"; "no collective" for a word that is no tag.
inline std::string tag_text(uint64_t tag) {
  const uint64_t amount = tag & ((uint64_t{1} << 56) - 1);
  switch (static_cast<Op>(tag >> 56)) {
    case Op::kAllReduce:
      return cat("all_reduce of ", amount, " floats");
    case Op::kGather:
      return cat("gather of ", amount, " bytes");
    case Op::kBarrier:
      return "barrier";
  }
  return "no collective";
}

}  // namespace shoal
