#include "models/tokenizer/added_tokens.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"
#include "runtime/base/log.h"

namespace shoal {
namespace {

constexpr size_t kMaxContentBytes = 1024;

size_t leading_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint c = code_point_at(text, at);
    if (!is_whitespace(c.value)) break;
    at += c.bytes;
  }
  return at;
}

size_t without_trailing_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const CodePoint c = code_point_before(text, end);
    if (!is_whitespace(c.value)) break;
    end -= c.bytes;
  }
  return end;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool word_before = begin > 0 && is_word(code_point_before(text, begin).value);
  const bool word_after = end < text.size() && is_word(code_point_at(text, end).value);
  return !word_before && !word_after;
}

Result<AddedToken> parse_token(const Json& json, const std::string& what) {
  if (!json.is_object())
    return Status::error(Code::kInvalidArgument, cat(what, " must be an object"));
  AddedToken token;
  SHOAL_ASSIGN_OR_RETURN(auto content, json_string(json, "content", what));
  if (!content) return Status::error(Code::kInvalidArgument, cat(what, ": \"content\" is missing"));
  token.content = std::move(*content);
  if (token.content.size() > kMaxContentBytes) {
    return Status::error(
        Code::kInvalidArgument,
        cat(what, ": \"content\" has ", token.content.size(), " B; at most ", kMaxContentBytes));
  }
  const auto read = [&](const char* key, bool fallback, bool& into) -> Status {
    SHOAL_ASSIGN_OR_RETURN(const auto value, json_bool(json, key, what));
    into = value.value_or(fallback);
    return {};
  };
  SHOAL_RETURN_IF_ERROR(read("special", false, token.special));
  SHOAL_RETURN_IF_ERROR(read("single_word", false, token.single_word));
  SHOAL_RETURN_IF_ERROR(read("lstrip", false, token.lstrip));
  SHOAL_RETURN_IF_ERROR(read("rstrip", false, token.rstrip));
  SHOAL_RETURN_IF_ERROR(read("normalized", !token.special, token.normalized));
  return token;
}

}  // namespace

bool AddedTokens::Matcher::add(std::string text, int32_t id) {
  return !text.empty() && building_.emplace(std::move(text), id).second;
}

void AddedTokens::Matcher::freeze() {
  for (auto& [text, id] : building_) sorted_.emplace_back(text, id);
  building_.clear();
  for (size_t i = 0; i < sorted_.size(); ++i) {
    Range& range = by_first_byte_[static_cast<uint8_t>(sorted_[i].first[0])];
    if (range.end == 0) range.begin = i;
    range.end = i + 1;
  }
}

/// Narrows the sorted texts byte by byte to those that agree with the input. A text that ends at
/// the current length is the first of the remaining range.
AddedTokens::Matcher::Match AddedTokens::Matcher::longest_at(std::string_view text, size_t at,
                                                             const Accepts& accepts) const {
  Range range = by_first_byte_[static_cast<uint8_t>(text[at])];
  Match longest;
  for (size_t length = 1; range.begin < range.end; ++length) {
    const auto& [first, id] = sorted_[range.begin];
    if (first.size() == length) {
      const Match match{length, id};
      if (accepts == nullptr || accepts(match, at)) longest = match;
      ++range.begin;
    }
    if (at + length == text.size()) break;
    const auto next = static_cast<uint8_t>(text[at + length]);
    const auto byte_at = [&](const std::pair<std::string, int32_t>& entry) {
      return static_cast<uint8_t>(entry.first[length]);
    };
    const auto begin = sorted_.begin() + static_cast<ptrdiff_t>(range.begin);
    const auto end = sorted_.begin() + static_cast<ptrdiff_t>(range.end);
    const auto low = std::lower_bound(
        begin, end, next, [&](const auto& entry, uint8_t b) { return byte_at(entry) < b; });
    const auto high = std::upper_bound(
        low, end, next, [&](uint8_t b, const auto& entry) { return b < byte_at(entry); });
    range = {static_cast<size_t>(low - sorted_.begin()),
             static_cast<size_t>(high - sorted_.begin())};
  }
  return longest;
}

