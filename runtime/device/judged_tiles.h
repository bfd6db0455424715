#pragma once
#include <cstdint>

/// The tiles that tests/data/tensor_core/make.py gives to the judge, an independent program that
/// says what a tensor core makes of them. Only the judge's results are kept in files: the inputs
/// are made here and there by the same rule, from the number of the tile. Floats are bits, because
/// no step of this may depend on how a processor treats subnormals and NaN. The first tiles are
/// also what a device's class is found out with (tensor_core_class.h).
namespace shoal::judged {

inline constexpr int kTiles = 100'000;
inline constexpr int kTilesOfHash = 100;         ///< each hash covers this many tiles
inline constexpr int kWholeTiles = 200;          ///< the first ones, kept in full
inline constexpr uint32_t kOneNan = 0x7fffffff;  ///< the only one that a tensor core makes
inline constexpr int kRows = 16, kColumns = 8, kFactors = 16;

/// What the numbers of a tile are. Tile t has number t % 9.
enum class Kind {
  kUsual,      ///< factors within a few powers of two of 1
  kWide,       ///< any sizes whose products are finite
  kFew,        ///< few values of both signs, of which most cancel
  kPairs,      ///< neighbouring products that cancel, some but for their last bit
  kTiny,       ///< sums of few products around 2^-149, many without an addend
  kSubnormal,  ///< subnormal factors and addends
  kHuge,       ///< sums that overflow, some only on their way
  kInfinite,   ///< infinities and zeros
  kNan,        ///< NaN of all kinds, infinities
};
inline constexpr int kKinds = 9;

/// Exponents as in float32, and how many of 256 numbers are something else.
struct Numbers {
  uint32_t least, count;
  uint32_t zeros = 0, infinities = 0, nans = 0;
};
struct Recipe {
  Numbers a, b, sum;
};
inline constexpr Recipe kRecipes[kKinds] = {
    {{120, 12}, {120, 12}, {118, 16}},
    {{20, 165}, {20, 165}, {0, 240}},
    {},  // kFewValues
    {{110, 30}, {110, 30}, {90, 70}},
    {{40, 21, 128}, {40, 21}, {0, 3, 192}},
    {{0, 3}, {90, 40}, {0, 3, 64}},
    {{185, 6}, {185, 6}, {250, 5}},
    {{60, 130, 8, 4}, {60, 130, 8, 4}, {60, 130, 8, 4}},
    {{60, 130, 0, 1, 3}, {60, 130, 0, 1, 3}, {60, 130, 0, 1, 3}},
};
inline constexpr uint32_t kFewValues[] = {0x3f800000, 0x3f810000, 0x40000000, 0x5f000000,
                                          0x33000000, 0x32800000, 0x00010000, 0x00000000};

/// Number i of the generator splitmix64 (Steele, Lea and Flood 2014).
inline uint64_t random_word(uint64_t i) {
  uint64_t word = 0x5ca1ab1e + (i + 1) * 0x9e3779b97f4a7c15;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
  word = (word ^ word >> 27) * 0x94d049bb133111eb;
  return word ^ word >> 31;
}
/// A chance in 256 that nothing else of the word depends on.
inline uint32_t chance_of(uint64_t word) {
  return static_cast<uint32_t>(word & 0xff);
}

inline uint32_t number_of(Kind kind, const Numbers& numbers, uint64_t word) {
  const uint32_t sign = static_cast<uint32_t>(word >> 63) << 31, chance = chance_of(word);
  const auto choice = static_cast<uint32_t>(word >> 20 & 0xfffff);
  if (kind == Kind::kFew) return sign | kFewValues[choice % 8];
  const auto fraction = static_cast<uint32_t>(word >> 40 & 0x7fffff);
  if (chance < numbers.zeros) return sign;
  const uint32_t from_top = 255 - chance;
  if (from_top < numbers.infinities) return sign | 0x7f800000;
  // Half of them are infinity for a tensor core, which does not read the end of the fraction.
  if (from_top < numbers.infinities + numbers.nans)
    return sign | 0x7f800000 | ((word >> 8 & 1) != 0 ? fraction : fraction & 0x1fff);
  return sign | (numbers.least + choice % numbers.count) << 23 | fraction;
}

/// The inputs of a tile, as the bits of float32 numbers. A tile of bfloat16 takes the first 16 bits
/// of each factor. A tile of tf32 reads the first 19 bits, and has only half of the factors.
struct Tile {
  uint32_t a[kRows][kFactors];
  uint32_t b[kColumns][kFactors];  ///< by columns
  uint32_t sum[kRows][kColumns];
};

inline Tile tile_of(int number) {
  constexpr int kWords = (kRows + kColumns) * kFactors + kRows * kColumns;
  const Kind kind{number % kKinds};
  const Recipe& recipe = kRecipes[number % kKinds];
  const uint64_t first = static_cast<uint64_t>(number) * kWords;
  const auto word = [&](int i) { return random_word(first + static_cast<uint64_t>(i)); };
  Tile tile;
  for (int i = 0; i < kRows * kFactors; ++i) {
    // The second factor of a pair is the first one, or a neighbour of it.
    const int odd = kind == Kind::kPairs ? i % 2 : 0;
    const uint32_t flip = odd != 0 && chance_of(word(i)) < 64 ? 0x10000 : 0;
    tile.a[i / kFactors][i % kFactors] = number_of(kind, recipe.a, word(i - odd)) ^ flip;
  }
  for (int i = 0; i < kColumns * kFactors; ++i) {
    const int odd = kind == Kind::kPairs ? i % 2 : 0;
    const uint32_t sign = odd != 0 ? 0x80000000 : 0;
    tile.b[i / kFactors][i % kFactors] =
        number_of(kind, recipe.b, word(kRows * kFactors + i - odd)) ^ sign;
  }
  for (int i = 0; i < kRows * kColumns; ++i)
    tile.sum[i / kColumns][i % kColumns] =
        number_of(kind, recipe.sum, word((kRows + kColumns) * kFactors + i));
  return tile;
}

/// A tile's factors as ShoalTiles takes them.
struct Words {
  uint32_t a[kRows][kFactors / 2];
  uint32_t b[kColumns][kFactors / 2];
};
inline Words bf16_words(const Tile& tile) {
  Words words;
  const auto pair = [](const uint32_t* two) { return two[0] >> 16 | (two[1] & 0xffff0000); };
  for (int word = 0; word < kFactors / 2; ++word) {
    for (int row = 0; row < kRows; ++row) words.a[row][word] = pair(tile.a[row] + 2 * word);
    for (int row = 0; row < kColumns; ++row) words.b[row][word] = pair(tile.b[row] + 2 * word);
  }
  return words;
}
/// Clears the bits that tf32 does not read, because the description of the device's instruction
/// does not promise that it ignores them.
inline Words tf32_words(const Tile& tile) {
  Words words;
  for (int word = 0; word < kFactors / 2; ++word) {
    for (int row = 0; row < kRows; ++row) words.a[row][word] = tile.a[row][word] & 0xffffe000;
    for (int row = 0; row < kColumns; ++row) words.b[row][word] = tile.b[row][word] & 0xffffe000;
  }
  return words;
}

/// The hash of results, which are added one after the other: FNV-1a over words instead of bytes.
inline constexpr uint64_t kEmptyHash = 0xcbf29ce484222325;
inline uint64_t added_to_hash(uint64_t hash, uint32_t result) {
  return (hash ^ result) * 0x100000001b3;
}

}  // namespace shoal::judged
