// The operands of a warp: where PTX's tables put them, and the tensor core's arithmetic in a
// kernel.
#include "tests/emulator/fragments.h"

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/emulator/on_device.h"
#include "tests/emulator/plain_tensor_core.h"

namespace shoal::emulator {
namespace {

struct MultiplyArgs {
  const uint16_t* a;  ///< [16][16]
  const uint16_t* b;  ///< [16][8]
  float* sum;         ///< [16][8]
};

/// The tables of "Matrix Fragments for mma.m16n8k16" in the PTX ISA.
struct FragmentTables {
  int group, in_group;
  explicit FragmentTables(int lane) : group(lane / 4), in_group(lane % 4) {}
  int row_of_a(int i) const { return i < 2 || (i >= 4 && i < 6) ? group : group + 8; }
  int column_of_a(int i) const { return in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0); }
  int row_of_b(int i) const { return in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0); }
  int column_of_b() const { return group; }
  int row_of_sum(int i) const { return i < 2 ? group : group + 8; }
  int column_of_sum(int i) const { return in_group * 2 + (i & 1); }
};

void multiply_kernel(MultiplyArgs args) {
  const FragmentTables tables(static_cast<int>(threadIdx.x));
  uint32_t a[4] = {}, b[2] = {};
  float sum[4];
  for (int i = 0; i < 8; ++i) {
    const uint32_t one =
        cuda::load_global(args.a + tables.row_of_a(i) * 16 + tables.column_of_a(i));
    a[i / 2] |= one << (i % 2 * 16);
  }
  for (int i = 0; i < 4; ++i) {
    const uint32_t one = cuda::load_global(args.b + tables.row_of_b(i) * 8 + tables.column_of_b());
    b[i / 2] |= one << (i % 2 * 16);
  }
  const auto at = [&](int i) {
    return args.sum + tables.row_of_sum(i) * 8 + tables.column_of_sum(i);
  };
  for (int i = 0; i < 4; ++i) sum[i] = cuda::load_global(at(i));
  cuda::multiply_add(sum, a, b);
  for (int i = 0; i < 4; ++i) cuda::store_global(at(i), sum[i]);
}

/// What the matrices are by the plain rule. NaN is compared by its bits, like all else.
std::vector<uint32_t> plain_product(const plain::Rule& rule, const std::vector<uint16_t>& a,
                                    const std::vector<uint16_t>& b, const std::vector<float>& sum) {
  std::vector<uint32_t> result;
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      uint16_t factors[16];
      for (size_t k = 0; k < 16; ++k) factors[k] = b[k * 8 + column];
      result.push_back(std::bit_cast<uint32_t>(
          plain::multiply_row(rule, &a[row * 16], factors, sum[row * 8 + column])));
    }
  }
  return result;
}

void expect_plain_products(const plain::Rule& rule) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 60; ++i) {
    const plain::Draw kind = plain::kDraws[i % 6];
    std::vector<uint16_t> a(256), b(128);
    std::vector<float> sum(128);
    for (uint16_t& one : a) one = plain::draw(kind, random);
    for (uint16_t& one : b) one = plain::draw(kind, random);
    for (float& one : sum) one = plain::draw_addend(kind, random);
    const OnDevice<uint16_t> on_a(a), on_b(b);
    const OnDevice<float> on_sum(sum);
    ASSERT_EQ(run_block(&multiply_kernel, 32, 0, {on_a.get(), on_b.get(), on_sum.get()}),
              cudaSuccess);
    std::vector<uint32_t> result;
    for (const float one : on_sum.values()) result.push_back(std::bit_cast<uint32_t>(one));
    ASSERT_EQ(result, plain_product(rule, a, b, sum)) << i;
  }
}

TEST(FragmentsTest, MultiplyAsThePtxTablesSay) {
  with_settings({{"CAPABILITY", "9.0"}}, [] { expect_plain_products(plain::kHopper); });
  with_settings({{"CAPABILITY", "8.6"}}, [] { expect_plain_products(plain::kAmpere); });
}

struct Tf32Args {
  const float* a;  ///< [16][8]
  const float* b;  ///< [8][8]
  float* sum;      ///< [16][8]
};

