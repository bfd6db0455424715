#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/text_values.h"
#include "server/cli/flag_parser.h"

namespace shoal {

// Makers of setters for FlagParser::add_value. Each setter reads one kind of value, stores it, and
// reports what is wrong with it.

constexpr int64_t kMaxIntFlag = INT32_MAX;

template <typename Target>
FlagParser::Setter whole(Target* target, int64_t min, int64_t max = kMaxIntFlag) {
  return [=](std::string_view flag, std::string_view text) -> Status {
    SHOAL_ASSIGN_OR_RETURN(*target, parse_int_flag(flag, text, min, max));
    return {};
  };
}

inline FlagParser::Setter number(std::optional<double>* target) {
  return [=](std::string_view flag, std::string_view text) -> Status {
    SHOAL_ASSIGN_OR_RETURN(*target, parse_number_flag(flag, text));
    return {};
  };
}

template <typename Target>
FlagParser::Setter words_as_they_are(Target* target) {
  return [=](std::string_view, std::string_view text) -> Status {
    *target = std::string(text);
    return {};
  };
}

inline FlagParser::Setter choice(std::string* target, std::vector<std::string> known) {
  return
      [target, known = std::move(known)](std::string_view flag, std::string_view text) -> Status {
        SHOAL_ASSIGN_OR_RETURN(*target, parse_choice_flag(flag, text, known));
        return {};
      };
}

template <typename Target>
FlagParser::Setter ids(Target* target) {
  return [=](std::string_view flag, std::string_view text) -> Status {
    SHOAL_ASSIGN_OR_RETURN(*target, parse_ids_flag(flag, text));
    return {};
  };
}

inline FlagParser::Setter seed(std::optional<uint64_t>* target) {
  return [=](std::string_view flag, std::string_view text) -> Status {
    SHOAL_ASSIGN_OR_RETURN(*target, parse_seed_flag(flag, text));
    return {};
  };
}

inline FlagParser::Setter size(uint64_t* target) {
  return [=](std::string_view flag, std::string_view text) -> Status {
    SHOAL_ASSIGN_OR_RETURN(*target, parse_size_flag(flag, text));
    return {};
  };
}

/// About thirty years. It keeps values that are derived from it (milliseconds, a tenth, a quarter)
/// from overflowing.
constexpr int64_t kMaxSecondsFlag = 1'000'000'000;

inline FlagParser::Setter seconds(double* target) {
  return [=](std::string_view flag, std::string_view text) -> Status {
    SHOAL_ASSIGN_OR_RETURN(const double value, parse_number_flag(flag, text));
    if (!(value > 0))
      return Status::error(Code::kInvalidArgument,
                           cat(flag, " must be above 0 seconds, not ", text));
    if (value > kMaxSecondsFlag) {
      return Status::error(Code::kInvalidArgument,
                           cat(flag, " must be at most ", kMaxSecondsFlag, " seconds, not ", text));
    }
    *target = value;
    return {};
  };
}

}  // namespace shoal
