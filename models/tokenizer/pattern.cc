#include "models/tokenizer/pattern.h"

#include <utility>

#include "runtime/base/cat.h"

namespace shoal {

Result<Pattern> Pattern::from_regex(std::string_view regex, std::string_view what) {
  Pattern pattern;
  SHOAL_ASSIGN_OR_RETURN(pattern.regex_, Regex::compile(regex, what));
  return pattern;
}

Result<Pattern> Pattern::from_literal(std::string literal, std::string_view what) {
  constexpr size_t kMaxLiteralBytes = 4096;
  if (literal.empty()) return from_regex("", what);
  if (literal.size() > kMaxLiteralBytes) {
    return Status::error(Code::kUnimplemented, cat(what, ": a pattern longer than ",
                                                   kMaxLiteralBytes, " B is not supported"));
  }
  Pattern pattern;
  pattern.literal_ = std::move(literal);
  return pattern;
}

Result<Pattern> Pattern::parse(const Component& component) {
  const auto found = component.json->find("pattern");
  if (found == component.json->end() || !found->is_object()) {
    return Status::error(
        Code::kInvalidArgument,
        cat(component.what, R"(: "pattern" must be {"String": ...} or {"Regex": ...})"));
  }
  SHOAL_ASSIGN_OR_RETURN(auto literal, json_string(*found, "String", component.what));
  SHOAL_ASSIGN_OR_RETURN(const auto regex, json_string(*found, "Regex", component.what));
  if (literal.has_value() == regex.has_value()) {
    return Status::error(
        Code::kInvalidArgument,
        cat(component.what, R"(: "pattern" must be {"String": ...} or {"Regex": ...})"));
  }
  if (regex) return from_regex(*regex, component.what);
  return from_literal(std::move(*literal), component.what);
}

Result<std::vector<Span>> Pattern::spans(std::string_view text, WorkLimit& limit) const {
  std::vector<Span> spans;
  size_t previous = 0;
  const auto add = [&](size_t begin, size_t end) -> Status {
    SHOAL_RETURN_IF_ERROR(limit.take_bytes(2 * sizeof(Span)));
    if (previous != begin) spans.push_back({previous, begin, false});
    spans.push_back({begin, end, true});
    previous = end;
    return {};
  };
  if (regex_) {
    SHOAL_ASSIGN_OR_RETURN(const auto matches, regex_->find_all(text, limit));
    for (const RegexMatch& match : matches) SHOAL_RETURN_IF_ERROR(add(match.begin, match.end));
  } else {
    for (size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size())) {
      SHOAL_RETURN_IF_ERROR(add(at, at + literal_.size()));
    }
  }
  if (previous != text.size()) spans.push_back({previous, text.size(), false});
  return spans;
}

}  // namespace shoal
