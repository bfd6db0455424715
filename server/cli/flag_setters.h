#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/base/text_values.h"
#include "server/cli/flag_parser.h"

namespace shoal {

// Makers of setters for FlagParser::add_value. Each setter reads one kind of value, stores it,
// reports what is wrong with it, and shows it again in a form that it would read.

/// Shows a flag's value in the words that its setter reads. An empty text or an empty list gives
/// nothing, because it means that the flag was not set.
template <typename T>
std::optional<std::string> flag_text(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    char text[64];
    return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
  } else {
    if (value.empty()) return std::nullopt;
    if constexpr (std::is_same_v<T, std::string>) {
      return value;
    } else {
      std::string list;
      for (const auto& one : value) list += (list.empty() ? "" : ",") + flag_text(one).value_or("");
      return list;
    }
  }
}
template <typename T>
std::optional<std::string> flag_text(const std::optional<T>& value) {
  return value ? flag_text(*value) : std::nullopt;
}

template <typename Target>
FlagParser::Show show(Target* target) {
  return [target] { return flag_text(*target); };
}

constexpr int64_t kMaxIntFlag = INT32_MAX;

template <typename Target>
FlagParser::Setter whole(Target* target, int64_t min, int64_t max = kMaxIntFlag) {
  return {[=](std::string_view flag, std::string_view text) -> Status {
            SHOAL_ASSIGN_OR_RETURN(*target, parse_int_flag(flag, text, min, max));
            return {};
          },
          show(target)};
}

inline FlagParser::Setter number(std::optional<double>* target) {
  return {[=](std::string_view flag, std::string_view text) -> Status {
            SHOAL_ASSIGN_OR_RETURN(*target, parse_number_flag(flag, text));
            return {};
          },
          show(target)};
}

/// A number above 0 and at most 1.
inline FlagParser::Setter share(double* target) {
  return {[=](std::string_view flag, std::string_view text) -> Status {
            SHOAL_ASSIGN_OR_RETURN(const double value, parse_number_flag(flag, text));
            if (!(value > 0 && value <= 1)) {
              return Status::error(
                  Code::kInvalidArgument,
                  cat(flag, " must be above 0 and at most ", "1, not ", text.substr(0, 80)));
            }
            *target = value;
            return {};
          },
          show(target)};
}

template <typename Target>
FlagParser::Setter words_as_they_are(Target* target) {
  return {[=](std::string_view, std::string_view text) -> Status {
            *target = std::string(text);
            return {};
          },
          show(target)};
}

inline FlagParser::Setter choice(std::string* target, std::vector<std::string> known) {
  return {
      [target, known = std::move(known)](std::string_view flag, std::string_view text) -> Status {
        SHOAL_ASSIGN_OR_RETURN(*target, parse_choice_flag(flag, text, known));
        return {};
      },
      show(target)};
}

/// Takes one word of a list, and sets the value that belongs to it. Two words may have the same
/// value; then the first of them is shown.
template <typename Target>
FlagParser::Setter word_for(Target* target,
                            std::vector<std::pair<std::string, std::type_identity_t<Target>>> all) {
  const auto shown_word = [target, all] {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [target](const auto& one) { return one.second == *target; });
    return found == all.end() ? std::nullopt : std::optional(found->first);
  };
  return {[target, all](std::string_view flag, std::string_view text) -> Status {
            std::vector<std::string> words;
            for (const auto& one : all) words.push_back(one.first);
            SHOAL_RETURN_IF_ERROR(parse_choice_flag(flag, text, words).status());
            *target = all[std::find(words.begin(), words.end(), text) - words.begin()].second;
            return {};
          },
          shown_word};
}

template <typename Target>
FlagParser::Setter ids(Target* target) {
  return {[=](std::string_view flag, std::string_view text) -> Status {
            SHOAL_ASSIGN_OR_RETURN(*target, parse_ids_flag(flag, text));
            return {};
          },
          show(target)};
}

inline FlagParser::Setter seed(std::optional<uint64_t>* target) {
  return {[=](std::string_view flag, std::string_view text) -> Status {
            SHOAL_ASSIGN_OR_RETURN(*target, parse_seed_flag(flag, text));
            return {};
          },
          show(target)};
}

template <typename Target>
FlagParser::Setter size(Target* target) {
  return {[=](std::string_view flag, std::string_view text) -> Status {
            SHOAL_ASSIGN_OR_RETURN(*target, parse_size_flag(flag, text));
            return {};
          },
          show(target)};
}

/// About thirty years. It keeps values that are derived from it (milliseconds, a tenth, a quarter)
/// from overflowing.
constexpr int64_t kMaxSecondsFlag = 1'000'000'000;

inline FlagParser::Setter seconds(double* target) {
  return {[=](std::string_view flag, std::string_view text) -> Status {
            SHOAL_ASSIGN_OR_RETURN(const double value, parse_number_flag(flag, text));
            if (!(value > 0))
              return Status::error(Code::kInvalidArgument,
                                   cat(flag, " must be above 0 seconds, not ", text));
            if (value > kMaxSecondsFlag) {
              return Status::error(
                  Code::kInvalidArgument,
                  cat(flag, " must be at most ", kMaxSecondsFlag, " seconds, not ", text));
            }
            *target = value;
            return {};
          },
          show(target)};
}

/// Seconds that may be 0.
inline FlagParser::Setter seconds_or_0(double* target) {
  return {[target](std::string_view flag, std::string_view text) -> Status {
            SHOAL_ASSIGN_OR_RETURN(const double value, parse_number_flag(flag, text));
            if (!(value >= 0 && value <= kMaxSecondsFlag))
              return Status::error(
                  Code::kInvalidArgument,
                  cat(flag, " must be in [0, ", kMaxSecondsFlag, "] seconds, not ", text));
            *target = value;
            return {};
          },
          show(target)};
}

}  // namespace shoal
