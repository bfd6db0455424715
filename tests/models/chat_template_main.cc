// Renders templates for the comparison with Jinja2 (chat_template_reference.py). Each line of stdin
// is {"template": TEXT, "variables": OBJECT} or {"template": TEXT, "messages": LIST, "kwargs":
// OBJECT, "add_generation_prompt": BOOL}. Each line of stdout is {"text": TEXT}, {"raised": TEXT}
// or
// {"error": TEXT}. Also checks that the spans of the text are sorted and inside it.
#include <cstdlib>
#include <iostream>
#include <string>

#include "models/chat_template.h"
#include "models/chat_template/interpreter.h"
#include "models/chat_template/json_reader.h"
#include "models/chat_template/parser.h"

namespace {

using shoal::OrderedJson;

constexpr int64_t kNow = 1'700'000'000;

void require(bool condition) {
  if (!condition) std::abort();
}

OrderedJson shown(const std::string& text, const std::vector<shoal::ByteSpan>& spans) {
  size_t done = 0;
  for (const shoal::ByteSpan& span : spans) {
    require(span.begin >= done && span.begin < span.end && span.end <= text.size());
    done = span.end;
  }
  return {{"text", text}};
}

OrderedJson render_variables(const std::string& source, const OrderedJson& variables) {
  const auto tree = shoal::jinja::parse(source);
  if (!tree.ok()) return {{"error", tree.error().message}};
  shoal::jinja::Limits limits;
  limits.now_s = kNow;
  shoal::jinja::Run run(limits);
  const shoal::jinja::Value all = shoal::jinja::value_of_json(variables, true);
  const shoal::jinja::Text text = shoal::jinja::interpret(run, **tree, shoal::jinja::dict_of(all));
  if (run.ok()) return shown(text.bytes(), text.from_request());
  const bool raised = run.kind() == shoal::jinja::FailureKind::kRaised;
  return {{raised ? "raised" : "error", run.message()}};
}

OrderedJson render_messages(const std::string& source, const OrderedJson& line) {
  const auto chat = shoal::ChatTemplate::parse(source, "template");
  if (!chat.ok()) return {{"error", std::string(chat.status().message())}};
  const shoal::ChatRequest request{line["messages"], line["kwargs"],
                                   line["add_generation_prompt"].get<bool>()};
  const auto prompt = chat->render(request, {nullptr, kNow});
  if (prompt.ok()) return shown(prompt->text, prompt->from_request);
  const bool raised = prompt.error().kind == shoal::RenderError::Kind::kRaised;
  return {{raised ? "raised" : "error",
           raised ? prompt.error().raised : std::string(prompt.error().status.message())}};
}

}  // namespace

int main() {
  for (std::string text; std::getline(std::cin, text);) {
    const auto line = shoal::parse_ordered_json(text, "stdin");
    require(line.ok());
    const std::string source = (*line)["template"].get<std::string>();
    const OrderedJson result = line->contains("variables")
                                   ? render_variables(source, (*line)["variables"])
                                   : render_messages(source, *line);
    std::cout << result.dump() << '\n';
  }
  return 0;
}
