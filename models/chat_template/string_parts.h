#pragma once
#include <string_view>
#include <vector>

#include "models/chat_template/run.h"

namespace shoal::jinja {

// What the methods of str and the filters share. The origin of each character is kept.

/// Counts what std::string_view::rfind may cost, which is the product of both lengths. False if the
/// rendering has to stop.
bool step_to_search_back(Run& run, std::string_view text, std::string_view mark);

/// str.replace; a negative count replaces all.
Text replaced(Run& run, const Text& text, const Text& from, const Text& to, int64_t count);

enum class Side { kBoth, kLeft, kRight };
/// The text without white space, or without the characters of `chars` if it is a string.
Text stripped(Run& run, const Text& text, const Value* chars, Side side);

/// str.splitlines.
std::vector<Text> lines_of(const Text& text, bool keep_ends);

/// str.split and str.rsplit with at most `most` cuts; a negative number means any.
std::vector<Text> split_at_spaces(const Text& text, int64_t most);
std::vector<Text> split_at_spaces_from_right(const Text& text, int64_t most);
std::vector<Text> split_at(Run& run, const Text& text, std::string_view separator, int64_t most,
                           bool from_right);

/// str.join.
Value joined(Run& run, const Text& separator, const std::vector<Text>& parts);

}  // namespace shoal::jinja
