#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/kernels/kernel_test.h"

namespace shoal {
namespace {

struct Shape {
  int tokens = 150;
  int head_dim = 64;
  std::vector<int32_t> head_begin = {0, 3, 4};  // 3 heads read kv head 0, one reads kv head 1
  int window = 0;
  Dtype cache = Dtype::kF32;
  Dtype out = Dtype::kF32;
  bool bias = false;
  bool norm = false;
  int poisoned_token = -1;  // the k and v of this token are NaN
  int heads() const { return head_begin.back(); }
  int kv_heads() const { return static_cast<int>(head_begin.size()) - 1; }
  int qkv_columns() const { return (heads() + 2 * kv_heads()) * head_dim; }
};

/// How a sequence is computed. None of this may change the bits of the result.
struct Way {
  std::vector<int> steps;       // tokens of each step
  uint32_t block_seed = 0;      // 0: blocks are in order; otherwise their order is shuffled
  int rows_per_call = 1 << 20;  // rows that one call of the kernels gets
  int row_begin = 0;            // the row at which the sequence starts within the step
};

/// Runs a sequence of random q, k, v through qkv and attention, step by step. The cache is NaN in
/// places that were not written, and a step gets only the blocks that it needs. Returns [tokens,
/// heads * head_dim].
std::vector<float> run(const KernelTable& kernels, const Shape& shape, const Way& way) {
  const int d = shape.head_dim, half = d / 2, columns = shape.qkv_columns();
  const std::vector<float> qkv = random_floats(static_cast<size_t>(shape.tokens * columns), 31, 3),
                           bias = random_floats(static_cast<size_t>(columns), 32),
                           q_norm = random_floats(static_cast<size_t>(d), 33, 2),
                           k_norm = random_floats(static_cast<size_t>(d), 34, 2);
  const int blocks = (shape.tokens + kBlockTokens - 1) / kBlockTokens, spare = 3;
  std::vector<int32_t> order(static_cast<size_t>(blocks + spare));
  std::iota(order.begin(), order.end(), 0);
  if (way.block_seed != 0) {
    std::mt19937 engine(way.block_seed);
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[engine() % (i + 1)]);
  }
  KvLayer cache{.dtype = shape.cache, .kv_heads = shape.kv_heads(), .head_dim = d};
  const auto cache_elements =
      static_cast<size_t>(cache.tile_elements() * (blocks + spare) * shape.kv_heads());
  Elements memory(shape.cache, std::vector<float>(cache_elements, std::nanf("")));
  cache.data = memory.data();

