#include "runtime/base/archive.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "tests/hostile_bytes.h"

namespace shoal {
namespace {

enum class Colour : uint8_t { kRed, kBlue };

struct Point {
  int32_t x = 0;
  double y = 0;
  friend bool operator==(const Point&, const Point&) = default;
};
template <typename Archive>
void fields(Archive& archive, Point& point) {
  archive(point.x, point.y);
}

struct Everything {
  bool yes = false;
  Colour colour = Colour::kRed;
  int8_t small = 0;
  uint64_t large = 0;
  float ratio = 0;
  std::string text;
  std::vector<int64_t> numbers;
  std::vector<std::string> words;
  std::vector<Point> points;
  std::vector<std::vector<Point>> shapes;
  std::optional<std::string> maybe;
  std::optional<Point> nothing;
  std::variant<Point, std::string> either;
  friend bool operator==(const Everything&, const Everything&) = default;
};
template <typename Archive>
void fields(Archive& archive, Everything& e) {
  archive(e.yes, e.colour, e.small, e.large, e.ratio, e.text, e.numbers, e.words, e.points,
          e.shapes, e.maybe, e.nothing, e.either);
}

Everything sample() {
  Everything e;
  e.yes = true;
  e.colour = Colour::kBlue;
  e.small = -128;
  e.large = ~uint64_t{0};
  e.ratio = 0.1f;
  e.text = std::string("caf\xe9\0\xff", 6);
  e.numbers = {std::numeric_limits<int64_t>::min(), 0, 7};
  e.words = {"", "one", std::string(300, '\0')};
  e.points = {{1, 0.5}, {-2, -0.0}};
  e.shapes = {{}, {{3, 4}}, {{5, 6}, {7, 8}}};
  e.maybe = "there";
  e.either = std::string("text");
  return e;
}

template <typename T>
auto decoder(const char* what) {
  return [what](std::string_view bytes) { return decode<T>(bytes, what); };
}

constexpr auto kEncode = [](const auto& value) { return encode(value); };

TEST(Archive, KeepsEveryKindOfField) {
  const Result<Everything> back = decode<Everything>(encode(sample()), "sample");
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_TRUE(*back == sample());
  const Result<Everything> empty = decode<Everything>(encode(Everything{}), "sample");
  ASSERT_TRUE(empty.ok()) << empty.status().to_string();
  EXPECT_TRUE(*empty == Everything{});
}

TEST(Archive, FloatsKeepTheirBits) {
  uint32_t signalling = 0x7f800001;
  float quiet_no_more = 0;
  std::memcpy(&quiet_no_more, &signalling, 4);
  const std::vector<float> floats = {0.1f, -0.0f, std::numeric_limits<float>::denorm_min(),
                                     INFINITY, quiet_no_more};
  const Result<std::vector<float>> back = decode<std::vector<float>>(encode(floats), "floats");
  ASSERT_TRUE(back.ok());
  ASSERT_EQ(back->size(), floats.size());
  EXPECT_EQ(std::memcmp(back->data(), floats.data(), floats.size() * sizeof(float)), 0);
}

TEST(Archive, AStatusKeepsItsChainAndItsFault) {
  set_process_rank(1);
  const Status root = Status::error(Code::kResourceExhausted, "fallocate 9637892 B", 28)
                          .blamed_on(Fault::kSharedMemory);
  set_process_rank(kFrontRank);
  const Status whole = root.because_of(Code::kUnavailable, "no transport for 4 ranks");
  const auto back = decode<std::optional<Status>>(encode(std::optional(whole)), "status");
  ASSERT_TRUE(back.ok());
  ASSERT_TRUE(back->has_value());
  EXPECT_EQ((*back)->to_string(), whole.to_string());
  EXPECT_EQ((*back)->causes().back().rank, 1);
  EXPECT_EQ((*back)->causes().back().os_error, 28);
  EXPECT_EQ((*back)->causes().back().where, root.causes().back().where);
  EXPECT_EQ((*back)->fault(), Fault::kSharedMemory);
}

TEST(Archive, HostileBytesAreAnError) {
  attack(encode(sample()), decoder<Everything>("sample"), kEncode);
  attack(encode(std::vector<std::string>{"a", "", "ccc"}),
         decoder<std::vector<std::string>>("words"), kEncode);
  for (size_t length = 0; length < 200; ++length) {
    for (const char byte : {'\0', '\x01', '\x7f', '\xff'}) {
      expect_one_spelling(std::string(length, byte), decoder<Everything>("sample"), kEncode);
    }
  }
}

/// The count is stored before the elements. A wrong count must not make the reader take memory for
/// them.
TEST(Archive, ACountBeyondTheBytesTakesNoMemory) {
  for (const uint64_t count : {uint64_t{2}, uint64_t{1} << 32, uint64_t{1} << 61, ~uint64_t{0}}) {
    const std::string lie = encode(count) + std::string(7, '\x01');
    EXPECT_FALSE(decode<std::vector<int64_t>>(lie, "numbers").ok()) << count;
    EXPECT_FALSE(decode<std::vector<Point>>(lie, "points").ok()) << count;
    EXPECT_FALSE(decode<std::vector<std::string>>(lie, "words").ok()) << count;
    EXPECT_FALSE(decode<std::string>(lie, "text").ok()) << count;
  }
}

TEST(Archive, AnErrorNamesWhatWasExpected) {
  const Status status = decode<Point>("12345", "point").status();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_EQ(status.message(), "5 bytes that are not one point");
}

TEST(Archive, ABoolIsZeroOrOne) {
  EXPECT_TRUE(decode<bool>(std::string_view("\x01", 1), "bool").value());
  EXPECT_FALSE(decode<bool>(std::string_view("\x02", 1), "bool").ok());
}

TEST(Archive, AnAlternativeIsEncodedAsItsVariant) {
  using Either = std::variant<Point, std::string>;
  const std::string text = "not copied";
  EXPECT_EQ(encode_as<Either>(text), encode(Either(text)));
  EXPECT_EQ(encode_as<Either>(Point{1, 2}), encode(Either(Point{1, 2})));
}

}  // namespace
}  // namespace shoal
