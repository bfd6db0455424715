#pragma once
#include "models/chat_template/text.h"

namespace shoal::jinja {

// str.upper(), str.lower(), str.capitalize() and str.title(), with Unicode's full mappings: one
// character can become several, which all keep its origin.
Text to_upper(const Text& text);
Text to_lower(const Text& text);
Text capitalize(const Text& text);
/// Jinja2's filter `title` and str.title() differ in what begins a word. `is_filter` chooses.
Text to_title(const Text& text, bool is_filter);

bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_letter(char32_t c);
bool is_decimal_digit(char32_t c);

}  // namespace shoal::jinja
