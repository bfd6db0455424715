#include "models/tokenizer/decode_stages.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "models/tokenizer/byte_level.h"

namespace shoal {

void JoinStage::text(std::string_view text) {
  if (!inside_ && !first_) next_.text(" ");
  inside_ = true;
  next_.text(text);
}

void JoinStage::end_token() {
  if (!inside_ && !first_) next_.text(" ");
  inside_ = false;
  first_ = false;
}

void ByteLevelStage::end_token() {
  std::string bytes;
  append_byte_level_decoded(piece_, bytes);
  piece_.clear();
  std::string text;
  utf8_.write(bytes, text);
  if (!text.empty()) next_.text(text);
}

void ByteLevelStage::finish() {
  std::string text;
  utf8_.finish(text);
  if (!text.empty()) next_.text(text);
  next_.end_token();
  next_.finish();
}

void ReplaceStage::text(std::string_view text) {
  held_ += text;
  if (!pattern_.literal().empty()) replace_literals();
}

/// Passes on everything except a tail that may be the beginning of a match. The text that is passed
/// on holds whole characters, because the pattern begins with a whole character.
void ReplaceStage::replace_literals() {
  const std::string& pattern = pattern_.literal();
  size_t done = 0;
  for (size_t at = held_.find(pattern); at != std::string::npos; at = held_.find(pattern, done)) {
    if (at > done) next_.text(std::string_view(held_).substr(done, at - done));
    if (!content_.empty()) next_.text(content_);
    done = at + pattern.size();
  }
  size_t keep = std::min(pattern.size() - 1, held_.size() - done);
  while (keep > 0 && !std::string_view(pattern).starts_with(
                         std::string_view(held_).substr(held_.size() - keep)))
    --keep;
  const size_t end = held_.size() - keep;
  if (end > done) next_.text(std::string_view(held_).substr(done, end - done));
  held_.erase(0, end);
}

void ReplaceStage::replace_all() {
  WorkLimit limit;
  const auto spans = pattern_.spans(held_, limit);
  if (!spans.ok()) {  // the regex hit its limit: keep the token, because decoding cannot fail
    next_.text(held_);
    return;
  }
  for (const Span& span : *spans) {
    const std::string_view part =
        span.match ? content_ : std::string_view(held_).substr(span.begin, span.end - span.begin);
    if (!part.empty()) next_.text(part);
  }
}

void ReplaceStage::end_token() {
  if (!pattern_.literal().empty()) {
    if (!held_.empty()) next_.text(held_);
  } else if (!held_.empty()) {
    replace_all();
  }
  held_.clear();
  next_.end_token();
}

namespace {

/// The byte that <0xNN> names. A plus sign is accepted as the first digit, because Hugging Face
/// uses Rust's from_str_radix, which accepts one.
std::optional<uint8_t> byte_of(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return std::nullopt;
  int value = 0;
  for (size_t i = 3; i < 5; ++i) {
    const char c = piece[i];
    if (i == 3 && c == '+') continue;
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<uint8_t>(value);
}

constexpr size_t kBytePieceBytes = 6;  // <0xNN>

}  // namespace

void ByteFallbackStage::text(std::string_view text) {
  if (!passing_) {
    piece_ += text;
    if (piece_.size() <= kBytePieceBytes) return;
    passing_ = true;
    end_run();
    next_.text(piece_);
    piece_.clear();
    return;
  }
  next_.text(text);
}

void ByteFallbackStage::end_token() {
  if (!passing_) {
    if (const auto byte = byte_of(piece_)) {
      piece_.clear();
      add_byte(*byte);
      return;
    }
    end_run();
    if (!piece_.empty()) next_.text(piece_);
    piece_.clear();
  }
  passing_ = false;
  next_.end_token();
}

void ByteFallbackStage::add_byte(uint8_t byte) {
  if (run_is_bad_) return replacement();
  run_ += static_cast<char>(byte);
  if (automaton_.step(byte) != Utf8Automaton::State::kInvalid) return;
  run_is_bad_ = true;  // no later byte can make the run valid
  for (size_t i = 0; i < run_.size(); ++i) replacement();
}

void ByteFallbackStage::replacement() {
  next_.text(kReplacementCharacter);
  next_.end_token();
}

void ByteFallbackStage::end_run() {
  if (!run_is_bad_ && !run_.empty()) {
    if (automaton_.at_start()) {
      next_.text(run_);
      next_.end_token();
    } else {
      for (size_t i = 0; i < run_.size(); ++i) replacement();
    }
  }
  run_.clear();
  run_is_bad_ = false;
  automaton_ = {};
}

void ByteFallbackStage::finish() {
  end_run();
  next_.finish();
}

void FuseStage::finish() {
  next_.end_token();
  next_.finish();
}

void StripStage::text(std::string_view text) {
  size_t kept = 0;  // the text from here to `at` is passed on unchanged
  size_t at = 0;
  const auto pass = [&](size_t end) {
    if (end > kept) next_.text(text.substr(kept, end - kept));
  };
  while (at < text.size()) {
    const size_t bytes = code_point_at(text, at).bytes;
    const bool is_content = text.substr(at, bytes) == content_;
    if (at_beginning_ && is_content && stripped_ < start_) {
      ++stripped_;
      kept = at + bytes;
    } else {
      at_beginning_ = false;
      if (is_content && stop_ > 0) {
        pass(at);
        kept = at + bytes;
        if (++held_ > stop_) release(1);
      } else if (held_ > 0) {
        release(held_);
      }
    }
    at += bytes;
  }
  pass(at);
}

void StripStage::release(int64_t count) {
  for (int64_t i = 0; i < count; ++i) next_.text(content_);
  held_ -= count;
}

void StripStage::end_token() {
  held_ = 0;
  stripped_ = 0;
  at_beginning_ = true;
  next_.end_token();
}

void MetaspaceStage::text(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = code_point_at(text, at).bytes;
    const std::string_view character = text.substr(at, bytes);
    if (character != replacement_) {
      out += character;
    } else if (!drop_) {
      out += ' ';
    }
    at += bytes;
  }
  if (!out.empty()) next_.text(out);
}

void MetaspaceStage::end_token() {
  drop_ = false;
  next_.end_token();
}

}  // namespace shoal
