#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/tokenizer/regex.h"

#include <algorithm>
#include <optional>
#include <pcre2.h>
#include <utility>

#include "models/tokenizer/regex_syntax.h"
#include "runtime/base/cat.h"

namespace shoal {
namespace {

constexpr size_t kMaxPatternBytes = 16384;
// The most start positions that one call of PCRE2 may try. Its match limit applies to each
// position, so this bounds the time between two reads of the clock.
constexpr size_t kWindowBytes = 256;
constexpr uint32_t kHeapLimitKib = 64 * 1024;

/// The most steps for one start position. A reasonable splitter needs a few steps per byte of a run
/// that it first matches and then gives back.
uint32_t match_limit(size_t text_bytes) {
  return static_cast<uint32_t>(std::min<size_t>(200'000 + 8 * text_bytes, 100'000'000));
}

std::string reason(int error) {
  PCRE2_UCHAR text[160] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

/// The search of one text.
class Search {
 public:
  Search(const pcre2_code* code, std::string_view text, WorkLimit& limit)
      : code_(code),
        text_(text),
        limit_(limit),
        data_(pcre2_match_data_create_from_pattern(code, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    if (!allocated()) return;
    pcre2_set_match_limit(context_.get(), match_limit(text.size()));
    pcre2_set_depth_limit(context_.get(), match_limit(text.size()));
    pcre2_set_heap_limit(context_.get(), kHeapLimitKib);
  }
  bool allocated() const { return data_ != nullptr && context_ != nullptr; }

  /// The first match that starts at or after `from`.
  Result<std::optional<RegexMatch>> next(size_t from) {
    for (;;) {
      const size_t window_end = std::min(from + kWindowBytes, text_.size());
      pcre2_set_offset_limit(context_.get(), window_end);
      const int count = match(from);
      if (count < 0 && count != PCRE2_ERROR_NOMATCH) return failure(count);
      const size_t* bounds = pcre2_get_ovector_pointer(data_.get());
      if (count >= 0) {
        SHOAL_RETURN_IF_ERROR(
            limit_.count_regex_work(16 + (bounds[1] > from ? bounds[1] - from : 0)));
        // \K can set the start after the end, where there is no text to split off. The search ends
        // here.
        if (bounds[0] > bounds[1] || bounds[0] < from) return std::optional<RegexMatch>();
        return std::optional(RegexMatch{bounds[0], bounds[1]});
      }
      SHOAL_RETURN_IF_ERROR(limit_.count_regex_work(kWindowBytes));
      if (window_end == text_.size()) return std::optional<RegexMatch>();
      from = window_end;
      while (from < text_.size() && (static_cast<unsigned char>(text_[from]) & 0xC0) == 0x80)
        ++from;
    }
  }

 private:
  int match(size_t from) {
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
    const int count = pcre2_match(code_, subject, text_.size(), from, PCRE2_NO_UTF_CHECK,
                                  data_.get(), context_.get());
    if (count != PCRE2_ERROR_JIT_STACKLIMIT) return count;
    // The JIT's 32 KiB stack was too small, so use the interpreter, which keeps its frames on the
    // heap.
    return pcre2_match(code_, subject, text_.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       data_.get(), context_.get());
  }
  static Status failure(int error) {
    return Status::error(
        Code::kResourceExhausted,
        cat("tokenizer: a regex of tokenizer.json did not come to an end on this text (",
            reason(error), ")"));
  }

  const pcre2_code* code_;
  const std::string_view text_;
  WorkLimit& limit_;
  std::unique_ptr<pcre2_match_data, FreeMatchData> data_;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context_;
};

size_t character_bytes(std::string_view text, size_t at) {
  size_t bytes = 1;
  while (at + bytes < text.size() && (static_cast<unsigned char>(text[at + bytes]) & 0xC0) == 0x80)
    ++bytes;
  return bytes;
}

}  // namespace

struct Regex::Compiled {
  pcre2_code* pcre = nullptr;
  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() { pcre2_code_free(pcre); }
};

Regex::Regex(std::shared_ptr<const Compiled> code) : code_(std::move(code)) {}

Result<Regex> Regex::compile(std::string_view pattern, std::string_view what) {
  const auto refuse = [&](std::string_view why) {
    return Status::error(Code::kUnimplemented, cat(what, ": the regex \"", pattern.substr(0, 200),
                                                   "\" cannot be used: ", why));
  };
  if (pattern.size() > kMaxPatternBytes)
    return refuse(cat("it is longer than ", kMaxPatternBytes, " B"));
  const Result<std::string> translated = oniguruma_to_pcre2(pattern);
  if (!translated.ok()) return refuse(translated.status().message());

  auto code = std::make_shared<Compiled>();
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      pcre2_compile_context_create(nullptr));
  if (context == nullptr) return refuse("out of memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code->pcre = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT | PCRE2_NEVER_BACKSLASH_C,
      &error, &offset, context.get());
  if (code->pcre == nullptr) return refuse(reason(error));
  pcre2_jit_compile(
      code->pcre,
      PCRE2_JIT_COMPLETE);  // fails if memory cannot be executable; the regex is then interpreted
  return Regex(std::move(code));
}

Result<std::vector<RegexMatch>> Regex::find_all(std::string_view text, WorkLimit& limit) const {
  std::vector<RegexMatch> matches;
  Search search(code_->pcre, text, limit);
  if (!search.allocated())
    return Status::error(Code::kResourceExhausted, "tokenizer: no memory for a regex match");
  for (size_t from = 0; from <= text.size();) {
    SHOAL_ASSIGN_OR_RETURN(const std::optional<RegexMatch> match, search.next(from));
    if (!match) break;
    if (match->begin == match->end && !matches.empty() && matches.back().end == match->end) {
      from += character_bytes(text, from);
      continue;
    }
    SHOAL_RETURN_IF_ERROR(limit.take_bytes(sizeof(RegexMatch)));
    matches.push_back(*match);
    from = match->end;
  }
  return matches;
}

}  // namespace shoal
