// How the host divides a model's products: which tile for which number of rows, and in how many
// launches. Nothing is run, so that the shapes can be those of large models.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/entries.h"
#include "models/cuda_layers.h"
#include "tests/emulator/on_device.h"
#include "tests/emulator/stream.h"

namespace shoal::emulator {
namespace {

constexpr int32_t kLeaves = 8;  ///< of the products that other ranks may have a part of

/// The shapes of product_with(): outputs x tokens of a block. The square ones have a block for each
/// leaf, or one for all of them.
enum PlannedShape { kOf32x8, kOf64x8, kOf64x32, kOf64x64ByLeaf, kOf64x64, kOf128x128 };

alignas(128) std::byte nobody_reads[128];

/// A product of bfloat16 with `columns` columns, whose leaves merge into one contribution.
ShoalProduct planned_product(int32_t outputs, int32_t columns, int32_t leaves, int32_t rows) {
  ShoalProduct args{};
  args.type = kShoalBf16;
  args.outputs = outputs;
  args.rows = rows;
  args.leaves = leaves;
  for (int32_t i = 0; i < leaves; ++i) {
    const int32_t begin = columns / leaves * i;
    args.leaf[i].begin = begin;
    args.leaf[i].end = begin + columns / leaves;
    args.leaf[i].weights_at = begin;
    args.leaf[i].merges = std::countr_one(static_cast<uint32_t>(i));
    args.leaf[i].contribution = i + 1 == leaves ? 0 : -1;
  }
  auto* const memory = reinterpret_cast<float*>(nobody_reads);
  args.weights = args.x = args.y = args.scratch = memory;
  args.weight_stride = args.x_stride = columns;
  args.y_stride = outputs;
  args.scratch_floats = shoal_product_scratch_floats(outputs, rows, leaves);
  return args;
}

struct PlannedProduct {
  std::string name;
  int32_t outputs, leaves;
  std::vector<std::pair<int32_t, PlannedShape>> shapes;  ///< by rows
};
const std::vector<PlannedProduct> kPlannedProducts = {
    {"o of 8 B",
     4096,
     kLeaves,
     {{1, kOf64x8},
      {8, kOf64x8},
      {9, kOf64x32},
      {32, kOf64x32},
      {33, kOf64x64ByLeaf},
      {256, kOf64x64ByLeaf},
      {257, kOf64x64},
      {384, kOf64x64},
      {385, kOf128x128},
      {2048, kOf128x128}}},
    {"q, k and v of 8 B",
     6144,
     1,
     {{1, kOf32x8}, {9, kOf64x32}, {64, kOf64x32}, {65, kOf64x64ByLeaf}, {257, kOf128x128}}},
    {"gate and up of wide-mlp",
     131072,
     1,
     {{1, kOf64x8}, {9, kOf64x32}, {33, kOf64x64ByLeaf}, {65, kOf128x128}}},
    {"less than one tile",
     40,
     1,
     {{1, kOf32x8}, {33, kOf64x32}, {65, kOf64x64ByLeaf}, {257, kOf64x64}, {9000, kOf64x64}}}};

TEST(PlanTest, EachNumberOfRowsHasItsTile) {
  for (const PlannedProduct& product : kPlannedProducts) {
    for (const auto& [rows, shape] : product.shapes) {
      const ShoalProduct args = planned_product(product.outputs, 512, product.leaves, rows);
      EXPECT_EQ(cuda::product_shape(&args), shape) << product.name << ", " << rows << " rows";
    }
  }
}

struct PlannedModel {
  std::string name;
  int32_t hidden, qkv, mlp;
};
/// The last one's MLP is so wide that the tiles of its outputs alone would fill a device.
const std::vector<PlannedModel> kPlannedModels = {
    {"1 B", 2048, 2560, 5632}, {"8 B", 4096, 6144, 14336}, {"wide-mlp", 8192, 10240, 65536}};

/// How many kernels the product takes. They stay in the queue.
int64_t launches_of(const ShoalProduct& args) {
  const int64_t before = cuda::launched;
  EXPECT_EQ(cuda::product(&args, nullptr), cudaSuccess) << args.outputs << " x " << args.rows;
  return cuda::launched - before;
}

/// Those of the products that add to the rows: o and down.
struct OfSums {
  int64_t o, down;
};
OfSums launches_of_sums(const PlannedModel& model, int32_t rows) {
  ShoalProduct o = planned_product(model.hidden, model.hidden, kLeaves, rows);
  ShoalProduct down = planned_product(model.hidden, model.mlp, kLeaves, rows);
  if (rows <= kShoalMostUnfoldedRows) o.y = down.y = nullptr;  // add_norm folds them
  return {launches_of(o), launches_of(down)};
}

/// Those of a layer.
int64_t launches_of_layer(const PlannedModel& model, int32_t rows) {
  const int64_t wide = launches_of(planned_product(model.qkv, model.hidden, 1, rows)) +
                       launches_of(planned_product(2 * model.mlp, model.hidden, 1, rows));
  EXPECT_EQ(wide, 2) << model.name << ", " << rows << " rows";
  const OfSums sums = launches_of_sums(model, rows);
  constexpr int64_t kOthers = 4;                 // qkv, silu_mul, and add_norm twice
  const int64_t attention = rows <= 16 ? 2 : 1;  // kMostSplitAttentionRows
  return wide + sums.o + sums.down + attention + kOthers;
}

void plan_nothing_run(const std::function<void()>& body) {
  with_settings({{"STREAMS", "when-waited-for"}}, [&] {
    ASSERT_EQ(cuda::load_product(), cudaSuccess);
    body();
  });
}

// Or the host would block in the driver before it waits for the device.
TEST(PlanTest, TheLayersThatAHostMayBeAheadFitIntoTheQueue) {
  constexpr int64_t kMarksAndSums = 8;  // copies and kernels of two marks and two collectives
  for (const PlannedModel& model : kPlannedModels) {
    plan_nothing_run([&] {
      for (const int32_t rows : {1, 9, 33, 65, 257, 2048, 8192}) {
        const int64_t launches = launches_of_layer(model, rows);
        EXPECT_LE(launches, rows <= kShoalMostSplitRows ? 11 : 23) << model.name << ", " << rows;
        EXPECT_LE(2 * CudaLayers::kLayersAhead * (launches + kMarksAndSums),
                  static_cast<int64_t>(kMostOperations))
            << model.name << ", " << rows;
      }
    });
  }
}

TEST(PlanTest, LargeProductsTakeAtMostEightTurns) {
  plan_nothing_run([] {
    const PlannedModel& wide = kPlannedModels.back();
    for (const auto& [rows, turns] : std::vector<std::pair<int32_t, int64_t>>{
             {32, 1}, {33, 2}, {128, 2}, {129, 1}, {1024, 2}, {2048, 4}, {8192, 8}}) {
      const OfSums launches = launches_of_sums(wide, rows);
      EXPECT_EQ(launches.o, turns) << rows;
      EXPECT_EQ(launches.down, turns) << rows;
    }
  });
}

}  // namespace
}  // namespace shoal::emulator
