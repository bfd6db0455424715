#pragma once
#include <set>

namespace shoal {

/// What a front does about the errors of accept4. It goes on after each of them, because nearly all
/// may pass, so that the log is the only one that can tell of one that does not. Not thread-safe.
class AcceptErrors {
 public:
  /// True if the client that waited is gone, or none waits.
  static bool is_nobody(int error);

  /// Logs that a client of this front has to wait: as an error if this errno is a new one,
  /// otherwise at debug level.
  void log(const char* front, int error);

 private:
  std::set<int> told_;
};

}  // namespace shoal
