#pragma once
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace shoal {

/// Checks that bytes are either refused, or decode to a value that encodes to the same bytes again.
/// Anything else would mean that a field is read and dropped, or that memory is taken for something
/// that is not in the bytes.
template <typename Decode, typename Encode>
void expect_one_spelling(const std::string& bytes, const Decode& decode, const Encode& encode) {
  const auto value = decode(std::string_view(bytes));
  if (value.ok()) {
    EXPECT_EQ(encode(*value), bytes);
  } else {
    EXPECT_EQ(value.status().code(), Code::kInternal) << value.status().to_string();
  }
}

/// `bytes` is the encoding of a value. Tries every prefix of it, the encoding with one more byte,
/// and thousands of copies with some bytes changed.
template <typename Decode, typename Encode>
void attack(const std::string& bytes, const Decode& decode, const Encode& encode) {
  ASSERT_TRUE(decode(std::string_view(bytes)).ok());
  EXPECT_EQ(encode(*decode(std::string_view(bytes))), bytes);
  for (size_t length = 0; length < bytes.size(); ++length) {
    // Copy the prefix into a buffer of exactly its size, so that a sanitizer detects a read beyond
    // it.
    const std::string beginning(bytes, 0, length);
    EXPECT_EQ(decode(std::string_view(beginning)).status().code(), Code::kInternal)
        << length << " of " << bytes.size();
  }
  EXPECT_EQ(decode(std::string_view(bytes + '\0')).status().code(), Code::kInternal);
  std::mt19937 random(7);
  for (int round = 0; round < 4000 && !bytes.empty(); ++round) {
    std::string changed = bytes;
    for (uint32_t change = 0; change <= random() % 3; ++change) {
      char& byte = changed[random() % changed.size()];
      byte = round % 2 == 0 ? static_cast<char>(byte ^ (1 << random() % 8))
                            : static_cast<char>(random());
    }
    expect_one_spelling(changed, decode, encode);
  }
}

}  // namespace shoal