/// The tables of "Matrix Fragments for mma.m16n8k8" for .tf32.
void multiply_tf32_kernel(Tf32Args args) {
  const int group = static_cast<int>(threadIdx.x) / 4, in_group = static_cast<int>(threadIdx.x) % 4;
  uint32_t a[4], b[2];
  float sum[4];
  for (int i = 0; i < 4; ++i) {
    const int row = i == 0 || i == 2 ? group : group + 8;
    const int column = i < 2 ? in_group : in_group + 4;
    a[i] = std::bit_cast<uint32_t>(cuda::load_global(args.a + row * 8 + column));
  }
  for (int i = 0; i < 2; ++i)
    b[i] = std::bit_cast<uint32_t>(cuda::load_global(args.b + (in_group + 4 * i) * 8 + group));
  const auto at = [&](int i) {
    return args.sum + (i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1);
  };
  for (int i = 0; i < 4; ++i) sum[i] = cuda::load_global(at(i));
  cuda::multiply_add_tf32(sum, a, b);
  for (int i = 0; i < 4; ++i) cuda::store_global(at(i), sum[i]);
}

void expect_plain_tf32_products(const plain::Rule& rule) {
  std::mt19937_64 random(6);
  for (int i = 0; i < 60; ++i) {
    const plain::Draw kind = plain::kDraws[i % 6];
    std::vector<float> a(128), b(64), sum(128);
    for (float& one : a) one = plain::draw_tf32(kind, random);
    for (float& one : b) one = plain::draw_tf32(kind, random);
    for (float& one : sum) one = plain::draw_addend(kind, random);
    const OnDevice<float> on_a(a), on_b(b), on_sum(sum);
    ASSERT_EQ(run_block(&multiply_tf32_kernel, 32, 0, {on_a.get(), on_b.get(), on_sum.get()}),
              cudaSuccess);
    const std::vector<float> got = on_sum.values();
    for (size_t at = 0; at < got.size(); ++at) {
      float factors[8];
      for (size_t k = 0; k < 8; ++k) factors[k] = b[k * 8 + at % 8];
      const float plainly = plain::multiply_row(rule, &a[at / 8 * 8], factors, sum[at]);
      ASSERT_EQ(std::bit_cast<uint32_t>(got[at]), std::bit_cast<uint32_t>(plainly)) << i;
    }
  }
}

TEST(FragmentsTest, MultiplyTf32AsThePtxTablesSay) {
  with_settings({{"CAPABILITY", "9.0"}}, [] { expect_plain_tf32_products(plain::kHopper); });
  with_settings({{"CAPABILITY", "8.6"}}, [] { expect_plain_tf32_products(plain::kAmpere); });
}

struct LoadArgs {
  uint32_t* out;  ///< [32][kMatrices]
  const int* row_of_lane;
};

template <int kMatrices>
void load_kernel(LoadArgs args) {
  const int lane = static_cast<int>(threadIdx.x);
  auto* elements = reinterpret_cast<uint16_t*>(cuda::block_memory());
  for (int i = 0; i < 8; ++i) elements[lane * 8 + i] = static_cast<uint16_t>(lane * 8 + i);
  __syncwarp();
  const bool gives = lane < 8 * kMatrices;
  uint32_t loaded[kMatrices];
  cuda::load_matrices(loaded,
                      gives ? elements + cuda::load_global(args.row_of_lane + lane) * 8 : nullptr);
  for (int i = 0; i < kMatrices; ++i)
    cuda::store_global(args.out + lane * kMatrices + i, loaded[i]);
}

template <int kMatrices>
void expect_loaded() {
  std::vector<int> row_of_lane;
  for (int lane = 0; lane < 32; ++lane) row_of_lane.push_back(lane * 11 % 32);
  const OnDevice<int> rows(row_of_lane);
  const OnDevice<uint32_t> out(32 * kMatrices);
  ASSERT_EQ(run_block(&load_kernel<kMatrices>, 32, 512, {out.get(), rows.get()}), cudaSuccess);
  const std::vector<uint32_t> loaded = out.values();
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kMatrices; ++i) {
      // The lane's row of matrix i is the one whose address lane 8 i + row gave.
      const int row = row_of_lane[static_cast<size_t>(8 * i + lane / 4)];
      const auto first = static_cast<uint32_t>(row * 8 + lane % 4 * 2);
      EXPECT_EQ(loaded[static_cast<size_t>(lane * kMatrices + i)], first | (first + 1) << 16)
          << lane << " " << i;
    }
  }
}

TEST(FragmentsTest, LoadMatricesAsThePtxTablesSay) {
  with_settings({}, [] { expect_loaded<4>(); });
  with_settings({}, [] { expect_loaded<2>(); });
}

}  // namespace
}  // namespace shoal::emulator
