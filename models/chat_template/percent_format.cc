#include "models/chat_template/percent_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "models/chat_template/attributes.h"
#include "models/chat_template/format_spec.h"
#include "models/chat_template/operators.h"
#include "models/chat_template/spelling.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

/// Whole texts of digits; -1 if it is something else.
int64_t index_in(std::string_view text) {
  int64_t index = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  return error == std::errc() && end == text.data() + text.size() && index >= 0 ? index : -1;
}

class PercentFormatter {
 public:
  PercentFormatter(Run& run, const Value& format, const Value& argument)
      : run_(run), format_(text_of(format)), argument_(argument) {
    if (argument.is(Type::kTuple)) {
      arguments_ = sequence_of(argument).items;
    } else {
      arguments_ = {argument};
    }
  }

  Text write() {
    const std::string& bytes = format_.bytes();
    for (size_t at = 0; at < bytes.size() && run_.ok();) {
      const size_t mark = std::min(bytes.find('%', at), bytes.size());
      out_.append(format_, at, mark);
      at = mark < bytes.size() ? conversion(mark + 1) : mark;
      // run.string() refuses it.
      if (out_.size() > run_.limits().max_string_bytes) return std::move(out_);
    }
    // Python lets anything with items pass, because it could be a mapping. Jinja2's undefined value
    // has a method for items too.
    const bool has_items =
        argument_.is(Type::kDict) || argument_.is(Type::kList) || argument_.is(Type::kUndefined);
    if (!has_items && next_ < arguments_.size())
      run_.error("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  Value take_argument() {
    if (next_ < arguments_.size()) return arguments_[next_++];
    return run_.error("not enough arguments for format string");
  }

  /// Writes the conversion whose '%' is in front of `at`, and returns the byte behind it.
  size_t conversion(size_t at) {
    std::string_view rest = format_.view().substr(at);
    const size_t all = rest.size();
    if (rest.starts_with('%')) {
      out_.append(format_, at, at + 1);
      return at + 1;
    }
    bool is_named = false;
    Value value;
    if (rest.starts_with('(')) {
      const size_t close = std::min(rest.find(')'), rest.size() - 1);
      const Value* item =
          argument_.is(Type::kDict) ? dict_of(argument_).find(rest.substr(1, close - 1)) : nullptr;
      if (item == nullptr) run_.error("a format needs a mapping with the names it uses");
      if (item != nullptr) value = *item;
      is_named = true;
      rest.remove_prefix(close + 1);
    }
    const size_t flags = std::min(rest.find_first_not_of("-+ #0123456789."), rest.size());
    std::string spec_text(rest.substr(0, flags));
    rest.remove_prefix(flags);
    if (rest.empty()) {
      run_.error("a format string ends inside a conversion");
      return format_.size();
    }
    const char type = rest[0];
    if (!is_named) value = take_argument();
    if (run_.ok()) convert(value, spec_text, type);
    return at + (all - rest.size()) + 1;
  }

  void convert(const Value& value, std::string spec_text, char type) {
    const bool left = spec_text.starts_with('-');
    spec_text.erase(0, spec_text.find_first_not_of('-'));
    FormatSpec spec = parse_format_spec(run_, spec_text);
    if (left || spec.align == 0) spec.align = left ? '<' : '>';
    if (left) spec.fill = " ";
    Value shown = value;
    if (type == 's' || type == 'r') {
      shown = run_.string(type == 's' ? str_text(run_, value) : repr_text(run_, value));
      if (spec.align == '=') spec.align = '>';
      if (spec.fill == "0") spec.fill = " ";
    } else if (type == 'd' || type == 'i' || type == 'u') {
      if (!value.is_number())
        run_.error(cat("%d format: a number is required, not ", type_name(value)));
      if (value.is(Type::kFloat)) shown = whole_number(value);
      spec.type = 'd';
    } else if (std::string_view("fFeEgGxXo").find(type) != std::string_view::npos) {
      if (!value.is_number()) run_.error("must be a real number");
      spec.type = type;
    } else {
      run_.error(cat("unsupported format character '", type, "'"));
    }
    out_.append(format_value(run_, shown, spec));
  }

  Value whole_number(const Value& value) {
    if (std::fabs(value.number) < 0x1p63)
      return int_value(static_cast<int64_t>(value.number), value.from_request);
    if (!std::isfinite(value.number)) return run_.error("cannot convert float to integer");
    return run_.fail(FailureKind::kLimit, "an integer does not fit into 64 bits");
  }

  Run& run_;
  const Text& format_;
  const Value& argument_;
  std::vector<Value> arguments_;
  size_t next_ = 0;
  Text out_;
};

class BraceFormatter {
 public:
  BraceFormatter(Run& run, const Value& format, const Arguments& arguments)
      : run_(run), format_(text_of(format)), arguments_(arguments) {}

