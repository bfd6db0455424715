#pragma once
#include <string>
#include <string_view>

#include "runtime/base/cat.h"

namespace shoal {

/// "1 rank", "2 ranks", "0 ranks": a number with its noun, for messages. `several` is the noun's
/// plural if it is not the noun with an s.
template <typename Number>
std::string counted(Number number, std::string_view noun, std::string_view several = "") {
  if (number == 1) return cat(number, ' ', noun);
  return several.empty() ? cat(number, ' ', noun, 's') : cat(number, ' ', several);
}

}  // namespace shoal
