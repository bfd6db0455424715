#include "tests/emulator/barrier_problems.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <random>
#include <string_view>
#include <thread>
#include <type_traits>

#include "kernels/cuda/entries.h"
#include "runtime/base/kv_block.h"
#include "tests/emulator/on_device.h"
#include "tests/emulator/report.h"

namespace shoal::emulator {
namespace {

template <class T>
std::string bytes_of(const OnDevice<T>& memory) {
  const std::vector<T> values = memory.values();
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// OnDevice({x}) would be memory for x numbers.
struct Number : OnDevice<int32_t> {
  explicit Number(int32_t value) : OnDevice(std::vector<int32_t>{value}) {}
};

/// What a problem's run() returns. error: that of its last launch.
template <class... T>
std::string results(int32_t error, const OnDevice<T>&... memory) {
  EXPECT_EQ(error, cudaSuccess);
  return cudaDeviceSynchronize() == cudaSuccess ? (bytes_of(memory) + ...) : first_report();
}

/// Between -1 and 1.
std::vector<float> draw(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& one : numbers) one = static_cast<float>(random() >> 40) * 0x1p-23F - 1;
  return numbers;
}

/// The same in a type of weights or of a cache. As float16, the bits of a bfloat16 are another
/// number, below 2.
template <class Element>
std::vector<Element> drawn_as(int count, uint64_t seed) {
  std::vector<Element> elements;
  for (const float one : draw(count, seed)) {
    if constexpr (std::is_same_v<Element, float>) {
      elements.push_back(one);
    } else {
      elements.push_back(static_cast<uint16_t>(__float_as_uint(one) >> 16));
    }
  }
  return elements;
}

/// The lines of a file in kernels/cuda that hold the text, but not the other one.
std::vector<std::string> places(const std::string& file, std::string_view text,
                                std::string_view but_not = "\n") {
  std::ifstream source(SHOAL_SOURCE_DIR "/kernels/cuda/" + file);
  std::vector<std::string> found;
  std::string one;
  for (int line = 1; std::getline(source, one); ++line) {
    if (one.find(text) != std::string::npos && one.find(but_not) == std::string::npos)
      found.push_back(file + ":" + std::to_string(line));
  }
  EXPECT_FALSE(found.empty()) << file << ": " << text;
  return found;
}

/// Factors of two leaves, of which the second one is not aligned and ends inside a stage. Both are
/// longer than all stages that a block has under way.
template <class Weight, class Input>
std::string multiply(int32_t type, int shape) {
  constexpr int kOutputs = 70, kRows = 9;
  constexpr int kWeightStride = 576 * 2, kXStride = 1120;
  const OnDevice<Weight> weights(drawn_as<Weight>(kOutputs * kWeightStride, 1));
  const OnDevice<Input> x(drawn_as<Input>(kRows * kXStride, 2));
  const auto scratch_floats = static_cast<int>(shoal_product_scratch_floats(kOutputs, kRows, 2));
  const OnDevice<float> scratch(scratch_floats), y(kRows * kOutputs);
  ShoalProduct product{};
  product.type = type;
  product.outputs = kOutputs;
  product.rows = kRows;
  product.leaves = 2;
  product.leaf[0] = {0, 576, 0, 0, -1};
  product.leaf[1] = {577, 577 + 540, 576, 1, 0};
  product.weights = weights.get();
  product.weight_stride = kWeightStride;
  product.x = x.get();
  product.x_stride = kXStride;
  product.y = y.get();
  product.y_stride = kOutputs;
  product.scratch = scratch.get();
  product.scratch_floats = scratch_floats;
  EXPECT_EQ(cuda::load_product(), cudaSuccess);
  return results(cuda::product_with(&product, shape, nullptr), y);
}

/// Two heads that share their keys. The last `rows` positions of a sequence are computed.
struct AttentionOf {
  int way, positions, rows, head_dim;
};
template <class Element, class Activation = Element>
std::string attend(int32_t type, const AttentionOf& of) {
  constexpr int kHeads = 2;
  const int blocks = (of.positions + kBlockTokens - 1) / kBlockTokens;
  const int columns = kHeads * of.head_dim;
  std::vector<int32_t> positions(static_cast<size_t>(of.rows));
  std::iota(positions.begin(), positions.end(), of.positions - of.rows);
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);
  const OnDevice<int32_t> position(positions), block_table(table),
      sequence(std::vector<int32_t>(positions.size(), 0));
  const Number first_row(0), row_count(of.rows);
  const OnDevice<Element> cache(drawn_as<Element>(blocks * 2 * kBlockTokens * of.head_dim, 3));
  const OnDevice<Activation> q(drawn_as<Activation>(of.rows * columns, 4));
  const OnDevice<Activation> out(static_cast<size_t>(of.rows * columns));
  ShoalAttention args{};
  args.step = {
      of.rows,           1,     position.get(), sequence.get(), first_row.get(), row_count.get(),
      block_table.get(), blocks};
  args.cache = {cache.get(), type, 1, of.head_dim};
  args.heads = args.head_begin[1] = kHeads;
  args.scale = 0.5F;
  args.q = q.get();
  args.out = out.get();
  args.q_stride = args.out_stride = columns;
  args.split_chunks = (of.positions + kShoalChunkTokens - 1) / kShoalChunkTokens;
  args.scratch_floats =
      cuda::attention_scratch_floats(of.rows, kHeads, of.head_dim, args.split_chunks);
  const OnDevice<float> scratch(static_cast<size_t>(args.scratch_floats));
  args.scratch = scratch.get();
  EXPECT_EQ(cuda::load_attention(), cudaSuccess);
  return results(cuda::attention_with(&args, of.way, nullptr), out);
}
/// The ways of attention_with().
constexpr int kWholeNarrow = 0, kWholeWide = 1, kSplitNarrow = 2;

/// A row in which the lanes that sum have more than one element each.
std::string normalize() {
  constexpr int kColumns = 200;
  const OnDevice<float> x(draw(kColumns, 5)), weight(draw(kColumns, 6)), out(kColumns);
  const ShoalRmsNorm args{kShoalF32,    1,         kColumns, 1e-5F, x.get(),
                          weight.get(), out.get(), kColumns};
  EXPECT_EQ(cuda::load_norms(), cudaSuccess);
  return results(cuda::rms_norm(&args, nullptr), out);
}

/// The thread that finds the greatest hands it to one that is not the first, and that to the first.
std::string find_greatest() {
  constexpr int kColumns = 2050, kGreatest = 700;
  std::vector<float> values = draw(kColumns, 7);
  values[kGreatest] = 2;
  const OnDevice<float> logits(values);
  const OnDevice<ShoalBest> scratch(kShoalArgmaxParts), best(1);
  const ShoalArgmax args{1, kColumns, logits.get(), kColumns, scratch.get(), best.get()};
  EXPECT_EQ(cuda::load_elementwise(), cudaSuccess);
  return results(cuda::argmax(&args, nullptr), best);
}

/// The norm of a head needs what other lanes have loaded, and then its scale. A warp has four
/// heads, of which two are summed at once: those of q, and then k and v.
std::string rotate() {
  constexpr int kHeads = 2, kHeadDim = 80, kPositions = 4;
  constexpr int kColumns = (kHeads + 2) * kHeadDim;
  const Number position(kPositions - 1), zero(0), one(1);
  const OnDevice<float> qkv(draw(kColumns, 8)), norm(draw(kHeadDim, 9));
  const OnDevice<float> cos(draw(kPositions * kHeadDim / 2, 10)),
      sin(draw(kPositions * kHeadDim / 2, 11));
  const OnDevice<float> cache(std::vector<float>(2 * kBlockTokens * kHeadDim, 0));
  const OnDevice<float> q(kHeads * kHeadDim);
  ShoalQkv args{};
  args.step = {1, 1, position.get(), zero.get(), zero.get(), one.get(), zero.get(), 1};
  args.cache = {cache.get(), kShoalF32, 1, kHeadDim};
  args.heads = kHeads;
  args.positions = kPositions;
  args.eps = 1e-5F;
  args.qkv = qkv.get();
  args.qkv_stride = kColumns;
  args.q_norm = args.k_norm = norm.get();
  args.cos = cos.get();
  args.sin = sin.get();
  args.q = q.get();
  args.q_stride = kHeads * kHeadDim;
  EXPECT_EQ(cuda::load_qkv(), cudaSuccess);
  return results(cuda::qkv(&args, nullptr), q, cache);
}

/// One of two ranks that push to each other, each with its stream.
struct PushRank {
  static constexpr int kCount = 64, kAreaBytes = 8192;
  const OnDevice<uint64_t> area{std::vector<uint64_t>(kAreaBytes / 8, 0)};
  const OnDevice<float> out{kCount};
  const OnDevice<uint32_t> failure{std::vector<uint32_t>(1 + kShoalNameWords, 0)};
  cudaStream_t stream = nullptr;

