#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer.h"

namespace shoal {

/// One stop string followed through a growing text, byte by byte: the Knuth-Morris-Pratt automaton,
/// so that the cost is the text's length whatever the string.
class StopMatcher {
 public:
  /// Precondition: not empty.
  explicit StopMatcher(std::string stop);

  /// True when the text with this byte ends in the stop string. Not to be called after that.
  bool push(char byte);
  /// The longest end of the text so far that the stop string begins with, in bytes.
  size_t matched() const { return matched_; }
  const std::string& stop() const { return stop_; }

 private:
  std::string stop_;
  std::vector<size_t> fallback_;  // of each prefix: its longest proper border
  size_t matched_ = 0;
};

/// A request's token ids as text deltas, up to a stop string. Special tokens give no text. What
/// could still turn out to be the beginning of a stop string is held back. The match is the one
/// that is complete first, and of those complete at the same byte the longest: it does not depend
/// on how the text is cut into tokens. Not thread-safe.
class TextOutput {
 public:
  TextOutput(const Tokenizer& tokenizer, const std::vector<std::string>& stop, bool include_stop);

  /// The text that this token settles: whole characters, often empty. After a match nothing more
  /// comes.
  std::string push(int32_t id);
  /// The rest, when no more tokens come. It may itself complete a stop string.
  std::string finish();

  /// The stop string that matched; empty while none has.
  std::string_view stop_text() const { return stop_text_; }
  bool stopped() const { return !stop_text_.empty(); }

 private:
  std::string settle(std::string_view decoded);

  StreamDecoder decoder_;
  std::vector<StopMatcher> matchers_;
  bool include_stop_;
  std::string held_;  // decoded and not yet given out
  std::string stop_text_;
};

}  // namespace shoal