  Text write() {
    const std::string& bytes = format_.bytes();
    for (size_t at = 0; at < bytes.size() && run_.step();) {
      if (out_.size() > run_.limits().max_string_bytes) break;  // run.string() refuses it
      const size_t mark = std::min(bytes.find_first_of("{}", at), bytes.size());
      out_.append(format_, at, mark);
      if (mark == bytes.size()) break;
      if (mark + 1 < bytes.size() && bytes[mark + 1] == bytes[mark]) {
        out_.append(format_, mark, mark + 1);
        at = mark + 2;
      } else if (bytes[mark] == '}') {
        run_.error("single '}' encountered in format string");
      } else {
        const size_t close = bytes.find_first_of("{}", mark + 1);
        if (close == std::string::npos || bytes[close] == '{') {
          run_.error("a field of a format string has no end, or holds another field");
          break;
        }
        field(format_.view().substr(mark + 1, close - mark - 1));
        at = close + 1;
      }
    }
    return std::move(out_);
  }

 private:
  void field(std::string_view text) {
    const size_t colon = std::min(text.find(':'), text.size());
    const std::string_view spec = text.substr(std::min(colon + 1, text.size()));
    std::string_view name = text.substr(0, colon);
    char conversion = 0;
    if (const size_t mark = name.find('!'); mark != std::string_view::npos) {
      conversion = name.size() == mark + 2 ? name[mark + 1] : '?';
      name = name.substr(0, mark);
    }
    Value value = look_up(name);
    if (!run_.ok()) return;
    if (conversion == 's') {
      value = run_.string(str_text(run_, value));
    } else if (conversion == 'r') {
      value = run_.string(repr_text(run_, value));
    } else if (conversion != 0) {
      run_.error("a format string has an unknown conversion");
    }
    const bool plain = spec.empty() || value.is_number() || value.is(Type::kString);
    if (!plain) run_.error(cat("unsupported format string passed to ", type_name(value)));
    if (run_.ok()) out_.append(format_value(run_, value, parse_format_spec(run_, spec)));
  }

  Value look_up(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, end));
    name.remove_prefix(end);
    while (!name.empty() && run_.ok()) {
      if (name[0] == '.') {
        const size_t stop = std::min(name.find_first_of(".[", 1), name.size());
        value = attribute_of(run_, value, std::string(name.substr(1, stop - 1)));
        name.remove_prefix(stop);
      } else {
        const size_t stop = name.find(']');
        if (stop == std::string_view::npos) return run_.error("missing ']' in format string");
        const std::string_view key = name.substr(1, stop - 1);
        const int64_t index = index_in(key);
        value = item_of(run_, value, index >= 0 ? int_value(index) : run_.string(key));
        name.remove_prefix(stop + 1);
      }
    }
    return value;
  }

  Value argument(std::string_view name) {
    const int64_t index = name.empty() ? static_cast<int64_t>(next_++) : index_in(name);
    if (index >= 0) {
      if (static_cast<size_t>(index) < arguments_.positional.size())
        return arguments_.positional[static_cast<size_t>(index)];
      return run_.error("a format string has more fields than there are arguments");
    }
    for (const auto& [known, value] : arguments_.keywords)
      if (known == name) return value;
    return run_.error(cat("a format string names '", name, "', which was not given"));
  }

  Run& run_;
  const Text& format_;
  const Arguments& arguments_;
  size_t next_ = 0;
  Text out_;
};

}  // namespace

Value percent_format(Run& run, const Value& format, const Value& argument) {
  return run.string(PercentFormatter(run, format, argument).write(), string_of(format).markup);
}

Value format_method(Run& run, const Value& format, const Arguments& arguments) {
  return run.string(BraceFormatter(run, format, arguments).write(), string_of(format).markup);
}

}  // namespace shoal::jinja
