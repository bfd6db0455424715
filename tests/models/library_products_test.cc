#include "models/library_products.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/device/module_loader.h"

namespace shoal {
namespace {

constexpr int kOutputs = 24, kColumns = 168, kStride = 192, kMostRows = 200;
constexpr int kLeastRows = 33;  // for which a device of compute capability 9.0 takes the library

/// A matrix and x on the emulated device, in float32, with room for kMostRows.
class LibraryProductsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto module = load_cuda_module(SHOAL_EMULATED_MODULE);
    ASSERT_TRUE(module.ok()) << module.status().to_string();
    device_ = Device::open(**module, 0).value();
    stream_ = device_->make_stream().value();
    told_ = cat(testing::TempDir(), "cublas-", ::getpid());
    ::setenv("FAKE_CUBLAS_TELL", told_.c_str(), 1);
    w_.outputs = kOutputs;
    // Leaves without padding between them are one product for the library.
    w_.leaves = 2;
    w_.leaf[0] = {0, 128, 0, 0, -1};
    w_.leaf[1] = {128, kColumns, 128, 1, 0};
    w_.stride = kStride;
    w_.weights = on_device(numbers(kOutputs * kStride));
    x_ = on_device(numbers(kMostRows * kStride));
    y_ = on_device(std::vector<float>(kMostRows * kOutputs, NAN));
  }
  void TearDown() override {
    ::unsetenv("FAKE_CUBLAS_TELL");
    std::filesystem::remove(told_);
  }

