#include "models/chat_template/functions.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "models/chat_template/operators.h"
#include "models/chat_template/spelling.h"
#include "models/chat_template/string_methods.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as in Jinja2's sandbox

Value raise_exception(Run& run, const Arguments& arguments) {
  Signature given(run, "raise_exception", arguments, "message");
  const Value message = given.need("message");
  return run.ok() ? run.fail(FailureKind::kRaised, str_text(run, message).bytes()) : Value();
}

/// strftime of one conversion or of text between conversions.
std::string formatted_time(const std::string& format, const std::tm& time) {
  if (format == "%f") return "000000";
  if (format == "%z" || format == "%Z") return "";  // Python's datetime.now() knows no time zone
  char buffer[256];
  return std::string(buffer, std::strftime(buffer, sizeof(buffer), format.c_str(), &time));
}

Value strftime_now(Run& run, const Arguments& arguments) {
  Signature given(run, "strftime_now", arguments, "format");
  const Value format = given.need("format");
  if (!run.ok()) return {};
  if (!format.is(Type::kString)) return run.error("strftime_now needs a string");
  if (!run.limits().now_s) return run.error("strftime_now: the time is not known here");
  const auto now = static_cast<std::time_t>(*run.limits().now_s);
  std::tm time{};
  ::localtime_r(&now, &time);
  const std::string_view text = view_of(format);
  const bool origin = !text_of(format).from_request().empty();
  Text out;
  for (size_t at = 0; at < text.size() && run.step();) {
    const size_t mark = std::min(text.find('%', at), text.size());
    out.append(text_of(format), at, mark);
    if (mark == text.size()) break;
    size_t end = std::min(text.find_first_not_of("-_0^#EO", mark + 1), text.size());
    end = std::min(end + 1, text.size());
    out.append(formatted_time(std::string(text.substr(mark, end - mark)), time), origin);
    at = end;
  }
  return run.string(std::move(out));
}

Value range(Run& run, const Arguments& arguments) {
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.keywords.empty())
    return run.error("range() takes one to three arguments");
  bool origin = false;
  for (const Value& argument : given) {
    origin = origin || argument.from_request;
    if (!argument.is(Type::kInt) && !argument.is(Type::kBool))
      return run.error(cat("range() needs integers, not ", type_name(argument)));
  }
  const int64_t start = given.size() > 1 ? given[0].integer : 0;
  const int64_t stop = given.size() > 1 ? given[1].integer : given[0].integer;
  const int64_t step = given.size() > 2 ? given[2].integer : 1;
  if (step == 0) return run.error("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (int64_t i = start; (step > 0 ? i < stop : i > stop) && run.step();) {
    if (static_cast<int64_t>(items.size()) == kMaxRange)
      return run.error(cat("range() gives more than ", kMaxRange, " numbers"));
    items.push_back(int_value(i, origin));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  const std::string last = step == 1 ? ")" : cat(", ", step, ")");
  return view_value(cat("range(", start, ", ", stop, last), std::move(items), origin);
}

