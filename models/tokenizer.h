#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/byte_span.h"
#include "runtime/base/status.h"

namespace shoal {

/// When an encoding may stop early.
struct EncodeBounds {
  /// The caller has no use for a text of more ids than this. Encoding such a text may stop early.
  /// The result then holds only its first ids, but at least one more than max_ids, so that the
  /// caller sees that there are too many.
  size_t max_ids = std::numeric_limits<size_t>::max();
  /// Nobody waits for the result any more once this is true; null: somebody always does.
  const std::atomic<bool>* given_up = nullptr;
};

/// A Hugging Face tokenizer.json: byte-level BPE and byte-fallback BPE. Immutable; encode and
/// decode are thread-safe.
class Tokenizer {
 public:
  /// Takes a model directory, or the path of a tokenizer.json. NOT_FOUND, INVALID_ARGUMENT
  /// (damaged) or UNIMPLEMENTED (the message names the part that is not supported).
  static Result<Tokenizer> load(const std::string& model_dir_or_file);
  static Result<Tokenizer> parse(std::string_view json, std::string_view what);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Converts text (any bytes; invalid UTF-8 is read as U+FFFD) to ids. With add_special, the
  /// post-processor adds its special tokens (BOS and the like). Special tokens written in the text
  /// are recognised in either case. RESOURCE_EXHAUSTED: the splitter's regex hit its limit, or the
  /// text needs more than 512 MiB of working memory. FAILED_PRECONDITION: a character is unknown to
  /// the vocabulary, and so is its unk_token. CANCELLED: it was given up.
  Result<std::vector<int32_t>> encode(std::string_view text, bool add_special,
                                      const EncodeBounds& bounds = {}) const;

  /// Converts text as encode() does without add_special, except that no special token is found in
  /// or across the bytes of `untrusted` (sorted, not empty, not overlapping). Other added tokens
  /// are found everywhere. INVALID_ARGUMENT: the text is not UTF-8, or a span is outside it. Other
  /// errors are those of encode().
  Result<std::vector<int32_t>> encode_marked(std::string_view text,
                                             std::span<const ByteSpan> untrusted,
                                             const EncodeBounds& bounds = {}) const;

  /// Converts ids to text with the file's decoder. Ids outside the vocabulary give no text. The
  /// result is valid UTF-8.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  /// The largest id plus one.
  int32_t vocab_size() const;
  bool is_special(int32_t id) const;
  /// The id's spelling in the vocabulary; empty if it has none.
  std::string_view piece(int32_t id) const;

  struct Impl;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  Result<std::vector<int32_t>> encode_valid(std::string_view text, const UntrustedText* untrusted,
                                            bool add_special, const EncodeBounds& bounds) const;
  std::shared_ptr<const Impl> impl_;
};

/// Decodes a growing sequence. The concatenation of everything that push() and finish() return
/// equals Tokenizer::decode of all ids, and no return value ends inside a UTF-8 character. push()
/// returns text only when later ids can no longer change it. The cost of a push does not grow with
/// the number of ids before it.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special);
  StreamDecoder(StreamDecoder&&) noexcept;
  ~StreamDecoder();

  std::string push(int32_t id);
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal
