#pragma once

namespace shoal {

/// Tokens in one block of the KV cache. The scheduler hands out blocks of this size and attention
/// reads them, so both take the number from here.
inline constexpr int kBlockTokens = 16;

}  // namespace shoal
