#include "runtime/base/text_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace shoal {
namespace {

Status wrong(std::string_view flag, std::string_view wanted, std::string_view text) {
  return Status::error(Code::kInvalidArgument,
                       text.empty() ? cat(flag, " must be ", wanted, ", not empty")
                                    : cat(flag, " must be ", wanted, ", not ", shown(text)));
}

/// Reads the number and returns true if the whole text is one.
template <typename Number>
bool whole_number(std::string_view text, Number* number) {
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// Calls handle for each piece between commas, trimmed.
Status for_each_piece(std::string_view text, const auto& handle) {
  for (size_t begin = 0;;) {
    const size_t comma = text.find(',', begin);
    SHOAL_RETURN_IF_ERROR(handle(trimmed(text.substr(begin, comma - begin))));
    if (comma == std::string_view::npos) return {};
    begin = comma + 1;
  }
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += cat(text.empty() ? "" : ", ", word);
  return text;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

Result<int64_t> parse_int_flag(std::string_view flag, std::string_view text, int64_t min,
                               int64_t max) {
  int64_t number = 0;
  if (whole_number(text, &number) && number >= min && number <= max) return number;
  // A bound that only keeps the number in its type means nothing to the reader, unless it is what
  // is wrong.
  const bool is_open = max >= INT32_MAX && number <= max;
  const std::string bounds = !is_open          ? cat(" in [", min, ", ", max, "]")
                             : min > INT64_MIN ? cat(" of at least ", min)
                                               : "";
  return wrong(flag, "a whole number" + bounds, text);
}

Result<uint64_t> parse_seed_flag(std::string_view flag, std::string_view text) {
  uint64_t seed = 0;
  if (whole_number(text, &seed)) return seed;
  return wrong(flag, "a whole number in [0, 2^64 - 1]", text);
}

Result<double> parse_number_flag(std::string_view flag, std::string_view text) {
  double number = 0;
  if (whole_number(text, &number) && std::isfinite(number)) return number;
  return wrong(flag, "a finite number", text);
}

Result<uint64_t> parse_size_flag(std::string_view flag, std::string_view text) {
  constexpr std::string_view kWanted =
      "a size such as 1048576, 512M or 4GiB (below 2^63 bytes, no fraction)";
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  uint64_t number = 0;
  if (digits == 0 || !whole_number(text.substr(0, digits), &number))
    return wrong(flag, kWanted, text);

  std::string unit(text.substr(digits));
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return c < 128 ? std::tolower(c) : c; });
  int shift = 0;
  if (!unit.empty() && unit != "b") {
    const size_t power = std::string_view("kmgt").find(unit[0]);
    const std::string_view rest = std::string_view(unit).substr(1);
    if (power == std::string_view::npos ||
        (!rest.empty() && rest != "ib" && rest != "b" && rest != "i")) {
      return wrong(flag, kWanted, text);
    }
    shift = 10 * (static_cast<int>(power) + 1);
  }
  if (number > (static_cast<uint64_t>(INT64_MAX) >> shift)) return wrong(flag, kWanted, text);
  return number << shift;
}

Result<std::vector<int64_t>> parse_ids_flag(std::string_view flag, std::string_view text) {
  std::vector<int64_t> ids;
  SHOAL_RETURN_IF_ERROR(for_each_piece(text, [&](std::string_view piece) -> Status {
    int64_t id = 0;
    if (!whole_number(piece, &id) || id < 0 || id > INT32_MAX) {
      return wrong(flag, "token ids such as 1,2,3 (each in [0, 2^31 - 1])",
                   piece.empty() ? text : piece);
    }
    ids.push_back(id);
    return {};
  }));
  return ids;
}

Result<std::string> parse_choice_flag(std::string_view flag, std::string_view text,
                                      const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), text) != words.end()) return std::string(text);
  return wrong(flag, cat("one of ", joined(words)), text);
}

std::string nearest_word(std::string_view text, const std::vector<std::string>& candidates) {
  // No flag is longer, and the cost of the distance grows with the product of both lengths.
  constexpr size_t kLongest = 64;
  if (text.size() > kLongest) return {};
  std::string best;
  size_t best_distance = std::max<size_t>(text.size() / 3, 1) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(text, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string printable(std::string_view text) {
  const auto byte = [&text](size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
  };
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = byte(i), second = byte(i + 1), third = byte(i + 2);
    const bool c1 = c == 0xC2 && second >= 0x80 && second < 0xA0;
    // U+2028 to U+202E, and U+2066 to U+2069.
    const bool mark = c == 0xE2 && ((second == 0x80 && third >= 0xA8 && third <= 0xAE) ||
                                    (second == 0x81 && third >= 0xA6 && third <= 0xA9));
    clean += c < 0x20 || c == 0x7F || c1 || mark ? '?' : text[i];
    i += c1 ? 1 : mark ? 2 : 0;
  }
  return clean;
}

std::string shown(std::string_view text) {
  constexpr size_t kMost = 80;
  const std::string clean = printable(text.substr(0, kMost));
  return cat('"', clean, text.size() > kMost ? "..." : "", '"');
}

}  // namespace shoal
