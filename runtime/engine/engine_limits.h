#pragma once
#include <cstdint>

namespace shoal {

/// The limits of one start of the engine. The scheduler plans within them, the ranks take memory
/// for them, and the server reports them to clients.
struct EngineLimits {
  int32_t max_num_seqs = 0;            ///< sequences that run at once
  int32_t max_num_batched_tokens = 0;  ///< tokens of one step, of all sequences together
  int32_t kv_blocks = 0;               ///< of kBlockTokens tokens each
  int32_t max_model_len = 0;           ///< prompt and output tokens of one sequence
  friend bool operator==(const EngineLimits&, const EngineLimits&) = default;
};
template <typename Archive>
void fields(Archive& archive, EngineLimits& l) {
  archive(l.max_num_seqs, l.max_num_batched_tokens, l.kv_blocks, l.max_model_len);
}

}  // namespace shoal
