#include "models/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"

namespace shoal {

Result<PreTokenizer> PreTokenizer::parse(const Json& tokenizer, std::string_view what) {
  SHOAL_ASSIGN_OR_RETURN(const auto components,
                         flatten_components(tokenizer, "pre_tokenizer", "pretokenizers", what));
  PreTokenizer pre_tokenizer;
  for (const Component& component : components) {
    SHOAL_ASSIGN_OR_RETURN(auto step, parse_step(component));
    pre_tokenizer.steps_.push_back(std::move(step));
  }
  return pre_tokenizer;
}

Result<PreTokenizer::Step> PreTokenizer::parse_step(const Component& component) {
  Step step;
  if (component.type == "Split") return parse_split(component);
  if (component.type == "Metaspace") return parse_metaspace(component);
  if (component.type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
    SHOAL_ASSIGN_OR_RETURN(step.add_prefix_space, bool_or(component, "add_prefix_space", true));
    SHOAL_ASSIGN_OR_RETURN(step.use_regex, bool_or(component, "use_regex", true));
    SHOAL_ASSIGN_OR_RETURN(step.pattern, Pattern::from_regex(kGpt2Split, component.what));
    return step;
  }
  if (component.type == "CharDelimiterSplit" || component.type == "Delimiter") {
    // A literal of one character gives the same splits as a split at that character.
    SHOAL_ASSIGN_OR_RETURN(const auto delimiter, required_character(component, "delimiter"));
    SHOAL_ASSIGN_OR_RETURN(step.pattern, Pattern::from_literal(delimiter, component.what));
    step.behavior = Behavior::kRemoved;
    return step;
  }
  step.kind = Kind::kCharacterClass;
  if (component.type == "Digits") {
    step.classify = [](char32_t c) { return is_numeric(c) ? kEach : 0; };
    SHOAL_ASSIGN_OR_RETURN(const bool individual, bool_or(component, "individual_digits", false));
    step.behavior = individual ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (component.type == "Punctuation") {
    step.classify = [](char32_t c) { return is_punctuation(c) ? kEach : 0; };
    SHOAL_ASSIGN_OR_RETURN(step.behavior, parse_behavior(component, Behavior::kIsolated, false));
  } else if (component.type == "WhitespaceSplit") {
    step.classify = [](char32_t c) { return is_whitespace(c) ? kEach : 0; };
    step.behavior = Behavior::kRemoved;
  } else if (component.type == "Whitespace") {
    // Equivalent to the regex \w+|[^\w\s]+ with everything else removed.
    step.classify = [](char32_t c) { return is_word(c) ? 1 : is_whitespace(c) ? 0 : 2; };
    step.behavior = Behavior::kRemoved;
    step.invert = true;
  } else {
    return unsupported_component(component);
  }
  return step;
}

Result<PreTokenizer::Step> PreTokenizer::parse_split(const Component& component) {
  Step step;
  SHOAL_ASSIGN_OR_RETURN(step.pattern, Pattern::parse(component));
  SHOAL_ASSIGN_OR_RETURN(step.behavior, parse_behavior(component, Behavior::kIsolated, true));
  SHOAL_ASSIGN_OR_RETURN(step.invert, bool_or(component, "invert", false));
  return step;
}

Result<PreTokenizer::Step> PreTokenizer::parse_metaspace(const Component& component) {
  Step step;
  step.kind = Kind::kMetaspace;
  step.behavior = Behavior::kMergedWithNext;
  SHOAL_ASSIGN_OR_RETURN(step.replacement, required_character(component, "replacement"));
  SHOAL_ASSIGN_OR_RETURN(step.pattern, Pattern::from_literal(step.replacement, component.what));
  SHOAL_ASSIGN_OR_RETURN(step.split, bool_or(component, "split", true));
  SHOAL_ASSIGN_OR_RETURN(const bool prefix, bool_or(component, "add_prefix_space", true));
  SHOAL_ASSIGN_OR_RETURN(const auto scheme,
                         json_string(*component.json, "prepend_scheme", component.what));
  if (scheme.value_or("always") == "always") {
    step.prepend = Prepend::kAlways;
  } else if (*scheme == "first") {
    step.prepend = Prepend::kFirst;
  } else if (*scheme == "never") {
    step.prepend = Prepend::kNever;
  } else {
    return Status::error(
        Code::kInvalidArgument,
        cat(component.what, ": \"prepend_scheme\" must be always, first or never"));
  }
  if (!prefix) {  // files from before prepend_scheme write "never" like this
    if (scheme && step.prepend != Prepend::kNever) {
      return Status::error(
          Code::kInvalidArgument,
          cat(component.what, ": add_prefix_space false contradicts prepend_scheme ", *scheme));
    }
    step.prepend = Prepend::kNever;
  }
  return step;
}

Result<PreTokenizer::Behavior> PreTokenizer::parse_behavior(const Component& component,
                                                            Behavior fallback, bool required) {
  SHOAL_ASSIGN_OR_RETURN(const auto name, json_string(*component.json, "behavior", component.what));
  if (!name && !required) return fallback;
  constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous},
  };
  const std::string wanted = name.value_or("");
  for (const auto& [known, behavior] : kBehaviors) {
    if (wanted == known) return behavior;
  }
  return Status::error(
      Code::kInvalidArgument,
      cat(component.what, ": \"behavior\" must be Removed, Isolated, MergedWithPrevious, ",
          "MergedWithNext or Contiguous"));
}

Status PreTokenizer::apply(PieceList& list, WorkLimit& limit) const {
  for (const Step& step : steps_) SHOAL_RETURN_IF_ERROR(apply_step(step, list, limit));
  return {};
}

