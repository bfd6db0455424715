#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/judged_tiles.h"

/// What the judge says of the tiles, as tests/data/tensor_core/make.py has written it.
namespace shoal::judged {

inline constexpr int kResults = kRows * kColumns;
inline constexpr int kHashes = kTiles / kTilesOfHash;
using Results = std::array<uint32_t, kResults>;

struct Verdicts {
  std::vector<uint64_t> hashes;
  std::vector<Results> whole;
};

/// nullopt: the file is not there, or has another size.
inline std::optional<Verdicts> read_verdicts(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  Verdicts verdicts{std::vector<uint64_t>(kHashes), std::vector<Results>(kWholeTiles)};
  const size_t of_hashes = kHashes * sizeof(uint64_t);
  const size_t of_whole = kWholeTiles * sizeof(Results);
  if (bytes.size() != of_hashes + of_whole) return std::nullopt;
  std::memcpy(verdicts.hashes.data(), bytes.data(), of_hashes);
  std::memcpy(verdicts.whole.data(), bytes.data() + of_hashes, of_whole);
  return verdicts;
}

/// The hash of some tiles, whose results follow each other.
inline uint64_t hash_of(const uint32_t* results, size_t count) {
  uint64_t hash = kEmptyHash;
  for (size_t i = 0; i < count; ++i) hash = added_to_hash(hash, results[i]);
  return hash;
}

}  // namespace shoal::judged
