#include "kernels/packed_matrix.h"

#include <algorithm>
#include <span>

#include "tests/kernels/kernel_test.h"

namespace shoal {
namespace {

TEST(PackedMatrix, LayoutIsPanelsOfPairs) {
  const int n = 70, k = 5;
  std::vector<float> values;
  for (int i = 0; i < n * k; ++i) values.push_back(static_cast<float>(i % 251));
  for (Dtype dtype : kAllDtypes) {
    const PackedMatrix matrix = pack(dtype, n, k, values, {{0, 2, 0, -1}, {2, 5, 1, 0}});
    ASSERT_EQ(matrix.panels(), 2);
    EXPECT_EQ(matrix.panel_bytes(), dtype == Dtype::kF32 ? 5 * 64 * 4 : 6 * 64 * 2);
    EXPECT_EQ(matrix.contributions(), 1);
    Elements all(dtype, static_cast<size_t>(2 * matrix.panel_bytes()) / dtype_bytes(dtype));
    std::memcpy(all.data(), matrix.panel(0), all.bytes.size());
    const size_t panel = all.size() / 2;
    for (size_t row = 0; row < 128; ++row) {
      for (size_t column = 0; column < (dtype == Dtype::kF32 ? 5u : 6u); ++column) {
        const size_t at = dtype == Dtype::kF32 ? column * 64 + row % 64
                                               : (column / 2 * 64 + row % 64) * 2 + column % 2;
        const float want = row < 70 && column < 5 ? values[row * 5 + column] : 0.0f;
        EXPECT_EQ(all.get(row / 64 * panel + at), want)
            << dtype_name(dtype) << " row " << row << " column " << column;
      }
    }
  }
}

TEST(PackedMatrix, RowsMayComeInAnyOrderAndFromWiderRows) {
  const int n = 130, k = 333;
  const std::vector<float> values = random_floats(static_cast<size_t>(n * k), 1);
  for (Dtype dtype : kAllDtypes) {
    const PackedMatrix whole = pack(dtype, n, k, values, {{0, k, 0, 0}});
    const int stride = k + 7;
    Elements wide(dtype, static_cast<size_t>(n * stride));
    for (int r = 0; r < n; ++r) {
      for (int c = 0; c < k; ++c)
        wide.set(static_cast<size_t>(r * stride + c), values[static_cast<size_t>(r * k + c)]);
    }
    Result<PackedMatrix> pieces = PackedMatrix::allocate(dtype, n, k, {{0, k, 0, 0}});
    ASSERT_TRUE(pieces.ok());
    for (int row : {64, 0, 129, 1, 65}) {
      const int end = row == 64 ? 65 : row == 0 ? 1 : row == 129 ? 130 : row == 1 ? 64 : 129;
      pieces->pack_rows(row, end - row,
                        wide.bytes.data() + static_cast<size_t>(row * stride) * dtype_bytes(dtype),
                        stride);
    }
    EXPECT_EQ(
        std::memcmp(whole.panel(0), pieces->panel(0), static_cast<size_t>(3 * whole.panel_bytes())),
        0)
        << dtype_name(dtype);
  }
}

TEST(PackedMatrix, AStripIsWholeOnceItIsPackedAndStripsAreAllOfAPanel) {
  const int n = 70, k = 1025;  // of 2-byte types, the last strip has only the odd column
  const std::vector<float> values = random_floats(static_cast<size_t>(n * k), 1);
  for (Dtype dtype : kAllDtypes) {
    const PackedMatrix whole = pack(dtype, n, k, values, {{0, k, 0, 0}});
    const Elements source(dtype, values);
    Result<PackedMatrix> strips = PackedMatrix::allocate(dtype, n, k, {{0, k, 0, 0}});
    ASSERT_TRUE(strips.ok());
    EXPECT_EQ(strips->strips(), dtype == Dtype::kF32 ? 9 : 5);
    for (int panel = 0; panel < whole.panels(); ++panel) {
      const int row = panel * kPanelOutputs, rows = std::min(kPanelOutputs, n - row);
      const std::byte* at = strips->panel(panel);
      for (int strip = 0; strip < strips->strips(); ++strip) {
        strips->pack_strip(strip, row, rows,
                           source.bytes.data() + static_cast<size_t>(row * k) * dtype_bytes(dtype),
                           k);
        const std::span<const std::byte> packed = strips->strip(panel, strip),
                                         want = whole.strip(panel, strip);
        EXPECT_EQ(packed.data(), at);
        EXPECT_TRUE(std::equal(packed.begin(), packed.end(), want.begin(), want.end()))
            << dtype_name(dtype) << " panel " << panel << " strip " << strip;
        at += packed.size();
      }
      EXPECT_EQ(at, strips->panel(panel) + strips->panel_bytes());
    }
  }
}

TEST(PackedMatrix, NothingIsAMatrixToo) {
  const Result<PackedMatrix> no_columns = PackedMatrix::allocate(Dtype::kBf16, 64, 0, {});
  ASSERT_TRUE(no_columns.ok()) << no_columns.status().to_string();
  EXPECT_EQ(no_columns.value().contributions(), 0);
  const Result<PackedMatrix> no_rows = PackedMatrix::allocate(Dtype::kF32, 0, 8, {{0, 8, 0, 0}});
  ASSERT_TRUE(no_rows.ok());
  EXPECT_EQ(no_rows.value().panels(), 0);
}

TEST(PackedMatrix, RefusesLeavesThatDoNotFold) {
  const auto code = [](int k, std::vector<LeafStep> leaves) {
    return PackedMatrix::allocate(Dtype::kBf16, 8, k, std::move(leaves)).status().code();
  };
  EXPECT_EQ(code(8, {{0, 4, 0, -1}, {4, 8, 1, 0}}), Code::kOk);
  EXPECT_EQ(code(8, {{0, 4, 0, 0}, {4, 8, 0, 1}}), Code::kOk);
  EXPECT_EQ(code(8, {{0, 4, 0, -1}, {5, 8, 1, 0}}), Code::kInvalidArgument);  // a gap
  EXPECT_EQ(code(9, {{0, 4, 0, -1}, {4, 8, 1, 0}}), Code::kInvalidArgument);  // not all of k
  EXPECT_EQ(code(8, {{0, 3, 0, -1}, {3, 8, 1, 0}}), Code::kInvalidArgument);  // an odd start
  EXPECT_EQ(code(8, {{0, 4, 1, -1}, {4, 8, 1, 0}}),
            Code::kInvalidArgument);  // it folds a value that does not exist
  EXPECT_EQ(code(8, {{0, 4, 0, -1}, {4, 8, 0, 0}}), Code::kInvalidArgument);  // two sums at the end
  EXPECT_EQ(code(8, {{0, 4, 0, -1}, {4, 8, 1, -1}}),
            Code::kInvalidArgument);                           // never a contribution
  EXPECT_EQ(code(8, {{0, 8, 0, 1}}), Code::kInvalidArgument);  // contribution 0 is missing
  EXPECT_EQ(code(8, {}), Code::kInvalidArgument);
  std::vector<LeafStep> deep;
  for (int i = 0; i <= kMaxFoldDepth; ++i) deep.push_back({2 * i, 2 * i + 2, 0, -1});
  EXPECT_EQ(code(2 * kMaxFoldDepth + 2, deep), Code::kInvalidArgument);
}

}  // namespace
}  // namespace shoal
