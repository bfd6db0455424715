#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/cat.h"

namespace shoal {

/// The codes and numbers of google.rpc.Code, so that a Status crosses gRPC unchanged.
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

/// What is to blame for a failure, which decides what may cure it. The code that detects a failure
/// states its fault, so that nobody has to guess it from a message or a source path.
enum class Fault : int32_t {
  kOwn,           ///< the process that failed, its model or its input: a retry would fail again
  kTransport,     ///< bytes could not be moved between ranks: another transport may work
  kSharedMemory,  ///< the transport found too little shared memory: a transport that needs less may
                  ///< work
  kDeath,         ///< a rank died by itself: a retry may work
  kSilence,       ///< a rank stopped answering: a retry may work
  kSpinning,      ///< a rank computed without end: a retry may work
  kShortage,      ///< memory, threads or descriptors ran out: no other transport needs less, but a
                  ///< retry may find more
  kOutside,  ///< a signal from outside ended a rank: a retry may work, and no request can be the
             ///< cause
  kHeldUp,   ///< something outside kept a rank from running (it was stopped, frozen or
             ///< throttled): a retry may work, and no request can be the cause
  kOutOfMemory,   ///< the kernel's out-of-memory killer has ended a rank, or may have: a retry may
                  ///< work
  kModelChanged,  ///< the model's files are not those any more that were loaded, or do not answer:
                  ///< only a new start of the program helps
  kGivenUp,       ///< the caller asked to stop
  kPolicy,        ///< there is nothing left to try, or the rest is forbidden
};

/// The name of a code, such as "RESOURCE_EXHAUSTED"; "CODE_99" if the number is not a code.
std::string code_name(Code code);

/// The rank that is written into the causes that this process makes; -1 (the default) is the front.
inline constexpr int kFrontRank = -1;
void set_process_rank(int rank);
int process_rank();

/// One cause in the chain that explains an error. Plain data, which crosses the control channel as
/// it is.
struct Cause {
  Code code = Code::kUnknown;
  int rank = kFrontRank;  ///< the rank that noticed it
  std::string where;      ///< "folder/file.cc:line"
  std::string what;       ///< what failed, with numbers and units
  int os_error = 0;       ///< errno; 0 if none applies
  Fault fault = Fault::kOwn;
};

/// Success, or an error with the chain of its causes: the outermost (what the user wanted) first,
/// the root last. Copyable, because nvcc needs that, and cheap if ok. Not thread-safe.
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
  /// What the root cause blames; kOwn when ok.
  Fault fault() const { return ok() ? Fault::kOwn : causes_.back().fault; }
  /// The same error with its root cause blaming `fault`. No effect on an ok status.
  Status blamed_on(Fault fault) const;
  /// The outermost cause's text; empty when ok.
  std::string_view message() const { return ok() ? std::string_view() : causes_.front().what; }

  /// Makes this error the reason of a larger one: the new cause comes first. Add a cause when the
  /// error crosses to another module or process, not in every function. No effect on an ok status.
  Status because_of(Code code, std::string what, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) const;
  /// The same, keeping this error's own code.
  Status while_doing(std::string what, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) const;

  /// "CODE: what\n  because CODE [rank 1] file.cc:88 what: strerror (errno)" ..., without a final
  /// newline, at most max_bytes (the middle causes are left out first). "OK" when ok.
  std::string to_string(size_t max_bytes = 1900) const;

  /// The same for a person: "what: strerror\n  because what" ..., without codes and places in the
  /// source. A cause that a rank noticed begins with "rank 1: ". Empty when ok.
  std::string plain_text(size_t max_bytes = 1900) const;

 private:
  std::vector<Cause> causes_;
};

/// A value, or the error that prevented it: a Status, or a type that holds a Status and more. Such
/// a type must be ok when it is default-constructed, and have ok() as Status has.
template <typename T, typename E = Status>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit by design
  Result(E error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit by design

  bool ok() const { return state_.index() == 0; }
  E error() const { return ok() ? E() : std::get<1>(state_); }
  /// The same, for a result whose error is a Status.
  Status status() const { return error(); }
  /// The value. Precondition: ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, E> state_;
};

#define SHOAL_CONCAT_INNER(a, b) a##b
#define SHOAL_CONCAT(a, b) SHOAL_CONCAT_INNER(a, b)

/// Returns the status (or the error that holds one) from the enclosing function unless it is ok.
#define SHOAL_RETURN_IF_ERROR(expression)                           \
  do {                                                              \
    if (auto status_ = (expression); !status_.ok()) return status_; \
  } while (false)

/// SHOAL_ASSIGN_OR_RETURN(auto x, make_x()): declares (or assigns) x from a Result, or returns its
/// error.
#define SHOAL_ASSIGN_OR_RETURN(target, expression) \
  SHOAL_ASSIGN_OR_RETURN_INNER(SHOAL_CONCAT(result_, __LINE__), target, expression)
#define SHOAL_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                    \
  if (!result.ok()) return result.error();                       \
  target = std::move(result).value()

}  // namespace shoal
