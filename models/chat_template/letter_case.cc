#include "models/chat_template/letter_case.h"

#include <algorithm>
#include <utf8proc.h>

#include "models/tokenizer/unicode.h"

namespace shoal::jinja {
namespace {

struct FullUpper {
  char32_t from;
  char32_t to[3];  // ends with 0 if it is shorter
};

// Unicode's SpecialCasing.txt: the characters whose upper case has several characters.
constexpr FullUpper kFullUpper[] = {
    {0x00DF, {0x0053, 0x0053}},         {0x0149, {0x02BC, 0x004E}},
    {0x01F0, {0x004A, 0x030C}},         {0x0390, {0x0399, 0x0308, 0x0301}},
    {0x03B0, {0x03A5, 0x0308, 0x0301}}, {0x0587, {0x0535, 0x0552}},
    {0x1E96, {0x0048, 0x0331}},         {0x1E97, {0x0054, 0x0308}},
    {0x1E98, {0x0057, 0x030A}},         {0x1E99, {0x0059, 0x030A}},
    {0x1E9A, {0x0041, 0x02BE}},         {0x1F50, {0x03A5, 0x0313}},
    {0x1F52, {0x03A5, 0x0313, 0x0300}}, {0x1F54, {0x03A5, 0x0313, 0x0301}},
    {0x1F56, {0x03A5, 0x0313, 0x0342}}, {0x1F80, {0x1F08, 0x0399}},
    {0x1F81, {0x1F09, 0x0399}},         {0x1F82, {0x1F0A, 0x0399}},
    {0x1F83, {0x1F0B, 0x0399}},         {0x1F84, {0x1F0C, 0x0399}},
    {0x1F85, {0x1F0D, 0x0399}},         {0x1F86, {0x1F0E, 0x0399}},
    {0x1F87, {0x1F0F, 0x0399}},         {0x1F88, {0x1F08, 0x0399}},
    {0x1F89, {0x1F09, 0x0399}},         {0x1F8A, {0x1F0A, 0x0399}},
    {0x1F8B, {0x1F0B, 0x0399}},         {0x1F8C, {0x1F0C, 0x0399}},
    {0x1F8D, {0x1F0D, 0x0399}},         {0x1F8E, {0x1F0E, 0x0399}},
    {0x1F8F, {0x1F0F, 0x0399}},         {0x1F90, {0x1F28, 0x0399}},
    {0x1F91, {0x1F29, 0x0399}},         {0x1F92, {0x1F2A, 0x0399}},
    {0x1F93, {0x1F2B, 0x0399}},         {0x1F94, {0x1F2C, 0x0399}},
    {0x1F95, {0x1F2D, 0x0399}},         {0x1F96, {0x1F2E, 0x0399}},
    {0x1F97, {0x1F2F, 0x0399}},         {0x1F98, {0x1F28, 0x0399}},
    {0x1F99, {0x1F29, 0x0399}},         {0x1F9A, {0x1F2A, 0x0399}},
    {0x1F9B, {0x1F2B, 0x0399}},         {0x1F9C, {0x1F2C, 0x0399}},
    {0x1F9D, {0x1F2D, 0x0399}},         {0x1F9E, {0x1F2E, 0x0399}},
    {0x1F9F, {0x1F2F, 0x0399}},         {0x1FA0, {0x1F68, 0x0399}},
    {0x1FA1, {0x1F69, 0x0399}},         {0x1FA2, {0x1F6A, 0x0399}},
    {0x1FA3, {0x1F6B, 0x0399}},         {0x1FA4, {0x1F6C, 0x0399}},
    {0x1FA5, {0x1F6D, 0x0399}},         {0x1FA6, {0x1F6E, 0x0399}},
    {0x1FA7, {0x1F6F, 0x0399}},         {0x1FA8, {0x1F68, 0x0399}},
    {0x1FA9, {0x1F69, 0x0399}},         {0x1FAA, {0x1F6A, 0x0399}},
    {0x1FAB, {0x1F6B, 0x0399}},         {0x1FAC, {0x1F6C, 0x0399}},
    {0x1FAD, {0x1F6D, 0x0399}},         {0x1FAE, {0x1F6E, 0x0399}},
    {0x1FAF, {0x1F6F, 0x0399}},         {0x1FB2, {0x1FBA, 0x0399}},
    {0x1FB3, {0x0391, 0x0399}},         {0x1FB4, {0x0386, 0x0399}},
    {0x1FB6, {0x0391, 0x0342}},         {0x1FB7, {0x0391, 0x0342, 0x0399}},
    {0x1FBC, {0x0391, 0x0399}},         {0x1FC2, {0x1FCA, 0x0399}},
    {0x1FC3, {0x0397, 0x0399}},         {0x1FC4, {0x0389, 0x0399}},
    {0x1FC6, {0x0397, 0x0342}},         {0x1FC7, {0x0397, 0x0342, 0x0399}},
    {0x1FCC, {0x0397, 0x0399}},         {0x1FD2, {0x0399, 0x0308, 0x0300}},
    {0x1FD3, {0x0399, 0x0308, 0x0301}}, {0x1FD6, {0x0399, 0x0342}},
    {0x1FD7, {0x0399, 0x0308, 0x0342}}, {0x1FE2, {0x03A5, 0x0308, 0x0300}},
    {0x1FE3, {0x03A5, 0x0308, 0x0301}}, {0x1FE4, {0x03A1, 0x0313}},
    {0x1FE6, {0x03A5, 0x0342}},         {0x1FE7, {0x03A5, 0x0308, 0x0342}},
    {0x1FF2, {0x1FFA, 0x0399}},         {0x1FF3, {0x03A9, 0x0399}},
    {0x1FF4, {0x038F, 0x0399}},         {0x1FF6, {0x03A9, 0x0342}},
    {0x1FF7, {0x03A9, 0x0342, 0x0399}}, {0x1FFC, {0x03A9, 0x0399}},
    {0xFB00, {0x0046, 0x0046}},         {0xFB01, {0x0046, 0x0049}},
    {0xFB02, {0x0046, 0x004C}},         {0xFB03, {0x0046, 0x0046, 0x0049}},
    {0xFB04, {0x0046, 0x0046, 0x004C}}, {0xFB05, {0x0053, 0x0054}},
    {0xFB06, {0x0053, 0x0054}},         {0xFB13, {0x0544, 0x0546}},
    {0xFB14, {0x0544, 0x0535}},         {0xFB15, {0x0544, 0x053B}},
    {0xFB16, {0x054E, 0x0546}},         {0xFB17, {0x0544, 0x053D}}};

enum class Case { kUpper, kLower, kTitle };

void add_upper(char32_t c, std::string& out) {
  const auto* const found =
      std::lower_bound(std::begin(kFullUpper), std::end(kFullUpper), c,
                       [](const FullUpper& row, char32_t value) { return row.from < value; });
  if (found != std::end(kFullUpper) && found->from == c) {
    for (const char32_t part : found->to)
      if (part != 0) append_utf8(part, out);
    return;
  }
  append_utf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), out);
}

