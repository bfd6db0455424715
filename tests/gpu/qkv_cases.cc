// What is done to q, k and v before attention has the bits of the CPU's kernels.
#include <cmath>

#include "bench/gpu/rank_processes.h"
#include "kernels/args.h"
#include "kernels/reference/ops.h"
#include "runtime/base/thread_pool.h"
#include "tests/gpu/gpu_cases.h"
#include "tests/gpu/lane_orders.h"
#include "tests/gpu/paged_problem.h"

namespace shoal::gpu {
namespace {

constexpr int kSeconds = 300;
/// Memory that was not written: every byte is 0xff.
const float kPoison = std::nanf("");
constexpr float kEps = 1e-6f;

struct QkvShape {
  int heads, kv_heads, head_dim;
  bool bias, norm;
  int columns() const { return (heads + 2 * kv_heads) * head_dim; }
};
constexpr QkvShape kShapes[] = {
    {1, 1, 16, false, false}, {3, 2, 48, true, false}, {4, 1, 64, false, true},
    {2, 2, 80, true, true},   {5, 1, 128, true, true}, {2, 1, 256, false, true},
    {3, 2, 8, true, true},    {2, 1, 34, true, true},  {5, 2, 20, false, true},
    {40, 3, 16, true, true},  {9, 2, 256, true, true}};
/// It has all parts, and some lanes have nothing of a head.
constexpr const QkvShape& kShapeOfMostOrders = kShapes[3];

struct QkvProblem {
  QkvShape shape;
  Dtype type;
  PagedStep step;
  int positions;
  std::vector<float> qkv, bias, q_norm, k_norm, cos, sin;
  int64_t q_stride() const { return shape.heads * row_elements(shape.head_dim) + 8; }
  size_t q_elements() const { return static_cast<size_t>(step.rows() * q_stride()); }
  /// The sequences hold the positions 30 to 51, 5, 15 to 16, and 64.
  QkvProblem(const QkvShape& of, Dtype of_type)
      : shape(of),
        type(of_type),
        step(make_step({{30, 22}, {5, 1}, {15, 2}, {64, 1}}, 21, true)),
        positions((step.table_stride + 1) * kBlockTokens) {
    const auto d = static_cast<size_t>(shape.head_dim);
    const auto columns = static_cast<size_t>(shape.columns());
    qkv = floats(static_cast<size_t>(step.rows()) * columns, 1);
    bias = floats(columns, 2);
    q_norm = floats(d, 3);
    k_norm = floats(d, 4);
    cos = floats(static_cast<size_t>(positions) * d / 2, 5);
    sin = floats(static_cast<size_t>(positions) * d / 2, 6);
  }
};

struct QkvResult {
  std::vector<float> q, cache;
};
/// What does not begin at a multiple of 16 bytes. kRows: each row of qkv but the first.
enum class Shifted { kNothing, kQkv, kRows, kBias, kQNorm, kKNorm, kCos, kSin };
/// Device memory or host memory in which every byte is 0xff.
std::vector<std::byte> poison_of(size_t elements, Dtype type) {
  return std::vector<std::byte>(elements * dtype_bytes(type), std::byte{0xff});
}

/// Copies the rows into an array in which `unused` elements follow each of them.
std::vector<float> farther_apart(const std::vector<float>& rows, int columns, int unused) {
  std::vector<float> apart;
  const auto step = static_cast<size_t>(columns);
  for (size_t at = 0; at < rows.size(); at += step) {
    apart.insert(apart.end(), &rows[at], &rows[at] + step);
    apart.resize(apart.size() + static_cast<size_t>(unused), kPoison);
  }
  return apart;
}

QkvResult run(Bench& bench, const QkvProblem& problem, Shifted shifted = Shifted::kNothing) {
  const QkvShape& shape = problem.shape;
  const size_t elements = cache_elements(problem.step, shape.kv_heads, shape.head_dim);
  const auto put = [&](const std::vector<float>& values, Shifted as, bool there = true) {
    return there ? bench.put(values, shifted == as ? 1 : 0) : nullptr;
  };
  ShoalQkv args{};
  args.step = put_step(bench, problem.step);
  const std::vector<std::byte> cache = poison_of(elements, problem.type);
  auto* const on_cache = bench.put(cache);
  args.cache = {on_cache, shoal_type(problem.type), shape.kv_heads, shape.head_dim};
  args.heads = shape.heads;
  args.positions = problem.positions;
  args.eps = kEps;
  const int unused = shifted == Shifted::kRows ? 1 : 0;
  args.qkv_stride = shape.columns() + unused;
  args.qkv = put(farther_apart(problem.qkv, shape.columns(), unused), Shifted::kQkv);
  args.bias = put(problem.bias, Shifted::kBias, shape.bias);
  args.q_norm = put(problem.q_norm, Shifted::kQNorm, shape.norm);
  args.k_norm = put(problem.k_norm, Shifted::kKNorm, shape.norm);
  args.cos = put(problem.cos, Shifted::kCos);
  args.sin = put(problem.sin, Shifted::kSin);
  const Dtype of_q = activation_dtype(problem.type);
  const std::vector<std::byte> q = poison_of(problem.q_elements(), of_q);
  auto* const on_q = bench.put(q);
  args.q = on_q;
  args.q_stride = problem.q_stride();
  bench.finish(bench.module().qkv(&args, bench.stream()), "qkv");
  return {decoded(bench.get(on_q, q.size()), of_q),
          decoded(bench.get(on_cache, cache.size()), problem.type)};
}

/// The cache of the CPU's kernel, in which K is [head_dim][kBlockTokens], as that of a device.
void transpose_keys(std::vector<float>& cache, int head_dim) {
  const auto d = static_cast<size_t>(head_dim), tile = 2 * kBlockTokens * d;
  for (size_t at = 0; at < cache.size(); at += tile) {
    const std::vector<float> keys(&cache[at], &cache[at] + kBlockTokens * d);
    for (size_t token = 0; token < kBlockTokens; ++token) {
      for (size_t i = 0; i < d; ++i) cache[at + token * d + i] = keys[i * kBlockTokens + token];
    }
  }
}

/// The rows of a cache as a device has them: padded, with zeros if they were written.
std::vector<float> with_padding(const std::vector<float>& cache, int head_dim) {
  const auto d = static_cast<size_t>(head_dim);
  std::vector<float> padded;
  for (size_t at = 0; at < cache.size(); at += d) {
    padded.insert(padded.end(), &cache[at], &cache[at] + d);
    padded.resize(padded.size() + static_cast<size_t>(row_elements(head_dim)) - d,
                  std::isnan(cache[at]) ? kPoison : 0.0f);
  }
  return padded;
}

/// The angles of each row, as the CPU's kernel wants them. Those of idle rows are not used.
std::vector<float> of_rows(const QkvProblem& problem, const std::vector<float>& table) {
  const auto half = static_cast<size_t>(problem.shape.head_dim / 2);
  std::vector<float> rows;
  for (const int32_t position : problem.step.position) {
    const bool known = position >= 0 && position < problem.positions;
    const float* from = &table[known ? static_cast<size_t>(position) * half : 0];
    rows.insert(rows.end(), from, from + half);
  }
  return rows;
}

QkvResult expected(const QkvProblem& problem) {
  const QkvShape& shape = problem.shape;
  const PagedStep& step = problem.step;
  QkvResult result;
  result.q.resize(problem.q_elements(), kPoison);
  std::vector<std::byte> cache = poison_of(static_cast<size_t>(step.blocks * shape.kv_heads) * 2 *
                                               kBlockTokens * static_cast<size_t>(shape.head_dim),
                                           problem.type);
  std::vector<float> qkv = problem.qkv;
  const std::vector<float> cos = of_rows(problem, problem.cos);
  const std::vector<float> sin = of_rows(problem, problem.sin);
  const QkvArgs args{.qkv = qkv.data(),
                     .qkv_stride = shape.columns(),
                     .heads = shape.heads,
                     .bias = shape.bias ? problem.bias.data() : nullptr,
                     .q_norm = shape.norm ? problem.q_norm.data() : nullptr,
                     .k_norm = shape.norm ? problem.k_norm.data() : nullptr,
                     .eps = kEps,
                     .cos = cos.data(),
                     .sin = sin.data(),
                     .cache = {.data = cache.data(),
                               .dtype = problem.type,
                               .kv_heads = shape.kv_heads,
                               .head_dim = shape.head_dim}};
  for (size_t i = 0; i < step.first_row.size(); ++i) {
    const SequenceRows rows{
        .block_table = &step.block_table[i * static_cast<size_t>(step.table_stride)],
        .first_position = step.position[static_cast<size_t>(step.first_row[i])],
        .row_begin = step.first_row[i],
        .rows = step.row_count[i]};
    reference::qkv(args, rows, 0, rows.rows);
    for (int row = rows.row_begin; row < rows.row_begin + rows.rows; ++row) {
      float* to = &result.q[static_cast<size_t>(row * problem.q_stride())];
      const float* from = &qkv[static_cast<size_t>(row * shape.columns())];
      for (int head = 0; head < shape.heads; ++head) {
        std::fill_n(to, row_elements(shape.head_dim), 0.0f);
        for (int at = 0; at < shape.head_dim; ++at)
          to[at] = rounded_to(*from++, activation_dtype(problem.type));
        to += row_elements(shape.head_dim);
      }
    }
  }
  result.cache = decoded(cache, problem.type);
  transpose_keys(result.cache, shape.head_dim);
  result.cache = with_padding(result.cache, shape.head_dim);
  return result;
}

std::string compare(OneDevice& one, const QkvProblem& problem, Shifted shifted) {
  const QkvResult wanted = expected(problem);
  Bench bench(one);
  const QkvResult got = run(bench, problem, shifted);
  if (!bench.ok()) return bench.wrong();
  const int head_dim = problem.shape.head_dim;
  std::string wrong = first_difference(got.q, wanted.q, problem.q_stride());
  if (wrong.empty()) wrong = first_difference(got.cache, wanted.cache, row_elements(head_dim));
  return wrong.empty() ? "" : cat("head_dim ", head_dim, ": ", wrong);
}

std::string qkv_has_the_cpus_bits(const Options& options, Dtype type) {
  set_float_environment();
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  constexpr int kSeedsWithAll = 2;
  return in_lane_orders(kAllSeeds, [&](int order) -> std::string {
    for (const QkvShape& shape : kShapes) {
      if (order >= kSeedsWithAll && &shape != &kShapeOfMostOrders) continue;
      std::string wrong = compare(*one, QkvProblem(shape, type), Shifted::kNothing);
      if (!wrong.empty()) return wrong;
    }
    return "";
  });
}

/// Each array alone must keep a kernel from loading 16 bytes at once.
std::string any_alignment_will_do(const Options& options) {
  set_float_environment();
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  constexpr QkvShape kWideShapes[] = {{3, 2, 64, true, true}, {2, 1, 256, true, true}};
  for (const QkvShape& shape : kWideShapes) {
    for (const Shifted shifted : {Shifted::kQkv, Shifted::kRows, Shifted::kBias, Shifted::kQNorm,
                                  Shifted::kKNorm, Shifted::kCos, Shifted::kSin}) {
      const std::string wrong = compare(*one, QkvProblem(shape, Dtype::kBf16), shifted);
      if (!wrong.empty()) return cat("shifted ", static_cast<int>(shifted), ", ", wrong);
    }
  }
  return "";
}

/// A row whose position has no rotary angles is left out.
std::string a_table_that_ends_early(const Options& options) {
  set_float_environment();
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  QkvProblem problem(kShapes[1], Dtype::kBf16);
  const QkvResult whole = expected(problem);
  problem.positions = 64;  // the last sequence's row is behind it
  Bench bench(*one);
  const QkvResult got = run(bench, problem);
  if (!bench.ok()) return bench.wrong();
  const auto row = static_cast<size_t>(problem.step.first_row.back());
  const auto stride = static_cast<size_t>(problem.q_stride());
  std::vector<float> q = whole.q;
  std::fill_n(&q[row * stride], stride, kPoison);
  return first_difference(got.q, q, problem.q_stride());
}

}  // namespace

void add_qkv_cases(const Options& options, std::vector<Case>& cases) {
  const auto add = [&](const std::string& name, const std::function<std::string()>& body) {
    cases.push_back({name, [body] { return run_apart(kSeconds, body); }});
  };
  for (const Dtype type : kComputedTypes)
    add("layer/qkv" + suffix_of(type), [=] { return qkv_has_the_cpus_bits(options, type); });
  add("layer/qkv-alignment", [=] { return any_alignment_will_do(options); });
  add("layer/qkv-angles", [=] { return a_table_that_ends_early(options); });
}

}  // namespace shoal::gpu