  PushRank() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess); }
  ~PushRank() { cudaStreamDestroy(stream); }
  PushRank(const PushRank&) = delete;
  PushRank& operator=(const PushRank&) = delete;

  /// Whether another rank has set a flag here. Flags follow a head of 256 bytes.
  bool has_flag() const {
    for (uint64_t* word = area.get() + 32; word < area.get() + 64; ++word) {
      if (std::atomic_ref<uint64_t>(*word).load(std::memory_order_acquire) != 0) return true;
    }
    return false;
  }
};

int32_t push(const PushRank (&ranks)[2], int rank, const OnDevice<float>& own, uint64_t spin_ns) {
  const PushRank& mine = ranks[rank];
  ShoalPushAllReduce args{};
  args.rank = rank;
  args.world_size = 2;
  for (int one = 0; one < 2; ++one) {
    args.contributions[one] = 1;
    args.areas[one] = ranks[one].area.get();
  }
  args.area_bytes = PushRank::kAreaBytes;
  args.own = own.get();
  args.pitch = args.sum.count = PushRank::kCount;
  args.sum.values = 2;
  args.sum.merges[1] = 1;
  args.sum.out = mine.out.get();
  args.spin_ns = spin_ns;
  args.failure = mine.failure.get();
  return cuda::push_all_reduce(&args, mine.stream);
}

