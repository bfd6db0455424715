#include "server/serving/text_output.h"

#include <algorithm>
#include <utility>

namespace shoal {

StopMatcher::StopMatcher(std::string stop) : stop_(std::move(stop)), fallback_(stop_.size()) {
  for (size_t i = 1, border = 0; i < stop_.size(); ++i) {
    while (border > 0 && stop_[i] != stop_[border]) border = fallback_[border - 1];
    if (stop_[i] == stop_[border]) ++border;
    fallback_[i] = border;
  }
}

bool StopMatcher::push(char byte) {
  while (matched_ > 0 && stop_[matched_] != byte) matched_ = fallback_[matched_ - 1];
  if (stop_[matched_] == byte) ++matched_;
  return matched_ == stop_.size();
}

TextOutput::TextOutput(const Tokenizer& tokenizer, const std::vector<std::string>& stop,
                       bool include_stop)
    : decoder_(tokenizer, /*skip_special=*/true),
      matchers_(stop.begin(), stop.end()),
      include_stop_(include_stop) {}

std::string TextOutput::push(int32_t id) {
  return stopped() ? std::string() : settle(decoder_.push(id));
}

std::string TextOutput::finish() {
  if (stopped()) return {};
  std::string text = settle(decoder_.finish());
  return stopped() ? text : text + std::exchange(held_, {});
}

/// Adds decoded text, and returns all of it except an end that may be the beginning of a stop
/// string.
std::string TextOutput::settle(std::string_view decoded) {
  if (matchers_.empty()) return std::string(decoded);
  for (const char byte : decoded) {
    held_ += byte;
    for (StopMatcher& matcher : matchers_) {
      if (matcher.push(byte) && matcher.stop().size() > stop_text_.size())
        stop_text_ = matcher.stop();
    }
    if (stopped()) {
      // The whole match is in held_, because at every earlier byte at least the part that had
      // matched was held back.
      if (!include_stop_) held_.resize(held_.size() - stop_text_.size());
      return std::exchange(held_, {});
    }
  }
  size_t keep = 0;
  for (const StopMatcher& matcher : matchers_) keep = std::max(keep, matcher.matched());
  std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, text.size());
  return text;
}

}  // namespace shoal
