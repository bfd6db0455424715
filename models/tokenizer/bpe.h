#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/tokenizer/work_limit.h"
#include "runtime/base/json.h"

namespace shoal {

/// The "model" of tokenizer.json: byte pair encoding, with Hugging Face's options unk_token,
/// fuse_unk, byte_fallback and ignore_merges. Immutable, thread-safe.
class BpeModel {
 public:
  /// Bounds the id table. It is 16 times the largest vocabulary known.
  static constexpr int32_t kMaxId = (1 << 22) - 1;
  static constexpr size_t kMaxPieceBytes = 16384;

  /// INVALID_ARGUMENT (damaged; names the piece or merge) or UNIMPLEMENTED (names the model type or
  /// option that is not supported).
  static Result<BpeModel> parse(const Json& tokenizer, std::string_view what);

  /// Appends the ids of one piece of text. Takes O(n log n) time for the n bytes of each of its
  /// parts(). FAILED_PRECONDITION: a character is unknown and the unk_token is not in the
  /// vocabulary. RESOURCE_EXHAUSTED: a part is too long for the limit.
  Status encode(std::string_view piece, std::vector<int32_t>& ids, const WorkLimit& limit) const;

  /// Calls use(part) for the parts of a piece that can be merged each by itself, in order, until it
  /// returns an error. If no entry of the vocabulary has a "▁" behind another character, no merge
  /// can cross the beginning of a word, and the parts are the words; otherwise the piece is one
  /// part. This makes the time linear for a tokenizer that has no splitter, and does not change
  /// the ids.
  template <typename Use>
  Status for_each_part(std::string_view piece, const Use& use) const {
    for (size_t begin = 0, end = 0; begin < piece.size(); begin = end) {
      end = part_end(piece, begin);
      SHOAL_RETURN_IF_ERROR(use(piece.substr(begin, end - begin)));
    }
    return {};
  }

  std::optional<int32_t> find(std::string_view piece) const;
  /// The spelling of an id; empty if there is none.
  std::string_view piece(int32_t id) const;
  int32_t max_id() const { return static_cast<int32_t>(pieces_.size()) - 1; }
  /// The number of entries. It is less than max_id() + 1 if some ids are not used.
  size_t size() const { return vocabulary_.size(); }

 private:
  struct Merge {
    uint32_t rank = 0;
    int32_t id = 0;
  };
  struct Symbol {
    int32_t id = 0;  // -1: merged into the symbol before it
    int32_t previous = -1;
    int32_t next = -1;
  };
  struct Candidate;  // a pair that could be merged
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  Status parse_options(const Json& model, std::string_view what);
  Status parse_vocabulary(const Json& model, std::string_view what);
  Status index_vocabulary(std::string_view what);
  Status parse_merges(const Json& model, std::string_view what);
  Status add_merge(std::string_view left, std::string_view right, size_t rank,
                   std::string_view what);

  bool spaces_begin_words() const;
  size_t part_end(std::string_view piece, size_t begin) const;
  Status encode_part(std::string_view part, std::vector<int32_t>& ids,
                     const WorkLimit& limit) const;
  Status to_symbols(std::string_view part, std::vector<Symbol>& symbols) const;
  bool append_bytes(std::string_view character, std::vector<Symbol>& symbols) const;
  Status merge_all(std::vector<Symbol>& symbols, const WorkLimit& limit) const;
  const Merge* find_merge(int32_t left, int32_t right) const;

  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> vocabulary_;
  std::vector<std::string_view> pieces_;  // by id; views of vocabulary_'s keys
  std::unordered_map<uint64_t, Merge> merges_;
  std::vector<int32_t> byte_ids_;  // the ids of <0x00> .. <0xFF>; -1 if absent
  std::string unk_token_;
  bool has_unk_ = false;
  int32_t unk_id_ = -1;
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool spaces_begin_words_ = false;
};

}  // namespace shoal
