#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/chat_template/value.h"

namespace shoal::jinja {

/// What one rendering may take.
struct Limits {
  size_t max_steps = 10'000'000;  ///< expressions, statements and items
  size_t max_output_bytes = size_t{64} << 20;
  size_t max_string_bytes = size_t{64} << 20;
  size_t max_live_bytes = size_t{512} << 20;  ///< of all strings at one moment
  int max_depth = 400;                        ///< of expressions, statements and macro calls
  std::optional<int64_t> now_s = {};          ///< the time of strftime_now, in seconds since 1970
  /// Nobody waits for the text any more once this is true; null: somebody always does.
  const std::atomic<bool>* given_up = nullptr;
};

enum class FailureKind {
  kNone,
  kRaised,   ///< the template called raise_exception
  kError,    ///< an operation that Python or Jinja2 would refuse too
  kLimit,    ///< a limit was reached, or something is not supported
  kGivenUp,  ///< nobody waits any more
};

/// One rendering: its limits and its first failure. After a failure every operation gives an
/// undefined value and nothing more is evaluated, so that callers look at ok() only in loops and
/// before effects. Not thread-safe.
class Run {
 public:
  explicit Run(const Limits& limits) : limits_(limits) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  /// Empties the namespaces, which can hold each other in a circle.
  ~Run();

  bool ok() const { return kind_ == FailureKind::kNone; }
  FailureKind kind() const { return kind_; }
  const std::string& message() const { return message_; }
  size_t failed_at() const { return failed_at_; }
  const Limits& limits() const { return limits_; }

  /// Keeps the first failure. Returns an undefined value, so that a caller can return it.
  Value fail(FailureKind kind, std::string message);
  Value error(std::string message) { return fail(FailureKind::kError, std::move(message)); }

  /// Counts work. False if the rendering has to stop.
  bool step(size_t count = 1) {
    steps_ += count;
    if (steps_ < next_look_) return ok();
    return look();
  }

  /// A string value. Fails if it is too long, or if all strings together are.
  Value string(Text text, bool markup = false);
  Value string(std::string_view text) { return string(Text(std::string(text), false)); }

  Value new_namespace(DictObject attributes);

  /// The byte of the template that is evaluated; failures are reported there.
  size_t position = 0;
  int depth = 0;

 private:
  bool look();

  const Limits limits_;
  size_t steps_ = 0;
  size_t next_look_ = 4096;
  std::vector<std::shared_ptr<NamespaceObject>> namespaces_;
  std::shared_ptr<size_t> live_bytes_ = std::make_shared<size_t>(0);
  FailureKind kind_ = FailureKind::kNone;
  std::string message_;
  size_t failed_at_ = 0;
};

/// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  bool empty() const { return positional.empty() && keywords.empty(); }
};

/// Gives the arguments of one call by position or name, and checks that none is left over.
class Signature {
 public:
  /// `names` are the parameters in order, separated by blanks.
  Signature(Run& run, std::string_view callee, const Arguments& arguments, std::string_view names);

  /// The argument, or null if it was not given.
  const Value* find(std::string_view name) const;
  /// The argument. Fails if it was not given.
  Value need(std::string_view name);
  /// The argument's truth, or the fallback.
  bool flag(std::string_view name, bool fallback) const;

 private:
  Run& run_;
  std::string callee_;
  std::vector<std::pair<std::string_view, Value>> given_;
};

}  // namespace shoal::jinja