bool is_cased(char32_t c) {
  return is_upper(c) || is_lower(c) ||
         utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LT;
}

/// The characters that the rule of the final sigma looks through.
bool is_case_ignorable(char32_t c) {
  constexpr std::u32string_view kMarks = U"'.:^`\u00A8\u00AD\u00AF\u00B4\u00B7\u00B8\u2019";
  if (kMarks.find(c) != std::u32string_view::npos) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return false;
  }
}

/// Whether the sigma at byte `at` ends a word.
bool is_final_sigma(std::string_view text, size_t at) {
  bool is_after_letter = false;
  for (size_t end = at; end > 0;) {
    const CodePoint c = code_point_before(text, end);
    end -= c.bytes;
    if (is_case_ignorable(c.value)) continue;
    is_after_letter = is_cased(c.value);
    break;
  }
  for (size_t next = at + 2; is_after_letter && next < text.size();) {
    const CodePoint c = code_point_at(text, next);
    next += c.bytes;
    if (!is_case_ignorable(c.value)) return !is_cased(c.value);
  }
  return is_after_letter;
}

void add_lower(std::string_view text, size_t at, char32_t c, std::string& out) {
  if (c == 0x130) {
    out += "i\u0307";
  } else if (c == 0x3A3) {
    append_utf8(is_final_sigma(text, at) ? 0x3C2 : 0x3C3, out);
  } else {
    append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

/// The title case is the upper case, in which only the first letter stays large, or a letter of its
/// own.
void add_title(char32_t c, std::string& out) {
  const auto title = static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
  if (title != c) return append_utf8(title, out);
  std::string upper;
  add_upper(c, upper);
  for (size_t at = 0; at < upper.size();) {
    const CodePoint part = code_point_at(upper, at);
    if (at == 0) {
      append_utf8(part.value, out);
    } else {
      append_utf8(
          static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(part.value))), out);
    }
    at += part.bytes;
  }
}

/// Appends the character at byte `at` in another case, and returns the byte behind it.
size_t add_in_case(const Text& text, size_t at, Case wanted, Text& out) {
  const CodePoint c = code_point_at(text.view(), at);
  std::string mapped;
  if (wanted == Case::kUpper) add_upper(c.value, mapped);
  if (wanted == Case::kLower) add_lower(text.view(), at, c.value, mapped);
  if (wanted == Case::kTitle) add_title(c.value, mapped);
  out.append(mapped, text.is_from_request(at));
  return at + c.bytes;
}

Text all_in_case(const Text& text, Case wanted) {
  Text out;
  for (size_t at = 0; at < text.size();) at = add_in_case(text, at, wanted, out);
  return out;
}

/// What the filter `title` splits words at.
bool splits_words(char32_t c) {
  return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_python_space(c);
}

}  // namespace

bool is_upper(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LU;
}

bool is_lower(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LL;
}

bool is_letter(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

bool is_decimal_digit(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND;
}

Text to_upper(const Text& text) {
  return all_in_case(text, Case::kUpper);
}

Text to_lower(const Text& text) {
  return all_in_case(text, Case::kLower);
}

Text capitalize(const Text& text) {
  Text out;
  for (size_t at = 0; at < text.size();)
    at = add_in_case(text, at, at == 0 ? Case::kTitle : Case::kLower, out);
  return out;
}

Text to_title(const Text& text, bool is_filter) {
  Text out;
  for (size_t at = 0; at < text.size();) {
    const auto begins = [&](size_t byte) {
      const char32_t c = code_point_at(text.view(), byte).value;
      return is_filter ? !splits_words(c) : is_cased(c);
    };
    if (!begins(at)) {
      at = add_in_case(text, at, Case::kUpper, out);
      continue;
    }
    at = add_in_case(text, at, is_filter ? Case::kUpper : Case::kTitle, out);
    const size_t rest = at;
    while (at < text.size() && begins(at)) at += code_point_at(text.view(), at).bytes;
    // str.title() looks at the whole text for the rule of the final sigma, and the filter only at
    // the word without its first letter.
    if (is_filter) {
      out.append(to_lower(text.slice(rest, at)));
    } else {
      for (size_t next = rest; next < at;) next = add_in_case(text, next, Case::kLower, out);
    }
  }
  return out;
}

}  // namespace shoal::jinja
