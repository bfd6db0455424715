// Leaves out one barrier of the product's kernels after the other. The emulated device must have an
// order of its lanes in which the product's result shows that.
#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/entries.h"
#include "tests/emulator/on_device.h"

namespace shoal::emulator {
namespace {

/// Factors of two leaves, of which the second one is not aligned and ends inside a stage. Both are
/// longer than all stages that a block has under way.
class Problem {
 public:
  Problem() : weights_(draw(kOutputs * kWeightStride)), x_(draw(kRows * kXStride)) {
    product_.outputs = kOutputs;
    product_.rows = kRows;
    product_.leaves = 2;
    product_.leaf[0] = {0, 576, 0, 0, -1};
    product_.leaf[1] = {577, 577 + 540, 576, 1, 0};
    product_.weight_stride = kWeightStride;
    product_.x_stride = kXStride;
    product_.y_stride = kOutputs;
    product_.scratch_floats = 2 * kRows * kOutputs;
  }

  /// The bits of the outputs.
  std::vector<uint32_t> result(int shape) const {
    const OnDevice<uint16_t> weights(weights_), x(x_);
    const OnDevice<float> scratch(2 * kRows * kOutputs);
    const OnDevice<uint32_t> y(kRows * kOutputs);
    ShoalProduct product = product_;
    product.weights = weights.get();
    product.x = x.get();
    product.scratch = scratch.get();
    product.y = reinterpret_cast<float*>(y.get());
    EXPECT_EQ(cuda::load_product(), cudaSuccess);
    EXPECT_EQ(cuda::product_with(&product, shape, nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return y.values();
  }

 private:
  static constexpr int kOutputs = 70, kRows = 9;
  static constexpr int kWeightStride = 576 * 2, kXStride = 1120;

  static std::vector<uint16_t> draw(int count) {
    std::mt19937_64 random(3);
    std::vector<uint16_t> numbers(static_cast<size_t>(count));
    for (uint16_t& one : numbers) one = static_cast<uint16_t>(0x3f00 | (random() & 0x80ff));
    return numbers;
  }

  std::vector<uint16_t> weights_, x_;
  ShoalProduct product_{};
};

/// "product.cuh:256" for each line of the file that calls the function.
void add_places(const std::string& file, const std::string& call,
                std::vector<std::string>* places) {
  std::ifstream source(SHOAL_SOURCE_DIR "/kernels/cuda/" + file);
  ASSERT_TRUE(source.is_open()) << file;
  std::string text;
  for (int line = 1; std::getline(source, text); ++line) {
    if (text.find(call) != std::string::npos) places->push_back(file + ":" + std::to_string(line));
  }
}

std::vector<std::string> barriers() {
  std::vector<std::string> places;
  for (const char* file : {"product.cuh", "product.cu"})
    add_places(file, "__syncthreads()", &places);
  return places;
}

/// The first of the orders, and the time of copies, at which the result is another one, or "".
std::string noticed(const Problem& problem, int shape, const std::vector<std::string>& in_orders,
                    const std::vector<uint32_t>& right) {
  for (const std::string& order : in_orders) {
    for (const char* copies : {"early", "late"}) {
      set("ORDER", order);
      set("COPIES", copies);
      if (problem.result(shape) != right) return order + ", " + copies;
    }
  }
  return "";
}

/// A few orders. The last one has priorities.
#ifdef SHOAL_TSAN  // which is slow
const std::vector<std::string> kSomeOrders = {"3"};
#else
const std::vector<std::string> kSomeOrders = {"forward", "reverse", "1", "3"};
#endif

/// The shape whose blocks are one warp. Its lanes meet again and again to multiply, so that no
/// order shows the missing barrier. ThreadSanitizer does.
constexpr int kSmall = 0;

TEST(BarrierTest, AProductThatLacksABarrierIsAnotherOne) {
#ifdef SHOAL_TSAN
  GTEST_SKIP() << "ThreadSanitizer would report the race";
#endif
  ASSERT_FALSE(barriers().empty());
  const Problem problem;
  for (const std::string& place : barriers()) {
    for (int shape = kSmall + 1; shape < cuda::product_shapes(); ++shape) {
      with_settings({}, [&] {
        const std::vector<uint32_t> right = problem.result(shape);
        set("SKIP_BARRIER", place);
        EXPECT_NE(noticed(problem, shape, orders(), right), "") << place << ", shape " << shape;
      });
    }
  }
}

TEST(BarrierTest, AProductWithItsBarriersIsTheSameInEveryOrder) {
  const Problem problem;
  with_settings({}, [&] {
    const std::vector<uint32_t> right = problem.result(kSmall);
    for (int shape = 0; shape < cuda::product_shapes(); ++shape)
      EXPECT_EQ(noticed(problem, shape, kSomeOrders, right), "") << "shape " << shape;
  });
}

}  // namespace
}  // namespace shoal::emulator
