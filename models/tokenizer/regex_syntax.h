#pragma once
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace shoal {

/// Rewrites a pattern of Oniguruma's Ruby syntax (what tokenizer.json holds) so that PCRE2 with
/// UTF, UCP and MULTILINE matches the same texts. The two differ in: \s \S \w \W \h \H \v \b \B,
/// {,n}, {n}?, {n,m}+, (?m), \p{Script}, \uHHHH, [a[bc]]. UNIMPLEMENTED, naming the construct, for
/// those that have no counterpart or another meaning in PCRE2: subexpression calls, callouts,
/// verbs, class intersection, raw bytes above 0x7F. Anything else is copied unchanged and left to
/// PCRE2. Source: Oniguruma's doc/RE and doc/SYNTAX.md, pcre2pattern(3).
Result<std::string> oniguruma_to_pcre2(std::string_view pattern);

}  // namespace shoal