Status PreTokenizer::apply_step(const Step& step, PieceList& list, WorkLimit& limit) {
  if (step.kind == Kind::kMetaspace) SHOAL_RETURN_IF_ERROR(rewrite_metaspace(step, list, limit));
  if (step.kind == Kind::kByteLevel && step.add_prefix_space)
    SHOAL_RETURN_IF_ERROR(add_prefix_spaces(list, limit));

  const bool splits =
      step.kind == Kind::kByteLevel ? step.use_regex : step.kind != Kind::kMetaspace || step.split;
  if (splits) {
    std::vector<PieceList::Piece> out;
    out.reserve(list.pieces.size());
    for (const PieceList::Piece& piece : list.pieces) {
      if (piece.token >= 0) {
        out.push_back(piece);
      } else {
        SHOAL_RETURN_IF_ERROR(split(step, piece, out, limit));
      }
    }
    list.pieces = std::move(out);
  }
  return step.kind == Kind::kByteLevel ? to_byte_level(list, limit) : Status();
}

Status PreTokenizer::split(const Step& step, const PieceList::Piece& piece,
                           std::vector<PieceList::Piece>& out, WorkLimit& limit) {
  std::vector<Span> spans;
  if (step.kind == Kind::kCharacterClass) {
    // Checked before the spans are created, because there may be one for each byte.
    SHOAL_RETURN_IF_ERROR(limit.check_bytes(piece.text.size() * sizeof(Span)));
    spans = class_spans(piece.text, step.classify);
  } else {
    SHOAL_ASSIGN_OR_RETURN(spans, step.pattern.spans(piece.text, limit));
  }
  if (step.invert) {
    for (Span& span : spans) span.match = !span.match;
  }
  for (const Span& span : merge(std::move(spans), step.behavior)) {
    if (span.begin == span.end || (span.match && step.behavior == Behavior::kRemoved)) continue;
    SHOAL_RETURN_IF_ERROR(limit.take_bytes(sizeof(PieceList::Piece)));
    out.push_back({piece.text.substr(span.begin, span.end - span.begin),
                   piece.begins_input && span.begin == 0, -1});
  }
  return {};
}

std::vector<Span> PreTokenizer::class_spans(std::string_view text, CharacterClass classify) {
  std::vector<Span> spans;
  int previous = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    const int kind = classify(c.value);
    if (!spans.empty() && kind == previous && kind != kEach) {
      spans.back().end = at + c.bytes;
    } else {
      spans.push_back({at, at + c.bytes, kind != 0});
    }
    previous = kind;
    at += c.bytes;
  }
  return spans;
}

/// Joins matches with their neighbours as the behavior asks (tokenizers, NormalizedString::split).
/// With kRemoved, the caller drops the matches.
std::vector<Span> PreTokenizer::merge(std::vector<Span> spans, Behavior behavior) {
  if (behavior == Behavior::kRemoved || behavior == Behavior::kIsolated) return spans;
  std::vector<Span> merged;
  bool previous = false;
  if (behavior == Behavior::kMergedWithNext) {
    for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
      if (span->match && !previous && !merged.empty()) {
        merged.back().begin = span->begin;
      } else {
        merged.push_back(*span);
      }
      previous = span->match;
    }
    std::reverse(merged.begin(), merged.end());
    return merged;
  }
  for (const Span& span : spans) {
    const bool join =
        behavior == Behavior::kContiguous ? span.match == previous : span.match && !previous;
    if (join && !merged.empty()) {
      merged.back().end = span.end;
    } else {
      merged.push_back(span);
    }
    previous = span.match;
  }
  return merged;
}

Status PreTokenizer::rewrite_metaspace(const Step& step, PieceList& list, WorkLimit& limit) {
  for (PieceList::Piece& piece : list.pieces) {
    if (piece.token >= 0) continue;
    std::string out;
    out.reserve(piece.text.size() + step.replacement.size());
    for (const char c : piece.text) {
      if (c == ' ') {
        out += step.replacement;
      } else {
        out += c;
      }
    }
    const bool prepend =
        step.prepend == Prepend::kAlways || (step.prepend == Prepend::kFirst && piece.begins_input);
    if (prepend && !out.starts_with(step.replacement)) out.insert(0, step.replacement);
    SHOAL_RETURN_IF_ERROR(limit.take_bytes(out.size()));
    piece.text = list.buffers.emplace_back(std::move(out));
  }
  return {};
}

Status PreTokenizer::add_prefix_spaces(PieceList& list, WorkLimit& limit) {
  for (PieceList::Piece& piece : list.pieces) {
    if (piece.token >= 0 || piece.text.starts_with(' ')) continue;
    SHOAL_RETURN_IF_ERROR(limit.take_bytes(piece.text.size() + 1));
    piece.text = list.buffers.emplace_back(cat(" ", piece.text));
  }
  return {};
}

Status PreTokenizer::to_byte_level(PieceList& list, WorkLimit& limit) {
  size_t bytes = 0;
  for (const PieceList::Piece& piece : list.pieces)
    bytes += piece.token >= 0 ? 0 : piece.text.size();
  SHOAL_RETURN_IF_ERROR(limit.take_bytes(2 * bytes));
  // All pieces share one buffer. It has room for two output bytes per input byte, so it is never
  // reallocated and the views stay valid.
  std::string& buffer = list.buffers.emplace_back();
  buffer.reserve(2 * bytes);
  for (PieceList::Piece& piece : list.pieces) {
    if (piece.token >= 0) continue;
    const size_t begin = buffer.size();
    append_byte_level(piece.text, buffer);
    piece.text = std::string_view(buffer).substr(begin);
  }
  return {};
}

}  // namespace shoal
