#include "models/chat_template/chat_messages.h"

#include <algorithm>
#include <optional>

#include "models/chat_template/json_reader.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

constexpr const char* kReasoningNames[] = {"reasoning_content", "thinking", "reasoning"};

bool has_value(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null() && (!found->is_array() || !found->empty());
}

MessageError check_parts(const OrderedJson& parts, const std::string& field) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const OrderedJson& part = parts[i];
    const std::string place = cat(field, "[", i, "]");
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string())
      return {place, "each part of a content must be an object with a \"type\""};
    if (part["type"] != "text") {
      return {place, cat("parts of type \"", part["type"].get<std::string>().substr(0, 40),
                         "\" are not supported; send text")};
    }
    if (!part.contains("text") || !part["text"].is_string())
      return {place, "a text part must have a string \"text\""};
  }
  return {};
}

MessageError check_message(const OrderedJson& message, const std::string& field) {
  if (!message.is_object()) return {field, "each message must be an object"};
  if (!message.contains("role") || !message["role"].is_string())
    return {field + ".role", "each message needs a \"role\" that is a string"};
  if (!has_value(message, "content")) {
    const bool is_list = message.contains("content") && message["content"].is_array();
    const bool may_be_null =
        has_value(message, "tool_calls") ||
        std::any_of(std::begin(kReasoningNames), std::end(kReasoningNames),
                    [&](const char* name) { return has_value(message, name); });
    if (is_list || may_be_null) return {};
    return {field + ".content", "a content may be missing or null only beside \"tool_calls\""};
  }
  const OrderedJson& content = message["content"];
  if (content.is_string()) return {};
  if (!content.is_array())
    return {field + ".content", "a content must be a string or a list of text parts"};
  return check_parts(content, field + ".content");
}

/// The content in the form that the template takes.
OrderedJson shaped_content(const OrderedJson& content, const ContentFormat& format) {
  if (content.is_string() && format.iterates && !format.tests_string)
    return OrderedJson::array({{{"type", "text"}, {"text", content}}});
  if (!content.is_array() || format.iterates) return content;
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    if (i > 0) text += '\n';
    text += content[i]["text"].get_ref<const std::string&>();
  }
  return text;
}

void read_tool_arguments(OrderedJson& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (OrderedJson& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    OrderedJson& function = call["function"];
    const auto arguments = function.find("arguments");
    if (arguments == function.end() || !arguments->is_string()) continue;
    Result<OrderedJson> read =
        parse_ordered_json(arguments->get_ref<const std::string&>(), "arguments");
    if (read.ok() && read->is_object()) *arguments = std::move(read).value();
  }
}

/// {"thinking": ..., the message, "reasoning_content": ...} if any of the names has a value.
OrderedJson with_reasoning(const OrderedJson& message) {
  for (const char* name : kReasoningNames) {
    const auto found = message.find(name);
    if (found == message.end() || found->is_null()) continue;
    const OrderedJson& reasoning = *found;
    OrderedJson all = OrderedJson::object();
    all["thinking"] = reasoning;
    for (const auto& [key, value] : message.items()) all[key] = value;
    all["reasoning_content"] = reasoning;
    return all;
  }
  return message;
}

/// A role that the API itself names is a word of the server, which a template may use to write a
/// special token such as <|user|>. Any other role is the client's text.
Value message_value(const OrderedJson& message) {
  static constexpr std::string_view kRoles[] = {"system",    "developer", "user",
                                                "assistant", "tool",      "function"};
  Value value = value_of_json(message, true);
  if (!value.is(Type::kDict)) return value;
  const std::string& role = message["role"].get_ref<const std::string&>();
  if (std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles)) {
    const Value key = constant_string(Text("role", false));
    static_cast<DictObject&>(*value.object).set(key, constant_string(Text(role, false)));
  }
  return value;
}

}  // namespace

Result<Value, MessageError> messages_value(const OrderedJson& messages,
                                           const ContentFormat& format) {
  if (!messages.is_array() || messages.empty())
    return MessageError{"messages", "must be a list of at least one message"};
  std::vector<Value> values;
  for (size_t i = 0; i < messages.size(); ++i) {
    MessageError error = check_message(messages[i], cat("messages[", i, "]"));
    if (!error.ok()) return error;
    OrderedJson message = with_reasoning(messages[i]);
    if (message.contains("content"))
      message["content"] = shaped_content(message["content"], format);
    read_tool_arguments(message);
    values.push_back(message_value(message));
  }
  return sequence_value(Type::kList, std::move(values), true);
}

}  // namespace shoal::jinja