  std::vector<float> numbers(int count) {
    std::vector<float> all;
    for (int i = 0; i < count; ++i) all.push_back(spread_(random_));
    return all;
  }
  Device::Memory on_device(const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    Device::Memory memory = device_->allocate(bytes).value();
    Device::Memory pinned = device_->allocate_pinned(bytes).value();
    std::copy(values.begin(), values.end(), static_cast<float*>(pinned.get()));
    EXPECT_TRUE(device_->copy(memory.get(), pinned.get(), bytes, stream_.get()).ok());
    EXPECT_TRUE(finish().ok());
    return memory;
  }
  std::vector<float> back(const Device::Memory& memory, size_t count) {
    Device::Memory pinned = device_->allocate_pinned(count * sizeof(float)).value();
    EXPECT_TRUE(
        device_->copy(pinned.get(), memory.get(), count * sizeof(float), stream_.get()).ok());
    EXPECT_TRUE(finish().ok());
    const auto* values = static_cast<const float*>(pinned.get());
    return {values, values + count};
  }
  Status finish() {
    const Device::Event done = device_->make_event().value();
    SHOAL_RETURN_IF_ERROR(device_->record(done.get(), stream_.get()));
    return device_->wait(done.get(), Deadline::infinite(), nullptr);
  }
  std::vector<std::string> told() {
    std::ifstream file(told_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  LibraryProducts::Call call(const DeviceMatrix& w, int rows) {
    return {&w, x_.get(), kStride, rows, kMostRows, static_cast<float*>(y_.get())};
  }
  std::unique_ptr<LibraryProducts> open() {
    auto products =
        LibraryProducts::open(product_library_for({"9.0"}, SHOAL_FAKE_CUBLAS, "13.1.1"), *device_);
    EXPECT_TRUE(products.ok()) << products.status().to_string();
    return std::move(products).value();
  }

  std::mt19937 random_{7};
  std::uniform_real_distribution<float> spread_{-1, 1};
  std::shared_ptr<Device> device_;
  Device::Stream stream_;
  Device::Memory x_, y_;
  DeviceMatrix w_;
  std::string told_;
};

TEST_F(LibraryProductsTest, ARowMajorProductIsComputed) {
  const auto products = open();
  ASSERT_TRUE(products->plan(w_, Dtype::kF32, kStride, kMostRows).ok());
  const std::vector<float> w = back(w_.weights, kOutputs * kStride);
  const std::vector<float> x = back(x_, kMostRows * kStride);
  for (const int rows : {kLeastRows, 128, 129, 200}) {
    ASSERT_TRUE(products->computes(call(w_, rows)));
    ASSERT_TRUE(products->multiply(call(w_, rows), stream_.get()).ok());
    const std::vector<float> y = back(y_, static_cast<size_t>(rows) * kOutputs);
    for (size_t m = 0; m < static_cast<size_t>(rows); ++m) {
      for (size_t n = 0; n < kOutputs; ++n) {
        double sum = 0;
        for (size_t k = 0; k < kColumns; ++k)
          sum += double{x[m * kStride + k]} * w[n * kStride + k];
        ASSERT_NEAR(y[m * kOutputs + n], sum, 1e-4) << rows << " rows, " << m << ", " << n;
      }
    }
  }
}

// What a library chooses may take milliseconds, and differ from one time to the next.
TEST_F(LibraryProductsTest, AStepChoosesNothing) {
  const auto products = open();
  ASSERT_TRUE(products->plan(w_, Dtype::kF32, kStride, kMostRows).ok());
  ASSERT_TRUE(products->plan(w_, Dtype::kF32, kStride, kMostRows).ok());  // of the next layer
  const size_t chosen = told().size();
  EXPECT_EQ(chosen, row_buckets(kLeastRows, kMostRows).size())
      << "matrices of one shape share plans";
  ASSERT_TRUE(products->multiply(call(w_, 130), stream_.get()).ok());
  const std::vector<std::string> lines = told();
  ASSERT_EQ(lines.size(), chosen + 1);
  EXPECT_EQ(lines.back(), "computes 160 rows");
  ASSERT_TRUE(finish().ok());
}

TEST_F(LibraryProductsTest, OwnKernelsComputeTheRest) {
  const auto products = open();
  ASSERT_TRUE(products->plan(w_, Dtype::kF16, kStride, kMostRows).ok());
  EXPECT_FALSE(products->computes(call(w_, kMostRows))) << "float16";
  ASSERT_TRUE(products->plan(w_, Dtype::kF32, kStride, kMostRows).ok());
  EXPECT_TRUE(products->computes(call(w_, kMostRows)));
  EXPECT_FALSE(products->computes(call(w_, kLeastRows - 1)));
  EXPECT_FALSE(products->computes(call(w_, kMostRows + 1)));
  LibraryProducts::Call other = call(w_, kMostRows);
  other.x_stride += 64;
  EXPECT_FALSE(products->computes(other)) << "another x";
  DeviceMatrix apart = w_;
  apart.leaf[1] = {120, kColumns, 128, 1, 0};
  EXPECT_FALSE(products->computes(call(apart, kMostRows))) << "padding between leaves";
  DeviceMatrix two = w_;
  two.leaf[0].contribution = 0;
  two.leaf[1].contribution = 1;
  EXPECT_FALSE(products->computes(call(two, kMostRows))) << "two contributions";
}

// The last product has fewer rows than others of the same shape, and its y no room for more.
TEST_F(LibraryProductsTest, PlansDoNotGoBeyondTheRoomOfY) {
  const auto products = open();
  ASSERT_TRUE(products->plan(w_, Dtype::kF32, kStride, kMostRows).ok());
  ASSERT_TRUE(products->plan(w_, Dtype::kF32, kStride, 140).ok());
  LibraryProducts::Call few = call(w_, 135);
  few.most_rows = 140;
  ASSERT_TRUE(products->multiply(few, stream_.get()).ok());
  EXPECT_EQ(told().back(), "computes 140 rows");
  ASSERT_TRUE(finish().ok());
}

TEST_F(LibraryProductsTest, RowsWithoutAnAlgorithmTakeThatOfMore) {
  ::setenv("FAKE_CUBLAS_REFUSES", "160", 1);
  const auto products = open();
  const Status status = products->plan(w_, Dtype::kF32, kStride, kMostRows);
  ::unsetenv("FAKE_CUBLAS_REFUSES");
  ASSERT_TRUE(status.ok()) << status.to_string();
  ASSERT_TRUE(products->multiply(call(w_, 130), stream_.get()).ok());
  EXPECT_EQ(told().back(), "computes 192 rows");
  ASSERT_TRUE(finish().ok());
}

TEST_F(LibraryProductsTest, AnotherVersionThanTheFrontFoundIsRefused) {
  const auto products =
      LibraryProducts::open(product_library_for({"9.0"}, SHOAL_FAKE_CUBLAS, "13.0.2"), *device_);
  ASSERT_FALSE(products.ok());
  EXPECT_EQ(products.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(products.status().message().find("is cuBLASLt 13.1.1 now, and was 13.0.2"),
            std::string::npos);
}

TEST(RowBucketsTest, WasteAtMostAFifthFrom64On) {
  for (const int most : {16, 17, 64, 100, 2048, 2050, 8192}) {
    const std::vector<int32_t> buckets = row_buckets(16, most);
    EXPECT_EQ(buckets.back(), most);
    int32_t before = 0;
    for (const int32_t rows : buckets) {
      EXPECT_GT(rows, before);
      const int32_t wasted = rows - before - 1;  // with before + 1 rows
      if (before >= 64) {
        EXPECT_LE(wasted * 5, rows) << rows;
      } else {
        EXPECT_LT(wasted, 16) << rows;
      }
      before = rows;
    }
  }
  EXPECT_TRUE(row_buckets(16, 8).empty());
  EXPECT_LT(row_buckets(16, 8192).size(), 40U);
}

TEST(ProductLibraryTest, HopperAndLaterHaveTheLargerWorkspace) {
  const auto workspace = [](const std::vector<std::string>& capabilities) {
    return product_library_for(capabilities, "l", "13.1.1").workspace_bytes;
  };
  EXPECT_EQ(workspace({"8.0"}), 4 << 20);
  EXPECT_EQ(workspace({"8.9"}), 4 << 20);
  for (const char* capability : {"9.0", "10.0", "12.0", "13.0"})
    EXPECT_EQ(workspace({capability}), 32 << 20);
  EXPECT_EQ(workspace({"9.0", "8.6"}), 4 << 20) << "the same for all ranks";
}

}  // namespace
}  // namespace shoal
