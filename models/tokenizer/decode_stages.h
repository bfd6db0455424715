#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "models/tokenizer/pattern.h"
#include "models/tokenizer/token_decoder.h"
#include "models/tokenizer/unicode.h"

namespace shoal {

/// The stages that token_decoder.cc puts together; each is one decoder of Hugging Face tokenizers,
/// as a stream.

/// The end of the chain.
class CollectStage : public DecodeStage {
 public:
  explicit CollectStage(std::string& out) : out_(out) {}
  void text(std::string_view text) override { out_ += text; }
  void end_token() override {}
  void finish() override {}

 private:
  std::string& out_;
};

/// Without a decoder, tokens are joined by spaces.
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

/// Bytes in GPT-2's alphabet, all tokens together, as UTF-8. Becomes one token.
class ByteLevelStage : public DecodeStage {
 public:
  explicit ByteLevelStage(DecodeStage& next) : next_(next) {}
  void text(std::string_view text) override { piece_ += text; }
  void end_token() override;
  void finish() override;

 private:
  DecodeStage& next_;
  std::string piece_;  // whether it is in the alphabet shows only at its end
  LossyUtf8 utf8_;
};

/// A text for each match within a token. A plain pattern keeps at most its own length; a regex
/// keeps the token.
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

/// Tokens <0x00> to <0xFF> as bytes: a run of them is one text where it is UTF-8 as a whole, else
/// one U+FFFD for each.
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
  std::string piece_;        // the token's beginning, while it may be a byte
  bool passing_ = false;     // it is none: handed on as it comes
  std::string run_;          // bytes so far
  bool run_is_bad_ = false;  // some byte of the run cannot stand there: all of them are U+FFFD
  Utf8Automaton automaton_;
};

/// All tokens become one.
class FuseStage : public DecodeStage {
 public:
  explicit FuseStage(DecodeStage& next) : next_(next) {}
  void text(std::string_view text) override { next_.text(text); }
  void end_token() override {}
  void finish() override;

 private:
  DecodeStage& next_;
};

/// Takes a character off each token: at most `start` times at its beginning, `stop` times at its
/// end.
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
  int64_t held_ = 0;  // how many content_ in a row may yet be the token's end
};

/// The replacement character as a space, and as nothing in the first token where it was prepended.
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
