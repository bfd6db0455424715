#pragma once
#include "kernels/args.h"

/// Declares the functions of one kernel set in shoal::NAME. KernelTable has their contracts.
#define SHOAL_DECLARE_KERNEL_SET(NAME)                                                     \
  namespace shoal::NAME {                                                                  \
  void embed(const EmbedArgs& args, int64_t token_begin, int64_t token_end);               \
  void rms_norm(const RmsNormArgs& args, int64_t row_begin, int64_t row_end);              \
  void matmul(const MatmulArgs& args, int64_t row_begin, int64_t row_end, int panel_begin, \
              int panel_end);                                                              \
  void residual_add(const ResidualAddArgs& args, int64_t row_begin, int64_t row_end);      \
  void qkv(const QkvArgs& args, const SequenceRows& sequence, int row_begin, int row_end); \
  void attention(const AttentionArgs& args, int row_begin, int row_end, int kv_head_begin, \
                 int kv_head_end);                                                         \
  void silu_mul(const SiluMulArgs& args, int64_t row_begin, int64_t row_end);              \
  void add(float* acc, const float* b, int64_t count);                                     \
  ArgmaxResult argmax(const float* logits, int64_t cols);                                  \
  void chunk_sums(const float* logits, int64_t cols, ChunkSum* sums);                      \
  uint64_t checksum(const void* data, size_t bytes);                                       \
  }
