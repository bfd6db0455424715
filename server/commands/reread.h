#pragma once
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/status.h"

namespace shoal {

/// Follows files that somebody else replaces while the server runs. `Text` is what they hold, and
/// comparable. What cannot be used is refused, and what was used before stays. One thread uses it.
template <typename Text>
class Reread {
 public:
  using Read = std::function<Result<Text>()>;
  using Use = std::function<Status(const Text&)>;

  /// used: what the files held when the server started.
  Reread(Text used, Read read, Use use)
      : used_(std::move(used)), read_(std::move(read)), use_(std::move(use)) {}

  struct Look {
    bool replaced = false;  ///< other text is in use now
    Status refused;         ///< not ok: why not, once for each change
  };

  /// Looks at the files, and uses them if they have changed. complete: the one who changed the
  /// files has said that all of them are written. Otherwise files that cannot be used may be half
  /// written, so they are refused only if the next look finds them the same.
  Look look(bool complete) {
    const Result<Text> found = read_();
    if (found.ok() && *found == used_) {
      trouble_.reset();
      return {};
    }
    const Status status = found.ok() ? use_(*found) : found.status();
    if (status.ok()) {
      used_ = *found;
      trouble_.reset();
      return {.replaced = true, .refused = {}};
    }
    return {.replaced = false, .refused = refuse(found, status, complete)};
  }

 private:
  struct Trouble {
    std::optional<Text> text;  // nothing: the files could not be read
    std::string why;
    bool told = false;
  };

  Status refuse(const Result<Text>& found, const Status& status, bool complete) {
    Trouble now{found.ok() ? std::optional<Text>(*found) : std::nullopt, status.to_string(), false};
    const bool same = trouble_ && trouble_->text == now.text && trouble_->why == now.why;
    now.told = same && trouble_->told;
    const bool tell = !now.told && (same || complete);
    now.told = now.told || tell;
    trouble_ = std::move(now);
    return tell ? status : Status();
  }

  Text used_;
  const Read read_;
  const Use use_;
  std::optional<Trouble> trouble_;
};

}  // namespace shoal
