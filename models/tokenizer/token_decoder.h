#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/tokenizer/component.h"
#include "models/tokenizer/pattern.h"

namespace shoal {

/// One step of decoding, which receives its input piece by piece. A token arrives as any number of
/// text() calls and one end_token(); each text() holds whole characters. A stage passes on what
/// later input cannot change and keeps the rest. It needs constant space, unless the decoder's own
/// rule looks ahead without bound.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void text(std::string_view text) = 0;
  virtual void end_token() = 0;
  /// No token follows, so the stage passes on everything that it has kept.
  virtual void finish() = 0;
};

/// The chained stages of one decoding. Not thread-safe; the TokenDecoder must outlive it.
class DecodeChain {
 public:
  void push(std::string_view piece) {
    stages_.back()->text(piece);
    stages_.back()->end_token();
  }
  void finish() { stages_.back()->finish(); }
  /// Returns the text that was decoded since the last call.
  std::string take() { return std::exchange(*out_, {}); }

 private:
  friend class TokenDecoder;
  std::unique_ptr<std::string> out_ = std::make_unique<std::string>();
  // In reverse order: each stage points to the one stored before it.
  std::vector<std::unique_ptr<DecodeStage>> stages_;
};

/// The "decoder" of tokenizer.json: ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and
/// Sequences of them. Immutable, thread-safe.
class TokenDecoder {
 public:
  /// INVALID_ARGUMENT (damaged) or UNIMPLEMENTED (names what is not supported).
  static Result<TokenDecoder> parse(const Json& tokenizer, std::string_view what);

  DecodeChain start() const;

 private:
  enum class Kind { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace };
  struct Step {
    Kind kind;
    Pattern pattern;      // Replace
    std::string content;  // Replace, Strip; Metaspace's replacement
    int64_t start = 0;    // Strip: the most characters to remove
    int64_t stop = 0;
    bool drop_first = false;  // Metaspace
  };
  static Result<Step> parse_step(const Component& component);

  std::vector<Step> steps_;  // if empty, pieces are joined with spaces
};

}  // namespace shoal