Result<AddedTokens> AddedTokens::parse(const Json& tokenizer, const BpeModel& model,
                                       const Normalizer& normalizer, std::string_view what) {
  AddedTokens added;
  const auto list = tokenizer.find("added_tokens");
  if (list == tokenizer.end() || list->is_null()) return added;
  if (!list->is_array())
    return Status::error(Code::kInvalidArgument, cat(what, ": \"added_tokens\" must be a list"));

  std::unordered_map<std::string, int32_t> ids;
  WorkLimit limit;
  auto next_id = static_cast<int64_t>(model.size());
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = cat(what, ": added_tokens[", i, "]");
    SHOAL_ASSIGN_OR_RETURN(auto token, parse_token((*list)[i], where));
    SHOAL_ASSIGN_OR_RETURN(const auto file_id, json_int((*list)[i], "id", where));
    if (!file_id || *file_id < 0 || *file_id > BpeModel::kMaxId) {
      return Status::error(Code::kInvalidArgument,
                           cat(where, ": \"id\" must be an integer from 0 to ", BpeModel::kMaxId));
    }
    if (token.content.empty()) continue;
    const auto seen = ids.find(token.content);
    const auto known = seen != ids.end() ? std::optional(seen->second) : model.find(token.content);
    if (!known && next_id > BpeModel::kMaxId)
      return Status::error(Code::kInvalidArgument, cat(where, ": too many tokens"));
    const int32_t id = known ? *known : static_cast<int32_t>(next_id);
    next_id = std::max(next_id, int64_t{id} + 1);
    if (id != *file_id) {
      log_warning(
          cat(where, " says id ", *file_id, ", but gets ", id, " as in Hugging Face tokenizers"));
    }
    ids.emplace(token.content, id);
    SHOAL_RETURN_IF_ERROR(added.add(std::move(token), id, normalizer, where, limit));
  }
  SHOAL_RETURN_IF_ERROR(added.build_matchers(what));
  return added;
}

Status AddedTokens::add(AddedToken token, int32_t id, const Normalizer& normalizer,
                        std::string_view what, WorkLimit& limit) {
  token.spelling = token.content;
  if (token.normalized && !normalizer.empty()) {
    NormalizedText text{token.content, true};
    if (const Status status = normalizer.apply(text, limit); !status.ok())
      return status.while_doing(std::string(what));
    if (text.text.size() > 16 * kMaxContentBytes) {
      return Status::error(Code::kInvalidArgument,
                           cat(what, ": its normalized spelling has ", text.text.size(), " B"));
    }
    token.spelling = std::move(text.text);
  }
  tokens_[id] = std::move(token);
  return {};
}

Status AddedTokens::build_matchers(std::string_view what) {
  std::unordered_set<std::string_view> special;
  for (const auto& [id, token] : tokens_) {
    if (token.special) special.insert(token.content);
  }
  for (auto& [id, token] : tokens_) {
    // This compares the spelling, so a special token that normalization changes is not skipped.
    // Hugging Face does the same.
    token.skipped = special.contains(token.spelling);
    if (!(token.normalized ? normalized_ : raw_).add(token.spelling, id)) {
      return Status::error(
          Code::kInvalidArgument,
          cat(what, ": the added token of id ", id,
              " is, normalized, empty or the same as another one; set its \"normalized\" to false"));
    }
  }
  raw_.freeze();
  normalized_.freeze();
  return {};
}

bool AddedTokens::has_normalized_special() const {
  return std::any_of(tokens_.begin(), tokens_.end(), [](const auto& entry) {
    return entry.second.special && entry.second.normalized;
  });
}

AddedTokens::Matcher::Accepts AddedTokens::accepted(std::string_view text,
                                                    const UntrustedText* untrusted) const {
  if (untrusted == nullptr) return nullptr;  // all tokens, which costs nothing
  return [=, this](const Matcher::Match& match, size_t at) {
    const auto begin = static_cast<size_t>(text.data() - untrusted->text.data()) + at;
    return !tokens_.at(match.id).special ||
           untrusted->overlapping(begin, begin + match.bytes).empty();
  };
}

void AddedTokens::split(std::string_view text, bool begins_input, bool normalized,
                        std::vector<PieceList::Piece>& out, const UntrustedText* untrusted) const {
  const Matcher& matcher = normalized ? normalized_ : raw_;
  const Matcher::Accepts accepts = accepted(text, untrusted);
  const auto add_text = [&](size_t begin, size_t end) {
    if (begin < end)
      out.push_back({text.substr(begin, end - begin), begins_input && begin == 0, -1});
  };
  size_t done = 0;
  // From the end of the last rstrip token up to here, the text is all white space.
  size_t space_end = 0;
  for (size_t at = 0; at < text.size();) {
    const Matcher::Match match = matcher.longest_at(text, at, accepts);
    if (match.id < 0) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + match.bytes;
    at = end;  // the search continues after the text itself, whatever is stripped or discarded
    const AddedToken& token = tokens_.at(match.id);
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip)
      begin = done + without_trailing_space(text.substr(done, std::max(begin, done) - done));
    if (token.rstrip) {
      // A token of white space can match many times inside one run, which is measured only once.
      if (end > space_end) space_end = end + leading_space(text.substr(end));
      end = space_end;
    }
    add_text(done, begin);
    // A token of white space is dropped if the token before it has already taken that white space.
    if (begin < end) out.push_back({{}, false, match.id});
    done = end;
  }
  add_text(done, text.size());
}

const AddedToken* AddedTokens::find(int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

}  // namespace shoal
