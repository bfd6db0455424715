#include "models/chat_template/string_parts.h"

#include <algorithm>

#include "models/tokenizer/unicode.h"

namespace shoal::jinja {
namespace {

bool has_character(std::string_view chars, char32_t wanted) {
  for (size_t at = 0; at < chars.size();) {
    const CodePoint c = code_point_at(chars, at);
    if (c.value == wanted) return true;
    at += c.bytes;
  }
  return false;
}

bool ends_line(char32_t c) {
  return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

}  // namespace

bool step_to_search_back(Run& run, std::string_view text, std::string_view mark) {
  return run.step((1 + text.size() / 256) * (1 + mark.size() / 256));
}

Text replaced(Run& run, const Text& text, const Text& from, const Text& to, int64_t count) {
  Text out;
  const std::string_view view = text.view();
  size_t at = 0;
  if (from.empty()) {
    // An empty text is found in front of each character and at the end.
    while (count-- != 0 && run.step()) {
      out.append(to);
      // What is too long is refused by run.string().
      if (at == text.size() || out.size() > run.limits().max_string_bytes) return out;
      const size_t end = at + code_point_at(view, at).bytes;
      out.append(text, at, end);
      at = end;
    }
  }
  while (!from.empty() && count-- != 0 && run.step()) {
    const size_t found = find_in(view, from.view(), at);
    if (found == std::string_view::npos) break;
    out.append(text, at, found);
    out.append(to);
    at = found + from.size();
    if (out.size() > run.limits().max_string_bytes) break;  // run.string() refuses it
  }
  out.append(text, at, text.size());
  return out;
}

Text stripped(Run& run, const Text& text, const Value* chars, Side side) {
  const std::string_view view = text.view();
  size_t begin = 0, end = text.size();
  if (chars == nullptr || chars->is(Type::kNone)) {
    if (side != Side::kRight) begin = skip_space(view);
    if (side != Side::kLeft) end = std::max(begin, skip_space_at_end(view));
    return text.slice(begin, end);
  }
  if (!chars->is(Type::kString)) {
    run.error("strip arg must be None or str");
    return {};
  }
  const std::string_view set = view_of(*chars);
  while (side != Side::kRight && begin < end && run.step()) {
    const CodePoint c = code_point_at(view, begin);
    if (!has_character(set, c.value)) break;
    begin += c.bytes;
  }
  while (side != Side::kLeft && begin < end && run.step()) {
    const CodePoint c = code_point_before(view, end);
    if (!has_character(set, c.value)) break;
    end -= c.bytes;
  }
  return text.slice(begin, end);
}

std::vector<Text> lines_of(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text.view(), at);
    size_t next = at + c.bytes;
    if (ends_line(c.value)) {
      if (c.value == '\r' && text.view().substr(next).starts_with('\n')) ++next;
      lines.push_back(text.slice(begin, keep_ends ? next : at));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.push_back(text.slice(begin, text.size()));
  return lines;
}

Value joined(Run& run, const Text& separator, const std::vector<Text>& parts) {
  Text out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(parts[i]);
    if (out.size() > run.limits().max_string_bytes) break;  // run.string() refuses it
  }
  return run.string(std::move(out));
}

std::vector<Text> split_at_spaces(const Text& text, int64_t most) {
  std::vector<Text> parts;
  for (size_t at = skip_space(text.view()); at < text.size();) {
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.push_back(text.slice(at, skip_space_at_end(text.view())));
      break;
    }
    size_t end = at;
    while (end < text.size() && !is_python_space(code_point_at(text.view(), end).value))
      end += code_point_at(text.view(), end).bytes;
    parts.push_back(text.slice(at, end));
    at = end + skip_space(text.view().substr(end));
  }
  return parts;
}

std::vector<Text> split_at_spaces_from_right(const Text& text, int64_t most) {
  std::vector<Text> parts;
  for (size_t end = skip_space_at_end(text.view()); end > 0;) {
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.push_back(text.slice(skip_space(text.view()), end));
      break;
    }
    size_t at = end;
    while (at > 0 && !is_python_space(code_point_before(text.view(), at).value))
      at -= code_point_before(text.view(), at).bytes;
    parts.push_back(text.slice(at, end));
    end = skip_space_at_end(text.view().substr(0, at));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Text> split_at(Run& run, const Text& text, std::string_view separator, int64_t most,
                           bool from_right) {
  std::vector<Text> parts;
  size_t begin = 0, end = text.size();
  while (run.step() && (most < 0 || static_cast<int64_t>(parts.size()) < most)) {
    if (from_right) {
      if (end < separator.size()) break;
      // A short separator costs no more than the text behind the place where it is found.
      if (separator.size() > 256 &&
          !step_to_search_back(run, text.view().substr(0, end), separator))
        break;
      const size_t at = text.view().rfind(separator, end - separator.size());
      if (!run.step((end - (at == std::string_view::npos ? 0 : at)) / 256)) break;
      if (at == std::string_view::npos) break;
      parts.push_back(text.slice(at + separator.size(), end));
      end = at;
    } else {
      const size_t at = find_in(text.view(), separator, begin);
      if (at == std::string_view::npos) break;
      parts.push_back(text.slice(begin, at));
      begin = at + separator.size();
    }
  }
  parts.push_back(text.slice(begin, end));
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace shoal::jinja
