#pragma once
#include <string>
#include <vector>

#include "tests/emulator/tensor_core.h"
#include "tests/gpu/paged_problem.h"

namespace shoal::gpu {

/// The heads of a device.
struct Heads {
  std::vector<int> begin;  ///< [kv_heads + 1], as ShoalAttention::head_begin
  int head_dim;
  int window;
  Dtype type = Dtype::kBf16;  ///< of the cache
  int count() const { return begin.back(); }
  int kv_heads() const { return static_cast<int>(begin.size()) - 1; }
  int columns() const { return count() * head_dim; }
  float scale() const;
  std::string text() const;
};

/// q, k and v of every position of some sequences, whatever steps they are computed in, as numbers
/// that their types hold exactly.
struct Tokens {
  int positions;
  std::vector<float> q;     ///< [sequences][positions][heads * head_dim]
  std::vector<float> k, v;  ///< [sequences][positions][kv_heads * head_dim]
};
/// q is `sharpness` times as large as k, so that the softmax is more or less even.
Tokens make_tokens(const Heads& heads, int sequences, int positions, uint64_t seed,
                   float sharpness = 1);

/// A device that has only the query heads [begin, end) of another one. The cut between the two may
/// be inside the group of heads that share a kv head.
struct Share {
  Heads heads;
  Tokens tokens;
};
Share share_of(const Heads& heads, const Tokens& tokens, int begin, int end);

inline int64_t out_stride_of(const Heads& heads) {
  return heads.columns() + 24;
}

/// The output of a step [rows][out_stride_of], computed in a given way or, if it is -1, in the one
/// that attention() chooses (-2: with chunks to split). The cache holds NaN where no row of the
/// step sees a key, and whole blocks that are not seen do not exist.
struct Attended {
  std::string wrong;
  std::vector<float> out;
};
Attended attend(OneDevice& one, const Heads& heads, const Tokens& tokens, const PagedStep& step,
                int way);
/// The same by splitting, with room for this many chunks.
Attended attend_with_room(OneDevice& one, const Heads& heads, const Tokens& tokens,
                          const PagedStep& step, int chunks);

/// Several steps of the same shape by the same arguments, as a recorded launch would compute them:
/// only what is in device memory changes from one to the next. The last has the most chunks.
std::vector<Attended> attend_again(OneDevice& one, const Heads& heads, const Tokens& tokens,
                                   const std::vector<PagedStep>& steps);

/// The same by a plain loop over the type's arithmetic, for each row alone.
std::vector<float> expected_step(const emulator::TensorCore& core, const Heads& heads,
                                 const Tokens& tokens, const PagedStep& step);

/// Whether the columns of a row are the softmax in double, within what rounding P and the result
/// may lose. "" or the first that is not.
std::string compare_with_double(const Heads& heads, const Tokens& tokens, int sequence,
                                int position, const float* row);

}  // namespace shoal::gpu
