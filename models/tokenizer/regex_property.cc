#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/tokenizer/regex_property.h"

#include <array>
#include <cctype>
#include <pcre2.h>
#include <utility>

namespace shoal {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 30> kLongCategories = {{
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"digit", "Nd"},
    {"space", "White_Space"},
}};

bool pcre2_knows(const std::string& property) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::string pattern = "\\p{" + property + "}";
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  const bool known = code != nullptr;
  pcre2_code_free(code);
  return known;
}

}  // namespace

std::string oniguruma_property(std::string_view name) {
  std::string key;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-')
      key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const auto& [long_name, short_name] : kLongCategories) {
    if (key == long_name) return std::string(short_name);
  }
  if (key.size() > 2) {
    if (std::string script = "sc:" + key; pcre2_knows(script)) return script;
  }
  return std::string(name);
}

}  // namespace shoal
