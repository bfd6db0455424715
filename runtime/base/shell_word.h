#pragma once
#include <string>
#include <string_view>

namespace shoal {

/// The text as a POSIX shell reads it as one word, for a line to paste: as it is if no shell could
/// change it, otherwise in single quotes. zsh for one expands a word that begins with "=".
inline std::string shell_word(std::string_view text) {
  constexpr std::string_view kUnquoted =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+.,:/";
  if (!text.empty() && text.find_first_not_of(kUnquoted) == std::string_view::npos)
    return std::string(text);
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

}  // namespace shoal
