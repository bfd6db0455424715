#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/base/counted.h"
#include "runtime/base/json.h"
#include "runtime/base/text_values.h"

namespace shoal {

/// Builds the document, counts its values and stops at the first that is beyond the limits.
template <typename Document>
class BoundedBuilder : public nlohmann::detail::json_sax_dom_parser<Document> {
  using Base = nlohmann::detail::json_sax_dom_parser<Document>;

 public:
  BoundedBuilder(Document& document, const JsonLimits& limits)
      : Base(document, false), limits_(limits) {}

  bool null() { return count() && Base::null(); }
  bool boolean(bool v) { return count() && Base::boolean(v); }
  bool number_integer(int64_t v) { return count() && Base::number_integer(v); }
  bool number_unsigned(uint64_t v) {
    if (kIsExact && !limits_.unsigned_integers && v > static_cast<uint64_t>(INT64_MAX))
      return stop(kTooLarge);
    return count() && Base::number_unsigned(v);
  }
  bool number_float(double v, const std::string& s) {
    if (kIsExact && s.find_first_of(".eE") == std::string::npos) return stop(kTooLarge);
    return count() && Base::number_float(v, s);
  }
  bool string(std::string& v) { return count() && Base::string(v); }
  bool key(std::string& v) {
    if (members_.empty() || ++members_.back().count > limits_.max_members)
      return stop(cat("an object has more than ", limits_.max_members, " members"));
    if (limits_.distinct_names && !members_.back().names.insert(v).second)
      return stop(cat(shown(v), " stands twice in one object"));
    return count() && Base::key(v);
  }
  bool start_object(std::size_t n) {
    members_.emplace_back();
    return enter() && Base::start_object(n);
  }
  bool start_array(std::size_t n) { return enter() && Base::start_array(n); }
  bool end_object() {
    members_.pop_back();
    return leave() && Base::end_object();
  }
  bool end_array() { return leave() && Base::end_array(); }
  template <typename Exception>
  bool parse_error(std::size_t position, const std::string& token, const Exception& error) {
    if (reason_.empty()) reason_ = reason_of(position, token, error);
    return Base::parse_error(position, token, error);
  }

  const std::string& reason() const { return reason_; }

 private:
  // A document that is written out again must not lose digits.
  static constexpr bool kIsExact = !std::is_same_v<Document, nlohmann::json>;
  static constexpr const char* kTooLarge = "an integer does not fit into 64 bits";

  /// It comes from a number alone, because a text has no other values that may not fit.
  static std::string reason_of(std::size_t position, std::string_view token,
                               const nlohmann::detail::out_of_range&) {
    constexpr size_t kMostShown = 40;
    return cat("byte ", position, ": the number ", token.substr(0, kMostShown),
               token.size() > kMostShown ? "..." : "", " is too large");
  }
  static std::string reason_of(std::size_t position, std::string_view,
                               const nlohmann::detail::parse_error& error) {
    return cat("not JSON at byte ", position, ": ", clean(error.what()));
  }
  /// nlohmann's message without its prefix "[json.exception...] parse error at line 1, column 2: "
  /// and "syntax error while parsing value - ", which help nobody, and without the bytes that it
  /// read last. Those may be anything, but the reason must stay valid UTF-8 so that protobuf can
  /// carry it.
  static std::string clean(std::string_view text) {
    if (const size_t cut = text.find(": "); cut != std::string_view::npos)
      text.remove_prefix(cut + 2);
    if (const size_t cut = text.find(" - "); text.starts_with("syntax error") && cut != text.npos)
      text.remove_prefix(cut + 3);
    text = text.substr(0, text.find("; last read: "));
    return std::string(text.substr(0, 200));
  }
  bool stop(std::string why) {
    if (reason_.empty()) reason_ = std::move(why);
    return false;
  }
  bool count() {
    return ++values_ <= limits_.max_values ||
           stop(cat("more than ", counted(limits_.max_values, "value")));
  }
  bool enter() {
    if (++depth_ > limits_.max_depth) return stop(cat("nested deeper than ", limits_.max_depth));
    return count();
  }
  bool leave() {
    --depth_;
    return true;
  }

  const JsonLimits limits_;
  size_t depth_ = 0;
  size_t values_ = 0;
  struct Members {
    size_t count = 0;
    std::set<std::string> names;  // only if they must be distinct
  };
  std::vector<Members> members_;  // of each object that is open
  std::string reason_;
};

/// What parse_json() and parse_ordered_json() share.
template <typename Document>
Result<Document> parse_bounded_json(std::string_view text, std::string_view what,
                                    const JsonLimits& limits) {
  Document root;
  BoundedBuilder<Document> builder(root, limits);
  if (!Document::sax_parse(text.begin(), text.end(), &builder, Document::input_format_t::json)) {
    return Status::error(Code::kInvalidArgument,
                         cat(what, what.empty() ? "" : ": ",
                             builder.reason().empty() ? "not JSON" : builder.reason()));
  }
  return root;
}

}  // namespace shoal