/// The second rank comes only when the first one waits for it.
std::string push_to_a_late_rank() {
  constexpr uint64_t kAMinute = 60'000'000'000;
  const PushRank ranks[2];
  const OnDevice<float> first(draw(PushRank::kCount, 12)), second(draw(PushRank::kCount, 13));
  EXPECT_EQ(cuda::load_push_all_reduce(), cudaSuccess);
  EXPECT_EQ(push(ranks, 0, first, kAMinute), cudaSuccess);
  while (!ranks[1].has_flag() && first_report().empty()) std::this_thread::yield();
  return results(push(ranks, 1, second, kAMinute), ranks[0].out, ranks[1].out);
}

/// The second rank never comes. After that the first one must not push anything any more.
std::string push_after_a_failure() {
  const PushRank ranks[2];
  const OnDevice<float> first(draw(PushRank::kCount, 14)), second(draw(PushRank::kCount, 15));
  EXPECT_EQ(cuda::load_push_all_reduce(), cudaSuccess);
  EXPECT_EQ(push(ranks, 0, first, 1), cudaSuccess);
  return results(push(ranks, 0, second, 1), ranks[1].area, ranks[0].failure);
}

template <class Weight, class Input>
BarrierProblem product_in_shape(int32_t type, const std::string& name, int shape) {
  std::vector<std::string> barriers = places("product.cuh", "__syncthreads()");
  return {"product, " + name + ", shape " + std::to_string(shape), barriers,
          [type, shape] { return multiply<Weight, Input>(type, shape); }};
}

/// Adds every shape of block for bfloat16. For the other types it adds only the narrow blocks, and
/// the square blocks that fold.
void add_products(std::vector<BarrierProblem>& all) {
  for (int shape = 0; shape < cuda::product_shapes(); ++shape)
    all.push_back(product_in_shape<uint16_t, uint16_t>(kShoalBf16, "bf16", shape));
  constexpr int kNarrow = 1, kSquare = 4;
  for (const int shape : {kNarrow, kSquare}) {
    all.push_back(product_in_shape<uint16_t, float>(kShoalF16, "float16", shape));
    all.push_back(product_in_shape<float, float>(kShoalF32, "float32", shape));
  }
}

}  // namespace

std::vector<BarrierProblem> barrier_problems() {
  std::vector<BarrierProblem> all;
  add_products(all);
  const std::vector<std::string> begin = places("attention.cuh", "__syncthreads()");
  const auto with_begin = [&](std::vector<std::string> barriers) {
    barriers.insert(barriers.end(), begin.begin(), begin.end());
    return barriers;
  };
  const std::vector<std::string> of_attention =
      with_begin(places("attention.cu", "__syncthreads()"));
  all.push_back({"attention, bf16", of_attention, [] {
                   return attend<uint16_t>(kShoalBf16, {kWholeNarrow, 130, 4, 64});
                 }});
  all.push_back({"attention, float16", of_attention, [] {
                   return attend<uint16_t, float>(kShoalF16, {kWholeNarrow, 130, 4, 64});
                 }});
  all.push_back({"attention, float32", of_attention, [] {
                   return attend<float>(kShoalF32, {kWholeNarrow, 130, 4, 64});
                 }});
  all.push_back(
      {"attention by warps", with_begin(places("attention_warps.cuh", "__syncthreads()")), [] {
         return attend<uint16_t>(kShoalBf16, {kWholeWide, 130, 12, 64});
       }});
  // More chunks than the fold has threads.
  all.push_back({"fold of chunks", places("attention_fold.cuh", "__syncthreads()"), [] {
                   return attend<float>(kShoalF32, {kSplitNarrow, 200 * kShoalChunkTokens, 1, 16});
                 }});
  all.push_back({"rms_norm", places("norms.cu", "__syncthreads()"), normalize});
  std::vector<std::string> of_greatest = places("elementwise.cu", "__syncwarp()");
  for (const std::string& place : places("elementwise.cu", "__syncthreads()", "the row before"))
    of_greatest.push_back(place);
  all.push_back({"argmax", of_greatest, find_greatest});
  all.push_back({"qkv", places("qkv.cu", "__syncwarp()"), rotate});
  all.push_back(
      {"push", places("push_all_reduce.cu", "__syncthreads_or(lost)"), push_to_a_late_rank});
  all.push_back({"push after a failure", places("push_all_reduce.cu", "__syncthreads_or(failed)"),
                 push_after_a_failure});
  return all;
}

}  // namespace shoal::emulator
