#pragma once
#include <cstdint>
#include <vector>

#include "runtime/engine/request.h"

namespace shoal {

/// One request while the scheduler has it. Between steps computed < tokens.size(). A decode lacks
/// one token and has others in the cache; everything else is a prompt, or is prefilled again.
struct Sequence {
  EngineRequest request;        ///< its prompt has moved to tokens
  std::vector<int32_t> tokens;  ///< prompt, then output
  int32_t prompt_tokens = 0;
  int32_t computed = 0;         ///< positions whose keys and values are in the cache
  std::vector<int32_t> blocks;  ///< cover [0, computed + scheduled)
  int32_t scheduled = 0;        ///< tokens of it in the current plan
  bool running = false;         ///< admitted, and not preempted since
  bool lost_blocks = false;     ///< it had begun, and waits to begin again
  uint64_t arrival = 0;         ///< smaller: it was added earlier
  int32_t overtaken = 0;        ///< how many later ones began their prompt before it ended its own
  int32_t preempted = 0;        ///< how often it lost its blocks to another sequence
  /// Where it stood when seats were given for the present step; 0: it was not looked at.
  int32_t place = 0;

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  int32_t missing() const { return size() - computed; }
  int32_t output_tokens() const { return size() - prompt_tokens; }
  bool decodes() const { return computed > 0 && missing() == 1; }
};

}  // namespace shoal
