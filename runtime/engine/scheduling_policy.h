#pragma once

namespace shoal {

/// Which requests go first.
enum class SchedulingPolicy {
  kFcfs,      ///< in order of arrival; priorities are not looked at
  kPriority,  ///< lower priority values first, and among equals the earlier ones
};

}  // namespace shoal
