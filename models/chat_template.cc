#include "models/chat_template.h"

#include <algorithm>
#include <utility>

#include "models/chat_template/chat_messages.h"
#include "models/chat_template/interpreter.h"
#include "models/chat_template/json_reader.h"
#include "models/chat_template/parser.h"
#include "models/chat_template/template_source.h"
#include "runtime/base/cat.h"

namespace shoal {
namespace {

struct NamedTemplate {
  std::string name;
  std::shared_ptr<const jinja::SyntaxTree> tree;
  jinja::ContentFormat content;
};

Result<NamedTemplate> parse_named(std::string name, std::string_view source,
                                  std::string_view where) {
  auto tree = jinja::parse(source);
  if (!tree.ok()) {
    const jinja::SyntaxError error = tree.error();
    const jinja::Place place = jinja::place_of(jinja::normalized_source(source), error.at);
    return Status::error(Code::kInvalidArgument, cat(where, ":", place.line, ":", place.column,
                                                     ": chat template: ", error.message));
  }
  const jinja::ContentFormat content = jinja::find_content_format(**tree);
  return NamedTemplate{std::move(name), std::move(tree).value(), content};
}

RenderError bad_request(std::string field, std::string_view what) {
  RenderError error{RenderError::Kind::kMessages, {}, {}, std::move(field)};
  error.status = Status::error(Code::kInvalidArgument, cat(error.field, ": ", what));
  return error;
}

RenderError failure_of(const jinja::Run& run, const std::string& where, std::string_view source) {
  using Kind = RenderError::Kind;
  const jinja::Place place = jinja::place_of(source, run.failed_at());
  const std::string text =
      cat(where, ":", place.line, ":", place.column, ": chat template: ", run.message());
  switch (run.kind()) {
    case jinja::FailureKind::kRaised:
      return {Kind::kRaised, Status::error(Code::kInvalidArgument, text), run.message(), {}};
    case jinja::FailureKind::kLimit:
      return {Kind::kLimit, Status::error(Code::kResourceExhausted, text), {}, {}};
    case jinja::FailureKind::kGivenUp:
      return {Kind::kGivenUp, Status::error(Code::kCancelled, text), {}, {}};
    default:
      return {Kind::kTemplate, Status::error(Code::kInvalidArgument, text), {}, {}};
  }
}

/// Adds the kwargs to the template's variables.
RenderError add_kwargs(const OrderedJson& kwargs, jinja::DictObject& variables) {
  if (kwargs.is_null()) return {};
  if (!kwargs.is_object()) return bad_request("chat_template_kwargs", "must be an object");
  static constexpr std::string_view kTaken[] = {"messages", "chat_template", "tokenize",
                                                "continue_final_message"};
  for (const auto& [key, value] : kwargs.items()) {
    if (std::find(std::begin(kTaken), std::end(kTaken), key) != std::end(kTaken))
      return bad_request(cat("chat_template_kwargs.", key), "cannot be set here");
    variables.set(jinja::constant_string(jinja::Text(key, true)),
                  jinja::value_of_json(value, true));
  }
  return {};
}

}  // namespace

struct ChatTemplate::Impl {
  std::string where;
  std::vector<NamedTemplate> templates;  // "default" first
  std::vector<std::pair<std::string, OrderedJson>> special_tokens;

  /// With tools, transformers prefers a template of the name "tool_use".
  const NamedTemplate& chosen(const OrderedJson& kwargs) const {
    const bool has_tools =
        kwargs.is_object() && kwargs.contains("tools") && !kwargs["tools"].is_null();
    return has_tools && templates.size() > 1 ? templates[1] : templates[0];
  }
};

ChatTemplate::ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::load(const std::string& model,
                                        const std::optional<std::string>& file) {
  SHOAL_ASSIGN_OR_RETURN(jinja::TemplateSource source, jinja::read_template_source(model, file));
  if (source.templates.empty()) {
    return Status::error(
        Code::kFailedPrecondition,
        cat(model, " has no chat template (no chat_template.jinja, and no \"chat_template\" in ",
            "tokenizer_config.json); give one with --chat-template FILE"));
  }
  auto impl = std::make_shared<Impl>();
  for (auto& [name, text] : source.templates) {
    SHOAL_ASSIGN_OR_RETURN(NamedTemplate parsed, parse_named(name, text, source.where));
    impl->templates.push_back(std::move(parsed));
  }
  impl->where = std::move(source.where);
  impl->special_tokens = std::move(source.special_tokens);
  return ChatTemplate(std::move(impl));
}

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view what) {
  auto impl = std::make_shared<Impl>();
  impl->where = what;
  SHOAL_ASSIGN_OR_RETURN(NamedTemplate parsed, parse_named("default", source, what));
  impl->templates.push_back(std::move(parsed));
  return ChatTemplate(std::move(impl));
}

const std::string& ChatTemplate::where() const {
  return impl_->where;
}

Result<RenderedPrompt, RenderError> ChatTemplate::render(const ChatRequest& request,
                                                         const RenderBounds& bounds) const {
  using jinja::Text;
  const NamedTemplate& chosen = impl_->chosen(request.kwargs);
  Result<jinja::Value, jinja::MessageError> messages =
      jinja::messages_value(request.messages, chosen.content);
  if (!messages.ok()) return bad_request(messages.error().field, messages.error().what);
  jinja::DictObject variables;
  const auto set = [&](std::string_view name, jinja::Value value) {
    variables.set(jinja::constant_string(Text(std::string(name), false)), std::move(value));
  };
  for (const auto& [name, token] : impl_->special_tokens)
    set(name, jinja::value_of_json(token, false));
  set("tools", jinja::none_value());
  set("documents", jinja::none_value());
  set("add_generation_prompt", jinja::bool_value(request.add_generation_prompt));
  if (RenderError error = add_kwargs(request.kwargs, variables); !error.ok()) return error;
  set("messages", std::move(messages).value());
  jinja::Limits limits;
  limits.given_up = bounds.given_up;
  limits.now_s = bounds.now_s;
  jinja::Run run(limits);
  const Text text = jinja::interpret(run, *chosen.tree, variables);
  if (!run.ok()) return failure_of(run, impl_->where, chosen.tree->source);
  return RenderedPrompt{text.bytes(), text.from_request()};
}

Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, const RenderedPrompt& prompt,
                                           bool trust_message_tokens, const EncodeBounds& bounds) {
  if (trust_message_tokens) return tokenizer.encode(prompt.text, false, bounds);
  return tokenizer.encode_marked(prompt.text, prompt.from_request, bounds);
}

}  // namespace shoal
