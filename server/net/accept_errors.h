#pragma once
#include <set>

namespace shoal {

/// What a front does about the errors of accept4. It tries again after each of them, because nearly
/// all of them pass. If one does not pass, only the log can tell. Not thread-safe.
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
