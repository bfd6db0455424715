#include "models/chat_template/run.h"

#include <algorithm>

#include "runtime/base/cat.h"
#include "runtime/base/counted.h"

namespace shoal::jinja {

Run::~Run() {
  for (const auto& space : namespaces_) space->attributes = {};
}

Value Run::new_namespace(DictObject attributes) {
  // A namespace costs more steps than other values, because it is kept until the end of the run.
  if (!step(100)) return {};
  auto space = std::make_shared<NamespaceObject>();
  space->attributes = std::move(attributes);
  namespaces_.push_back(space);
  Value value;
  value.type = Type::kNamespace;
  value.object = std::move(space);
  return value;
}

Value Run::fail(FailureKind kind, std::string message) {
  if (ok()) {
    kind_ = kind;
    message_ = std::move(message);
    failed_at_ = position;
  }
  return {};
}

bool Run::look() {
  next_look_ = steps_ + 4096;
  if (steps_ > limits_.max_steps) {
    fail(FailureKind::kLimit, cat("the template takes more than ", limits_.max_steps, " steps"));
  }
  if (limits_.given_up != nullptr && *limits_.given_up)
    fail(FailureKind::kGivenUp, "the rendering was given up before its end");
  return ok();
}

Value Run::string(Text text, bool markup) {
  const size_t size = text.size();
  step(1 + size / 256);
  if (size > limits_.max_string_bytes) {
    return fail(FailureKind::kLimit,
                cat("a string has more than ", limits_.max_string_bytes, " bytes"));
  }
  if (*live_bytes_ + size > limits_.max_live_bytes) {
    return fail(FailureKind::kLimit,
                cat("the strings take more than ", limits_.max_live_bytes, " bytes"));
  }
  *live_bytes_ += size;
  auto object = std::make_shared<StringObject>();
  object->text = std::move(text);
  object->markup = markup;
  object->live_bytes = live_bytes_;
  Value value;
  value.type = Type::kString;
  value.object = std::move(object);
  return value;
}

Signature::Signature(Run& run, std::string_view callee, const Arguments& arguments,
                     std::string_view names)
    : run_(run), callee_(callee) {
  std::vector<std::string_view> parameters;
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(' ', at), names.size());
    parameters.push_back(names.substr(at, end - at));
    at = end + 1;
  }
  if (arguments.positional.size() > parameters.size()) {
    run.error(cat(callee, "() takes at most ", counted(parameters.size(), "argument"), ", not ",
                  arguments.positional.size()));
    return;
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i)
    given_.emplace_back(parameters[i], arguments.positional[i]);
  for (const auto& [name, value] : arguments.keywords) {
    const auto known = std::find(parameters.begin(), parameters.end(), name);
    if (known == parameters.end() || find(name) != nullptr) {
      run.error(known == parameters.end() ? cat(callee, "() has no argument '", name, "'")
                                          : cat(callee, "() got '", name, "' twice"));
      return;
    }
    given_.emplace_back(*known, value);
  }
}

const Value* Signature::find(std::string_view name) const {
  for (const auto& [known, value] : given_)
    if (known == name) return &value;
  return nullptr;
}

Value Signature::need(std::string_view name) {
  if (const Value* value = find(name)) return *value;
  return run_.error(cat(callee_, "() needs its argument '", name, "'"));
}

bool Signature::flag(std::string_view name, bool fallback) const {
  const Value* value = find(name);
  return value == nullptr ? fallback : is_true(*value);
}

}  // namespace shoal::jinja
