#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer.h"

namespace shoal {

/// Searches a growing text for one stop string, byte by byte. It is the Knuth-Morris-Pratt
/// automaton, so the cost depends only on the length of the text, not on the string.
class StopMatcher {
 public:
  /// Precondition: stop is not empty.
  explicit StopMatcher(std::string stop);

  /// Returns true if the text up to this byte ends with the stop string. Must not be called after
  /// that.
  bool push(char byte);
  /// The length in bytes of the longest suffix of the text so far that is a prefix of the stop
  /// string.
  size_t matched() const { return matched_; }
  const std::string& stop() const { return stop_; }

 private:
  std::string stop_;
  std::vector<size_t> fallback_;  // the length of each prefix's longest proper border
  size_t matched_ = 0;
};

/// Turns a request's token ids into pieces of text, up to a stop string. Special tokens give no
/// text. Text that may still become a stop string is held back. The match is the one that is
/// complete first, and the longest of those complete at the same byte, so it does not depend on how
/// the text is cut into tokens. Not thread-safe.
class TextOutput {
 public:
  TextOutput(const Tokenizer& tokenizer, const std::vector<std::string>& stop, bool include_stop);

  /// Returns the text that is final after this token: whole characters, often none. After a match
  /// it returns nothing more.
  std::string push(int32_t id);
  /// Returns the rest when no more tokens follow. The rest may itself complete a stop string.
  std::string finish();

  /// The stop string that matched; empty as long as none has.
  std::string_view stop_text() const { return stop_text_; }
  bool stopped() const { return !stop_text_.empty(); }

 private:
  std::string settle(std::string_view decoded);

  StreamDecoder decoder_;
  std::vector<StopMatcher> matchers_;
  bool include_stop_;
  std::string held_;  // decoded but not returned yet
  std::string stop_text_;
};

}  // namespace shoal