  std::vector<float> result;
  int position = 0;
  for (int rows : way.steps) {
    const int step_rows = way.row_begin + rows;
    std::vector<float> x(static_cast<size_t>(step_rows * columns)),
        cos(static_cast<size_t>(step_rows * half)), sin(cos.size());
    for (int r = 0; r < rows; ++r) {
      std::copy_n(qkv.begin() + (position + r) * columns, columns,
                  x.begin() + (way.row_begin + r) * columns);
      if (position + r == shape.poisoned_token) {
        const auto row = x.begin() + (way.row_begin + r) * columns;
        std::fill(row + shape.heads() * d, row + columns, std::nanf(""));
      }
      for (int i = 0; i < half; ++i) {
        const float angle = static_cast<float>(position + r) *
                            std::pow(1e4f, -2.0f * static_cast<float>(i) / static_cast<float>(d));
        cos[static_cast<size_t>((way.row_begin + r) * half + i)] = std::cos(angle);
        sin[static_cast<size_t>((way.row_begin + r) * half + i)] = std::sin(angle);
      }
    }
    // Blocks after the step's last token do not exist yet, and blocks that none of its rows can see
    // may be gone.
    std::vector<int32_t> table(static_cast<size_t>(blocks), -1'000'000);
    const int first_seen = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
    for (int b = first_seen / kBlockTokens; b <= (position + rows - 1) / kBlockTokens; ++b) {
      table[static_cast<size_t>(b)] = order[static_cast<size_t>(b)];
    }
    const SequenceRows sequence{.block_table = table.data(),
                                .first_position = position,
                                .row_begin = way.row_begin,
                                .rows = rows};
    const QkvArgs qkv_args{.qkv = x.data(),
                           .qkv_stride = columns,
                           .heads = shape.heads(),
                           .bias = shape.bias ? bias.data() : nullptr,
                           .q_norm = shape.norm ? q_norm.data() : nullptr,
                           .k_norm = shape.norm ? k_norm.data() : nullptr,
                           .eps = 1e-6f,
                           .cos = cos.data(),
                           .sin = sin.data(),
                           .cache = cache};
    const int64_t out_stride = shape.heads() * d + 5;
    Elements out(shape.out, static_cast<size_t>(step_rows * out_stride));
    const AttentionArgs args{.q = x.data(),
                             .q_stride = columns,
                             .heads = shape.heads(),
                             .head_begin = shape.head_begin.data(),
                             .cache = cache,
                             .sequence = sequence,
                             .window = shape.window,
                             .scale = 1.0f / std::sqrt(static_cast<float>(d)),
                             .out = out.data(),
                             .out_dtype = shape.out,
                             .out_stride = out_stride};
    for (int r = 0; r < rows; r += way.rows_per_call) {
      kernels.qkv(qkv_args, sequence, r, std::min(r + way.rows_per_call, rows));
    }
    for (int r = 0; r < rows; r += way.rows_per_call) {
      for (int g = shape.kv_heads() - 1; g >= 0; --g) {
        kernels.attention(args, r, std::min(r + way.rows_per_call, rows), g, g + 1);
      }
    }
    for (int r = way.row_begin; r < step_rows; ++r) {
      for (int i = 0; i < shape.heads() * d; ++i)
        result.push_back(out.get(static_cast<size_t>(r * out_stride + i)));
    }
    position += rows;
  }
  EXPECT_EQ(position, shape.tokens);
  return result;
}

std::vector<int> steps_of(int tokens, int chunk) {
  std::vector<int> steps;
  for (int left = tokens; left > 0; left -= chunk) steps.push_back(std::min(left, chunk));
  return steps;
}

std::string describe(const Shape& shape) {
  return cat("head_dim ", shape.head_dim, ", ", shape.heads(), " heads, window ", shape.window,
             ", cache ", dtype_name(shape.cache));
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (int head_dim : {8, 10, 16, 64, 80, 128})
    all.push_back({.tokens = head_dim > 64 ? 80 : 150, .head_dim = head_dim});
  for (int window : {1, 5, 16, 64, 65, 100, 1000})
    all.push_back({.head_dim = 20, .window = window});
  for (Dtype cache : kAllDtypes) {
    all.push_back({.tokens = 70,
                   .head_dim = 36,
                   .cache = cache,
                   .out = Dtype::kBf16,
                   .bias = true,
                   .norm = true});
  }
  all.push_back({.tokens = 66,
                 .head_dim = 32,
                 .head_begin = {0, 1, 1, 9, 11},
                 .window = 40});  // a kv head that no query head reads
  all.push_back({.tokens = 70,
                 .head_dim = 48,
                 .head_begin = {0, 4, 9, 15, 22, 30, 43},  // 4 to 8 heads of a kv head, and 13
                 .cache = Dtype::kBf16});
  all.push_back({.tokens = 17, .head_dim = kMaxHeadDim, .head_begin = {0, 13}});
  all.push_back({.tokens = 5, .head_dim = kMaxHeadDim - 20, .head_begin = {0, 13}});
  return all;
}

class AttentionTest : public KernelTest {};

TEST_P(AttentionTest, BitsDoNotDependOnStepsBlocksOrParts) {
  for (const Shape& shape : shapes()) {
    const std::vector<float> whole = run(kernels(), shape, {.steps = {shape.tokens}});
    EXPECT_TRUE(std::none_of(whole.begin(), whole.end(), [](float v) { return std::isnan(v); }))
        << describe(shape);
    const Way ways[] = {
        {.steps = steps_of(shape.tokens, 1)},
        {.steps = steps_of(shape.tokens, 7), .block_seed = 1},
        {.steps = steps_of(shape.tokens, 64), .block_seed = 2, .row_begin = 3},
        {.steps = {shape.tokens - 3, 1, 2}, .block_seed = 3, .rows_per_call = 5},
        {.steps = {shape.tokens}, .block_seed = 4, .rows_per_call = 1},
    };
    for (const Way& way : ways) {
      EXPECT_TRUE(same_bits(run(kernels(), shape, way), whole))
          << describe(shape) << ": " << way.steps.size() << " steps, block seed " << way.block_seed
          << ", " << way.rows_per_call << " rows a call";
    }
  }
}

TEST_P(AttentionTest, HasTheBitsOfTheReference) {
  for (const Shape& shape : shapes()) {
    EXPECT_TRUE(same_bits(run(kernels(), shape, {.steps = {shape.tokens}}),
                          run(reference(), shape, {.steps = {shape.tokens}})))
        << describe(shape);
  }
}

TEST_P(AttentionTest, AKeyThatARowDoesNotSeeCannotTouchIt) {
  for (int head_dim : {16, 36, 128}) {
    for (int window : {0, 10}) {
      for (int poisoned : {0, 63, 70, 99}) {
        Shape shape{.tokens = 100, .head_dim = head_dim, .window = window};
        const std::vector<float> clean = run(kernels(), shape, {.steps = {shape.tokens}});
        shape.poisoned_token = poisoned;
        const std::vector<float> whole = run(kernels(), shape, {.steps = {shape.tokens}});
        const auto columns = static_cast<size_t>(shape.heads() * head_dim);
        for (int token = 0; token < shape.tokens; ++token) {
          const bool sees = token >= poisoned && (window == 0 || token < poisoned + window);
          for (size_t i = static_cast<size_t>(token) * columns;
               i < (static_cast<size_t>(token) + 1) * columns; ++i) {
            ASSERT_EQ(std::isnan(whole[i]), sees)
                << describe(shape) << ": token " << token << ", poison " << poisoned;
            if (!sees) {
              ASSERT_EQ(whole[i], clean[i]);
            }
          }
        }
      }
    }
  }
}

/// Compares with the plain formula in double precision. The q, k, v have no bias, no norm, and no
/// rotation (because every position is 0).
TEST_P(AttentionTest, IsSoftmaxOfScoresTimesValues) {
  const int tokens = 100, d = 12, window = 70;
  const int columns = 3 * d;
  std::vector<float> x = random_floats(static_cast<size_t>(tokens * columns), 9, 4);
  const std::vector<float> original = x, cos(static_cast<size_t>(tokens * d / 2), 1.0f),
                           sin(cos.size(), 0.0f);
  std::vector<int32_t> table(7);
  std::iota(table.begin(), table.end(), 0);
  KvLayer cache{.kv_heads = 1, .head_dim = d};
  std::vector<float> memory(static_cast<size_t>(cache.tile_elements() * 7), std::nanf(""));
  cache.data = memory.data();
  const SequenceRows sequence{.block_table = table.data(), .rows = tokens};
  kernels().qkv({.qkv = x.data(),
                 .qkv_stride = columns,
                 .heads = 1,
                 .cos = cos.data(),
                 .sin = sin.data(),
                 .cache = cache},
                sequence, 0, tokens);
  EXPECT_TRUE(same_bits(x, original));
  const int32_t head_begin[] = {0, 1};
  std::vector<float> out(static_cast<size_t>(tokens * d));
  kernels().attention({.q = x.data(),
                       .q_stride = columns,
                       .heads = 1,
                       .head_begin = head_begin,
                       .cache = cache,
                       .sequence = sequence,
                       .window = window,
                       .scale = 0.25f,
                       .out = out.data(),
                       .out_stride = d},
                      0, tokens, 0, 1);
  const auto value = [&](int token, int part, int i) {
    return static_cast<double>(x[static_cast<size_t>(token * columns + part * d + i)]);
  };
  for (int t = 0; t < tokens; ++t) {
    const int first = std::max(0, t - window + 1);
    std::vector<double> p;
    double max = -1e300, sum = 0;
    for (int key = first; key <= t; ++key) {
      double score = 0;
      for (int i = 0; i < d; ++i) score += value(t, 0, i) * value(key, 1, i);
      p.push_back(score * 0.25);
      max = std::max(max, p.back());
    }
    for (double& v : p) sum += v = std::exp(v - max);
    for (int i = 0; i < d; ++i) {
      double want = 0;
      for (int key = first; key <= t; ++key)
        want += p[static_cast<size_t>(key - first)] * value(key, 2, i) / sum;
      ASSERT_NEAR(out[static_cast<size_t>(t * d + i)], want, 1e-4) << "token " << t;
    }
  }
}

TEST_P(AttentionTest, RotatesHalvesAndKeepsValues) {
  const int d = 10, columns = 3 * d;  // half of it is odd
  std::vector<float> x = random_floats(static_cast<size_t>(columns), 4);
  const std::vector<float> before = x;
  const std::vector<float> cos = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f},
                           sin = {0.9f, 0.8f, 0.7f, 0.6f, 0.55f};
  KvLayer cache{.kv_heads = 1, .head_dim = d};
  std::vector<float> memory(static_cast<size_t>(cache.tile_elements()), 5.0f);
  cache.data = memory.data();
  const int32_t block = 0;
  kernels().qkv({.qkv = x.data(),
                 .qkv_stride = columns,
                 .heads = 1,
                 .cos = cos.data(),
                 .sin = sin.data(),
                 .cache = cache},
                {.block_table = &block, .first_position = 6, .rows = 1}, 0, 1);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(x[i], before[i] * cos[i] - before[i + 5] * sin[i], 1e-6);
    EXPECT_NEAR(x[i + 5], before[i + 5] * cos[i] + before[i] * sin[i], 1e-6);
  }
  for (size_t i = 0; i < 10; ++i) {
    for (size_t slot = 0; slot < 16; ++slot) {
      EXPECT_EQ(memory[i * 16 + slot], slot == 6 ? x[10 + i] : 5.0f) << "k";
      EXPECT_EQ(memory[160 + slot * 10 + i], slot == 6 ? before[20 + i] : 5.0f) << "v";
    }
  }
}

SHOAL_FOR_EVERY_SET(AttentionTest);

}  // namespace
}  // namespace shoal
