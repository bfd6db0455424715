#pragma once
#include <cstdint>

namespace shoal::SHOAL_ISA {
namespace {

inline constexpr int kLanes = 16;

/// Elements of two bytes. They are structs so that functions can be overloaded for each.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

}  // namespace
}  // namespace shoal::SHOAL_ISA
