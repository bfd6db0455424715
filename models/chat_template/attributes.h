#pragma once
#include <string>
#include <string_view>

#include "models/chat_template/run.h"

namespace shoal::jinja {

/// Something that can be called: a function of Jinja2, a bound method, or a macro.
struct FunctionObject : Object {
  std::string name;
  Value self;                     ///< of a method
  std::shared_ptr<Object> macro;  ///< the interpreter's MacroObject; null: built in
};

/// What `loop` is. The interpreter moves it on.
struct LoopObject : Object {
  std::vector<Value> items;
  size_t index = 0;
  bool has_changed_value = false;
  std::vector<Value> changed_value;  ///< of loop.changed
};

Value function_value(std::string name, Value self = {});

/// value.name and value[key], as in Jinja2's sandbox: what is not there is undefined, and so are
/// methods that would change a list or a dict. Fails if the value itself is undefined.
Value attribute_of(Run& run, const Value& value, const std::string& name);
Value item_of(Run& run, const Value& value, const Value& key);
/// Returns value[start:stop:step]. A part that the template leaves out is None.
Value slice_of(Run& run, const Value& value, const Value& start, const Value& stop,
               const Value& step);

}  // namespace shoal::jinja
