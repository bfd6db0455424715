#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer.h"
#include "runtime/base/ordered_json.h"
#include "runtime/base/status.h"

namespace shoal {

/// A conversation as a client sends it.
struct ChatRequest {
  OrderedJson messages;               ///< a list of {"role", "content", ...}
  OrderedJson kwargs;                 ///< chat_template_kwargs: an object, or null
  bool add_generation_prompt = true;  ///< end with the beginning of the answer
};

/// The prompt that a template made of a conversation.
struct RenderedPrompt {
  std::string text;                    ///< valid UTF-8
  std::vector<ByteSpan> from_request;  ///< which bytes of the text the client wrote; sorted
};

/// Why a conversation was not rendered.
struct RenderError {
  enum class Kind {
    kNone,
    kRaised,    ///< the template called raise_exception; `raised` is its text
    kMessages,  ///< messages or kwargs are not valid; `field` says which part
    kTemplate,  ///< the template cannot be evaluated with these messages
    kLimit,     ///< a limit of this implementation was reached
    kGivenUp,   ///< nobody waits any more
  };
  Kind kind = Kind::kNone;
  Status status;
  std::string raised;
  std::string field;  ///< for example "messages[2].content"; empty if it is not about one

  bool ok() const { return kind == Kind::kNone; }
};

struct RenderBounds {
  /// Nobody waits for the result any more once this is true; null: somebody always does.
  const std::atomic<bool>* given_up = nullptr;
  /// The time that strftime_now formats, in seconds since 1970. The caller reads the clock; without
  /// it the call is an error of the template.
  std::optional<int64_t> now_s = {};
};

/// The chat template of a model: Jinja2 as transformers sets it up, in code of our own. Immutable;
/// render() is thread-safe. Its cost is bounded, whatever the template and the messages are.
class ChatTemplate {
 public:
  /// Reads the template of a model's folder (or of the folder that holds the given tokenizer.json),
  /// or the one in `file`, which wins. NOT_FOUND: there is no such model. FAILED_PRECONDITION: it
  /// has no template. INVALID_ARGUMENT
  /// "FILE:LINE:COLUMN: ...": it does not parse. Other errors are those of reading the files.
  static Result<ChatTemplate> load(const std::string& model,
                                   const std::optional<std::string>& file = {});
  /// Parses a text that came from `what`.
  static Result<ChatTemplate> parse(std::string_view source, std::string_view what);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// Errors: see RenderError. Its status is INVALID_ARGUMENT, RESOURCE_EXHAUSTED (kLimit) or
  /// CANCELLED (kGivenUp).
  Result<RenderedPrompt, RenderError> render(const ChatRequest& request,
                                             const RenderBounds& bounds = {}) const;

  /// The name of the file that the template comes from.
  const std::string& where() const;

  struct Impl;

 private:
  explicit ChatTemplate(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// Tokenizes a rendered prompt without the post-processor, because the template writes BOS itself.
/// Text of the client becomes no special token unless `trust_message_tokens` is set. Errors are
/// those of Tokenizer::encode.
Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, const RenderedPrompt& prompt,
                                           bool trust_message_tokens,
                                           const EncodeBounds& bounds = {});

}  // namespace shoal
