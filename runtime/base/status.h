#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/cat.h"

namespace shoal {

/// google.rpc's codes and numbers, so that a Status crosses gRPC unchanged.
enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

/// "RESOURCE_EXHAUSTED" and the like; "CODE_99" for a number that is none.
std::string code_name(Code code);

/// The rank written into the causes that this process makes; -1 (the default) is the front.
inline constexpr int kFrontRank = -1;
void set_process_rank(int rank);
int process_rank();

/// One link of an error's explanation. Plain data: it crosses the control channel as it is.
struct Cause {
  Code code = Code::kUnknown;
  int rank = kFrontRank;  ///< who noticed it
  std::string where;      ///< "folder/file.cc:line"
  std::string what;       ///< the object, and numbers with units
  int os_error = 0;       ///< errno, 0 where none applies
};

/// Success, or an error with the chain of its causes: the outermost (what the user wanted) first,
/// the root last. Copyable (nvcc needs that), cheap when ok. Not thread-safe, like any value.
class [[nodiscard]] Status {
 public:
  Status() = default;
  explicit Status(std::vector<Cause> causes) : causes_(std::move(causes)) {}

  /// A new error with one cause. The call site is recorded as where.
  static Status error(Code code, std::string what, int os_error = 0,
                      const char* file = __builtin_FILE(), int line = __builtin_LINE());

  bool ok() const { return causes_.empty(); }
  Code code() const { return ok() ? Code::kOk : causes_.front().code; }
  const std::vector<Cause>& causes() const { return causes_; }
  /// The outermost cause's text; empty when ok.
  std::string_view message() const { return ok() ? std::string_view() : causes_.front().what; }

  /// This error as the reason of a larger one: the new cause comes first. Add one where the reader
  /// changes (another module, another process), not per function. No effect on an ok status.
  Status because_of(Code code, std::string what, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) const;
  /// The same with this error's own code.
  Status while_doing(std::string what, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) const;

  /// "CODE: what\n  because CODE [rank 1] file.cc:88 what: strerror (errno)" ..., without a final
  /// newline, at most max_bytes (the middle causes are left out first). "OK" when ok.
  std::string to_string(size_t max_bytes = 1900) const;

 private:
  std::vector<Cause> causes_;
};

/// A value, or why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status)
      : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT: implicit by design

  bool ok() const { return state_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }
  /// The value. Precondition: ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

#define SHOAL_CONCAT_INNER(a, b) a##b
#define SHOAL_CONCAT(a, b) SHOAL_CONCAT_INNER(a, b)

/// Returns the status from the enclosing function unless it is ok.
#define SHOAL_RETURN_IF_ERROR(expression)                                      \
  do {                                                                         \
    if (::shoal::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

/// SHOAL_ASSIGN_OR_RETURN(auto x, make_x()): declares (or assigns) x from a Result, or returns its
/// status.
#define SHOAL_ASSIGN_OR_RETURN(target, expression) \
  SHOAL_ASSIGN_OR_RETURN_INNER(SHOAL_CONCAT(result_, __LINE__), target, expression)
#define SHOAL_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                    \
  if (!result.ok()) return result.status();                      \
  target = std::move(result).value()

}  // namespace shoal
