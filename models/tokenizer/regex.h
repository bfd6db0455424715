#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/work_limit.h"
#include "runtime/base/status.h"

namespace shoal {

struct RegexMatch {
  size_t begin = 0;  ///< bytes
  size_t end = 0;
};

/// A regex of tokenizer.json (Oniguruma, Ruby syntax), run by PCRE2, with its JIT if the system
/// allows one. Cheap to copy and immutable: find_all may be called from any thread.
class Regex {
 public:
  /// UNIMPLEMENTED, with the pattern and PCRE2's reason. `what` names the owner.
  static Result<Regex> compile(std::string_view pattern, std::string_view what);

  /// Returns all matches from left to right, as the onig crate's find_iter does: an empty match
  /// directly after another match is left out. Precondition: valid UTF-8. RESOURCE_EXHAUSTED if a
  /// match takes too many steps or the limit's CPU time is used up.
  Result<std::vector<RegexMatch>> find_all(std::string_view text, WorkLimit& limit) const;

 private:
  struct Compiled;
  explicit Regex(std::shared_ptr<const Compiled> code);
  std::shared_ptr<const Compiled> code_;
};

}  // namespace shoal
