#pragma once
#include <cstdint>
#include <string>

#include "runtime/base/cat.h"

namespace shoal {

enum class Op : uint8_t { kAllReduce = 1, kGather = 2, kBarrier = 3 };

/// Packs the op and its size (in floats or bytes, below 2^56) into one word. Both must be the same
/// on all ranks in every step.
constexpr uint64_t make_tag(Op op, uint64_t amount) {
  return uint64_t{static_cast<uint8_t>(op)} << 56 | amount;
}

/// Returns text such as "all_reduce of 2048 floats", or "no collective" if the word is not a tag.
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
