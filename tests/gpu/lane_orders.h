#pragma once
#include <cstdlib>
#include <string>

#include "runtime/base/cat.h"

namespace shoal::gpu {

/// Random orders beside forward and reverse, where every order is tried.
inline constexpr int kAllSeeds = 20;

/// Calls body(number of the order) once for each order in which the lanes of the emulated device
/// can take turns: forward, reverse, and one random order for each seed. Returns the first text
/// that is not empty, with its order, or "" if there is none.
template <typename Body>
std::string in_lane_orders(int seeds, const Body& body) {
  for (int order = -2; order < seeds; ++order) {
    const std::string name = order == -2   ? "forward"
                             : order == -1 ? "reverse"
                                           : std::to_string(order);
    ::setenv("EMULATED_GPU_ORDER", name.c_str(), 1);
    if (const std::string wrong = body(order); !wrong.empty())
      return cat("order ", name, ": ", wrong);
  }
  return "";
}

/// Lets the emulated device's asynchronous copies come as late as they may, or as early. Returns
/// the word for it.
inline const char* let_copies_come(bool late) {
  const char* const word = late ? "late" : "early";
  ::setenv("EMULATED_GPU_COPIES", word, 1);
  return word;
}

}  // namespace shoal::gpu
