#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "models/tokenizer/pattern.h"
#include "models/tokenizer/token_decoder.h"
#include "models/tokenizer/unicode.h"

namespace shoal {

/// The stages that token_decoder.cc chains. Each is the streaming form of one decoder of Hugging
/// Face tokenizers.

/// The end of the chain: appends all text to a string.
class CollectStage : public DecodeStage {
 public:
  explicit CollectStage(std::string& out) : out_(out) {}
  void text(std::string_view text) override { out_ += text; }
  void end_token() override {}
  void finish() override {}

 private:
  std::string& out_;
};

/// Joins tokens with spaces. This stage is used if tokenizer.json names no decoder.
class JoinStage : public DecodeStage {
 public:
  explicit JoinStage(DecodeStage& next) : next_(next) {}
  void text(std::string_view text) override;
  void end_token() override;
  void finish() override { next_.finish(); }

 private:
  DecodeStage& next_;
  bool first_ = true;
  bool inside_ = false;
};

/// Decodes GPT-2's alphabet to bytes and these to UTF-8. All tokens become one, because a character
/// may be spread over several.
class ByteLevelStage : public DecodeStage {
 public:
  explicit ByteLevelStage(DecodeStage& next) : next_(next) {}
  void text(std::string_view text) override { piece_ += text; }
  void end_token() override;
  void finish() override;

 private:
  DecodeStage& next_;
  std::string piece_;  // kept, because only its end shows whether all of it is in the alphabet
  LossyUtf8 utf8_;
};

/// Replaces each match within a token. A plain pattern holds back at most its own length of text; a
/// regex holds back the whole token.
class ReplaceStage : public DecodeStage {
 public:
  ReplaceStage(const Pattern& pattern, std::string_view content, DecodeStage& next)
      : pattern_(pattern), content_(content), next_(next) {}
  void text(std::string_view text) override;
  void end_token() override;
  void finish() override { next_.finish(); }

 private:
  void replace_literals();
  void replace_all();

  const Pattern& pattern_;
  const std::string_view content_;
  DecodeStage& next_;
  std::string held_;
};

/// Decodes tokens <0x00> to <0xFF> as bytes. A run of them becomes text if the whole run is valid
/// UTF-8, otherwise one U+FFFD for each byte.
class ByteFallbackStage : public DecodeStage {
 public:
  explicit ByteFallbackStage(DecodeStage& next) : next_(next) {}
  void text(std::string_view text) override;
  void end_token() override;
  void finish() override;

 private:
  void add_byte(uint8_t byte);
  void end_run();
  void replacement();

  DecodeStage& next_;
  std::string piece_;        // the token's beginning, as long as it may still be a byte
  bool passing_ = false;     // it is not a byte: the rest is passed on directly
  std::string run_;          // the bytes of the current run
  bool run_is_bad_ = false;  // the run is not valid UTF-8: each of its bytes becomes U+FFFD
  Utf8Automaton automaton_;
};

/// Joins all tokens to one.
class FuseStage : public DecodeStage {
 public:
  explicit FuseStage(DecodeStage& next) : next_(next) {}
  void text(std::string_view text) override { next_.text(text); }
  void end_token() override {}
  void finish() override;

 private:
  DecodeStage& next_;
};

/// Removes a character from each token: at most `start` times at its beginning and `stop` times at
/// its end.
class StripStage : public DecodeStage {
 public:
  StripStage(std::string_view content, int64_t start, int64_t stop, DecodeStage& next)
      : content_(content), start_(start), stop_(stop), next_(next) {}
  void text(std::string_view text) override;
  void end_token() override;
  void finish() override { next_.finish(); }

 private:
  void release(int64_t count);

  const std::string_view content_;
  const int64_t start_;
  const int64_t stop_;
  DecodeStage& next_;
  int64_t stripped_ = 0;
  bool at_beginning_ = true;
  // How many content_ in a row are held back, because they may be the token's end.
  int64_t held_ = 0;
};

/// Turns the replacement character into a space. In the first token it is dropped instead if
/// encoding has prepended it.
class MetaspaceStage : public DecodeStage {
 public:
  MetaspaceStage(std::string_view replacement, bool drop_first, DecodeStage& next)
      : replacement_(replacement), drop_(drop_first), next_(next) {}
  void text(std::string_view text) override;
  void end_token() override;
  void finish() override { next_.finish(); }

 private:
  const std::string_view replacement_;
  bool drop_;
  DecodeStage& next_;
};

}  // namespace shoal
