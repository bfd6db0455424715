#include "models/tokenizer/normalizer.h"

#include <algorithm>
#include <utf8proc.h>
#include <utility>

#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"

namespace shoal {
namespace {

int combining_class(utf8proc_int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

/// Sorts each run of marks by class, which is Unicode's canonical order. utf8proc's own sort takes
/// quadratic time, and a prompt may hold a run of a million marks.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  for (size_t begin = 0; begin < text.size();) {
    if (combining_class(text[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + static_cast<ptrdiff_t>(begin),
                     text.begin() + static_cast<ptrdiff_t>(end),
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

std::string unicode_normalized(std::string_view text, bool compatibility, bool compose) {
  constexpr utf8proc_ssize_t kMaxExpansion = 18;  // U+FDFA under NFKD
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatibility ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    at += c.bytes;
    utf8proc_int32_t parts[kMaxExpansion];
    int boundary_class = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.value), parts,
                                               kMaxExpansion, options, &boundary_class);
    if (count > 0 && count <= kMaxExpansion) {
      characters.insert(characters.end(), parts, parts + count);
    } else {
      characters.push_back(static_cast<utf8proc_int32_t>(c.value));
    }
  }
  order_marks(characters);
  if (compose && !characters.empty()) {
    const auto options_compose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const auto count = utf8proc_normalize_utf32(
        characters.data(), static_cast<utf8proc_ssize_t>(characters.size()), options_compose);
    if (count >= 0) characters.resize(static_cast<size_t>(count));
  }
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t c : characters) append_utf8(static_cast<char32_t>(c), out);
  return out;
}

/// True if no character is in a range that the form can change. NFC and NFD keep all characters
/// below U+00C0, and every form keeps those below U+0080.
bool changes_nothing(std::string_view text, bool compatibility) {
  const unsigned char first_lead = compatibility ? 0x80 : 0xC3;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < first_lead;
  });
}

void normalize_unicode(std::string& text, bool compatibility, bool compose) {
  if (!changes_nothing(text, compatibility))
    text = unicode_normalized(text, compatibility, compose);
}

/// Lowercases each character by itself, as Rust's char::to_lowercase does, without the rules that
/// depend on neighbours.
std::string lowercased(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    at += c.bytes;
    if (c.value == 0x130) {
      out += "i\xCC\x87";  // the only letter whose lower case has two characters
    } else {
      append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))),
                  out);
    }
  }
  return out;
}

void strip(NormalizedText& text, bool left, bool right) {
  std::string_view rest = text.text;
  while (left && !rest.empty()) {
    const CodePoint c = code_point_at(rest, 0);
    if (!is_whitespace(c.value)) break;
    rest.remove_prefix(c.bytes);
    text.begins_input = false;
  }
  while (right && !rest.empty()) {
    const CodePoint c = code_point_before(rest, rest.size());
    if (!is_whitespace(c.value)) break;
    rest.remove_suffix(c.bytes);
  }
  text.text = std::string(rest);
}

Status replace(NormalizedText& text, const Pattern& pattern, const std::string& content,
               WorkLimit& limit) {
  SHOAL_ASSIGN_OR_RETURN(const auto spans, pattern.spans(text.text, limit));
  if (spans.empty() || (spans.size() == 1 && !spans.front().match)) return {};
  if (const Span& first = spans.front(); first.match && first.begin != first.end) {
    // The replacement of several characters counts as the last of them, so it does not begin the
    // input.
    if (content.empty() || code_point_at(text.text, 0).bytes != first.end)
      text.begins_input = false;
  }
  std::string out;
  for (const Span& span : spans) {
    const std::string_view part =
        span.match ? std::string_view(content)
                   : std::string_view(text.text).substr(span.begin, span.end - span.begin);
    SHOAL_RETURN_IF_ERROR(limit.take_bytes(part.size()));
    out += part;
  }
  text.text = std::move(out);
  return {};
}

}  // namespace

Result<Normalizer> Normalizer::parse(const Json& tokenizer, std::string_view what) {
  SHOAL_ASSIGN_OR_RETURN(const auto components,
                         flatten_components(tokenizer, "normalizer", "normalizers", what));
  Normalizer normalizer;
  for (const Component& component : components) {
    SHOAL_ASSIGN_OR_RETURN(auto step, parse_step(component));
    normalizer.steps_.push_back(std::move(step));
  }
  return normalizer;
}

