#include "runtime/base/aligned_buffer.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <limits>
#include <utility>

namespace shoal {
namespace {

TEST(AlignedBufferTest, IsZeroedAlignedAndLargeEnough) {
  for (const size_t bytes :
       {size_t{1}, size_t{4097}, (size_t{2} << 20) - 1, (size_t{2} << 20) + 1}) {
    Result<AlignedBuffer> buffer = AlignedBuffer::allocate(bytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status().to_string();
    EXPECT_GE(buffer->bytes(), bytes);
    EXPECT_FALSE(buffer->empty());
    auto* data = buffer->as<unsigned char>();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    for (size_t i = 0; i < bytes; i += 511) ASSERT_EQ(data[i], 0) << i;
    data[0] = data[bytes - 1] = 1;
  }
}

TEST(AlignedBufferTest, ZeroBytesAreEmpty) {
  const Result<AlignedBuffer> buffer = AlignedBuffer::allocate(0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_TRUE(buffer->empty());
  EXPECT_EQ(buffer->as<>(), nullptr);
}

TEST(AlignedBufferTest, MovesItsMemory) {
  AlignedBuffer first = AlignedBuffer::allocate(100).value();
  first.as<int>()[0] = 42;
  AlignedBuffer second = std::move(first);
  EXPECT_TRUE(first.empty());  // NOLINT: the state after a move is part of the contract
  EXPECT_EQ(second.as<int>()[0], 42);
  AlignedBuffer third;
  third = std::move(second);
  EXPECT_EQ(third.as<int>()[0], 42);
  EXPECT_EQ(second.as<>(), nullptr);  // NOLINT
}

TEST(AlignedBufferTest, SizesThatCannotBe) {
  for (const size_t bytes :
       {std::numeric_limits<size_t>::max(), std::numeric_limits<size_t>::max() - (size_t{2} << 20),
        size_t{1} << 62}) {
    const Result<AlignedBuffer> buffer = AlignedBuffer::allocate(bytes);
    ASSERT_FALSE(buffer.ok()) << bytes;
    EXPECT_EQ(buffer.status().code(), Code::kResourceExhausted);
  }
  const Result<AlignedBuffer> largest = AlignedBuffer::allocate(std::numeric_limits<size_t>::max());
  EXPECT_EQ(largest.status().message(), "allocate 18446744073709551615 B");
}

}  // namespace
}  // namespace shoal
