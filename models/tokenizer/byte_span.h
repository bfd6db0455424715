#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

namespace shoal {

/// The bytes [begin, end) of a text.
struct ByteSpan {
  size_t begin = 0;
  size_t end = 0;

  bool operator==(const ByteSpan&) const = default;
};

/// The parts of a text in which no special token may be found, because a client wrote them.
struct UntrustedText {
  std::string_view text;
  std::span<const ByteSpan> spans;  ///< sorted, not empty, and they do not overlap

  /// The spans that overlap the bytes [begin, end).
  std::span<const ByteSpan> overlapping(size_t begin, size_t end) const {
    const auto first = std::lower_bound(spans.begin(), spans.end(), begin,
                                        [](const ByteSpan& s, size_t at) { return s.end <= at; });
    const auto last = std::lower_bound(first, spans.end(), end,
                                       [](const ByteSpan& s, size_t at) { return s.begin < at; });
    return {first, last};
  }
};

}  // namespace shoal