Result<Normalizer::Step> Normalizer::parse_step(const Component& component) {
  Step step{};
  if (component.type == "NFC") {
    step.kind = Kind::kNfc;
  } else if (component.type == "NFD") {
    step.kind = Kind::kNfd;
  } else if (component.type == "NFKC") {
    step.kind = Kind::kNfkc;
  } else if (component.type == "NFKD") {
    step.kind = Kind::kNfkd;
  } else if (component.type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (component.type == "Strip") {
    step.kind = Kind::kStrip;
    SHOAL_ASSIGN_OR_RETURN(step.strip_left, bool_or(component, "strip_left", true));
    SHOAL_ASSIGN_OR_RETURN(step.strip_right, bool_or(component, "strip_right", true));
  } else if (component.type == "Prepend") {
    step.kind = Kind::kPrepend;
    SHOAL_ASSIGN_OR_RETURN(step.content, required_string(component, "prepend"));
  } else if (component.type == "Replace") {
    step.kind = Kind::kReplace;
    SHOAL_ASSIGN_OR_RETURN(step.pattern, Pattern::parse(component));
    SHOAL_ASSIGN_OR_RETURN(step.content, required_string(component, "content"));
  } else {
    return unsupported_component(component);
  }
  return step;
}

Status Normalizer::apply(NormalizedText& text, WorkLimit& limit) const {
  for (const Step& step : steps_) SHOAL_RETURN_IF_ERROR(apply_step(step, text, limit));
  return {};
}

Status Normalizer::apply(NormalizedText& text, std::vector<ByteSpan>& marks,
                         WorkLimit& limit) const {
  std::vector<Part> parts;
  size_t done = 0;
  for (const ByteSpan& mark : marks) {
    parts.push_back({text.text.substr(done, mark.begin - done), false});
    parts.push_back({text.text.substr(mark.begin, mark.end - mark.begin), true});
    done = mark.end;
  }
  parts.push_back({text.text.substr(done), false});
  for (const Step& step : steps_) SHOAL_RETURN_IF_ERROR(apply_to_parts(step, text, parts, limit));
  marks.clear();
  size_t at = 0;
  for (const Part& part : parts) {
    if (part.marked && !part.text.empty()) marks.push_back({at, at + part.text.size()});
    at += part.text.size();
  }
  return {};
}

/// Applies a step to the whole text and to each part alone. If both give the same text, the parts
/// are still known.
Status Normalizer::apply_to_parts(const Step& step, NormalizedText& text, std::vector<Part>& parts,
                                  WorkLimit& limit) {
  const size_t before = text.text.size();
  SHOAL_RETURN_IF_ERROR(apply_step(step, text, limit));
  if (step.kind == Kind::kPrepend) {
    parts.insert(parts.begin(), {text.text.substr(0, text.text.size() - before), false});
    return {};
  }
  std::string all;
  for (size_t i = 0; i < parts.size(); ++i) {
    Step own = step;
    own.strip_left = step.strip_left && all.empty();
    own.strip_right = step.strip_right && i + 1 == parts.size();
    NormalizedText part{std::move(parts[i].text), false};
    SHOAL_RETURN_IF_ERROR(apply_step(own, part, limit));
    parts[i].text = std::move(part.text);
    all += parts[i].text;
  }
  if (all != text.text) parts = {{text.text, true}};
  return {};
}

Status Normalizer::apply_step(const Step& step, NormalizedText& text, WorkLimit& limit) {
  switch (step.kind) {
    case Kind::kNfc:
    case Kind::kNfd:
      normalize_unicode(text.text, false, step.kind == Kind::kNfc);
      break;
    case Kind::kNfkc:
    case Kind::kNfkd:
      normalize_unicode(text.text, true, step.kind == Kind::kNfkc);
      break;
    case Kind::kLowercase:
      text.text = lowercased(text.text);
      break;
    case Kind::kStrip:
      strip(text, step.strip_left, step.strip_right);
      break;
    case Kind::kPrepend:
      if (text.text.empty()) break;
      SHOAL_RETURN_IF_ERROR(limit.take_bytes(step.content.size()));
      text.text.insert(0, step.content);
      break;
    case Kind::kReplace:
      return replace(text, step.pattern, step.content, limit);
  }
  return limit.take_bytes(text.text.size());
}

}  // namespace shoal