/// The arguments of dict() and namespace(): a mapping or pairs, then keywords.
DictObject dict_of_arguments(Run& run, const Arguments& arguments) {
  DictObject dict;
  if (arguments.positional.size() > 1) run.error("dict() takes at most one argument");
  for (const Value& source : arguments.positional) {
    if (source.is(Type::kDict)) {
      run.step(dict_of(source).items.size());
      dict = dict_of(source);
      continue;
    }
    if (source.is(Type::kUndefined)) {
      run.error(undefined_reason(source));
      break;
    }
    for (const Value& pair : items_of(run, source)) {
      const std::vector<Value> parts = items_of(run, pair);
      if (run.ok() && (parts.size() != 2 || !is_hashable(parts[0])))
        run.error("dict() needs pairs of a key and a value");
      if (!run.ok() || !step_to_find(run, dict, parts[0])) return dict;
      dict.set(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.keywords) dict.set(run.string(name), value);
  return dict;
}

Value make_namespace(Run& run, const Arguments& arguments) {
  DictObject attributes = dict_of_arguments(run, arguments);
  for (const auto& [key, value] : attributes.items) {
    if (key.is(Type::kString) && view_of(key).starts_with('_'))
      return run.error("a namespace cannot have an attribute that begins with an underscore");
  }
  return run.ok() ? run.new_namespace(std::move(attributes)) : Value();
}

Value make_dict(Run& run, const Arguments& arguments) {
  DictObject dict = dict_of_arguments(run, arguments);
  return run.ok() ? dict_value(std::move(dict)) : Value();
}

Value dict_fromkeys(Run& run, const Arguments& arguments) {
  Signature given(run, "fromkeys", arguments, "iterable value");
  const Value* value = given.find("value");
  DictObject dict;
  for (const Value& key : items_of(run, given.need("iterable"))) {
    if (!step_to_find(run, dict, key)) return {};
    if (!is_hashable(key)) return run.error(cat("unhashable type: '", type_name(key), "'"));
    dict.set(key, value == nullptr ? none_value() : *value);
  }
  return dict_value(std::move(dict));
}

Value dict_get(Run& run, const Value& self, const Arguments& arguments) {
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 2 || !arguments.keywords.empty())
    return run.error("get() takes a key and, if wanted, a default");
  if (!step_to_find(run, dict_of(self), given[0])) return {};
  if (!is_hashable(given[0])) return run.error(cat("unhashable type: '", type_name(given[0]), "'"));
  if (const Value* found = dict_of(self).find(given[0])) return *found;
  return given.size() == 2 ? given[1] : none_value();
}

Value dict_method(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  if (name == "get") return dict_get(run, self, arguments);
  const Signature none(run, name, arguments, "");
  const auto& items = dict_of(self).items;
  if (!run.step(items.size())) return {};
  if (name == "copy") return self;
  std::vector<Value> all;
  for (const auto& [key, value] : items) {
    all.push_back(name == "keys" ? key
                  : name == "values"
                      ? value
                      : sequence_value(Type::kTuple, {key, value}, self.from_request));
  }
  return view_value(cat("dict_", name, "("), std::move(all), self.from_request);
}

Value list_method(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  const auto& items = sequence_of(self).items;
  Signature given(run, name, arguments,
                  name == "copy"    ? ""
                  : name == "count" ? "value"
                                    : "value start stop");
  if (name == "copy") return self;
  const Value wanted = given.need("value");
  const auto bound = [&](const char* which, int64_t fallback) {
    const Value* value = given.find(which);
    const int64_t at = value == nullptr ? fallback : value->integer;
    const auto size = static_cast<int64_t>(items.size());
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const int64_t stop = bound("stop", static_cast<int64_t>(items.size()));
  int64_t count = 0;
  for (int64_t i = bound("start", 0); i < stop && run.step(weight_of(wanted)); ++i) {
    if (!equal(items[static_cast<size_t>(i)], wanted)) continue;
    if (name == "index") return int_value(i);
    ++count;
  }
  return name == "count" ? int_value(count) : run.error("the value is not in the list");
}

Value loop_method(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  auto& loop = static_cast<LoopObject&>(*self.object);
  const auto& given = arguments.positional;
  if (!arguments.keywords.empty()) return run.error(cat("loop.", name, " takes no keywords"));
  if (name == "cycle") {
    if (given.empty()) return run.error("no items for cycling given");
    return given[loop.index % given.size()];
  }
  for (const Value& value : given) run.step(weight_of(value));
  const bool same =
      loop.has_changed_value && std::equal(given.begin(), given.end(), loop.changed_value.begin(),
                                           loop.changed_value.end(), equal);
  loop.has_changed_value = true;
  loop.changed_value = given;
  return bool_value(!same);
}

using Global = Value (*)(Run&, const Arguments&);
constexpr std::pair<std::string_view, Global> kGlobals[] = {
    {"dict", make_dict}, {"namespace", make_namespace},  {"raise_exception", raise_exception},
    {"range", range},    {"strftime_now", strftime_now},
};

}  // namespace

std::optional<Value> global_function(std::string_view name) {
  for (const auto& [known, function] : kGlobals)
    if (known == name) return function_value(std::string(name));
  return std::nullopt;
}

Value call_function(Run& run, const FunctionObject& function, const Arguments& arguments) {
  const Value& self = function.self;
  const std::string& name = function.name;
  switch (self.type) {
    case Type::kString:
      return call_string_method(run, name, self, arguments);
    case Type::kDict:
      return dict_method(run, name, self, arguments);
    case Type::kList:
    case Type::kTuple:
      return list_method(run, name, self, arguments);
    case Type::kLoop:
      return loop_method(run, name, self, arguments);
    case Type::kFunction:
      return dict_fromkeys(run, arguments);
    case Type::kFloat:
      return bool_value(std::floor(self.number) == self.number);
    default:
      break;
  }
  for (const auto& [known, global] : kGlobals)
    if (known == name) return global(run, arguments);
  return run.error(cat("'", name, "' cannot be called"));
}

}  // namespace shoal::jinja
