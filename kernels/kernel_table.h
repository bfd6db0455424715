#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "kernels/args.h"
#include "runtime/base/status.h"

namespace shoal {

/// One kernel set. All sets give the same bits, for any batch, any split into parts and any number
/// of ranks, except that the bits of a NaN may differ between sets. Several threads may
/// call the functions at once if their parts do not overlap, and each must have called
/// set_float_environment.
struct KernelTable {
  const char* name;  ///< value of --cpu-kernels: reference, avx2, neon, ...

  void (*embed)(const EmbedArgs&, int64_t token_begin, int64_t token_end);
  void (*rms_norm)(const RmsNormArgs&, int64_t row_begin, int64_t row_end);
  void (*matmul)(const MatmulArgs&, int64_t row_begin, int64_t row_end, int panel_begin,
                 int panel_end);
  void (*residual_add)(const ResidualAddArgs&, int64_t row_begin, int64_t row_end);
  /// Takes rows [row_begin, row_end) of the sequence, counted from its first row.
  void (*qkv)(const QkvArgs&, const SequenceRows&, int row_begin, int row_end);
  void (*attention)(const AttentionArgs&, int row_begin, int row_end, int kv_head_begin,
                    int kv_head_end);
  void (*silu_mul)(const SiluMulArgs&, int64_t row_begin, int64_t row_end);
  /// acc[i] += b[i], which folds two nodes of the reduction tree. It works on each element alone,
  /// so any split gives the same bits.
  void (*add)(float* acc, const float* b, int64_t count);
  ArgmaxResult (*argmax)(const float* logits, int64_t cols);
  /// sums: one entry for each full or partial chunk of kVocabChunk columns.
  void (*chunk_sums)(const float* logits, int64_t cols, ChunkSum* sums);
  /// XXH3 with 64 bits, as the library xxhash computes it.
  uint64_t (*checksum)(const void* data, size_t bytes);
};

/// The compiled-in sets that this processor can run, best first. "reference" is always the last.
std::vector<const KernelTable*> available_kernels();

/// The names of all compiled-in sets, best first, even of those that this processor cannot run.
std::vector<const char*> built_in_kernels();

/// Returns the set with this name, or the best one for "auto". INVALID_ARGUMENT: unknown name.
/// FAILED_PRECONDITION: the processor lacks what the set needs (the message lists the sets that can
/// run).
Result<const KernelTable*> find_kernels(std::string_view name);

}  // namespace shoal
