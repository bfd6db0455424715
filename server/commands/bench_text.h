#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace shoal {

/// The load average of the last minute, and of how many processors: both are the whole machine's.
struct MachineLoad {
  double average = 0;
  int64_t cpus = 0;

  /// Stays 0 where the kernel does not tell.
  static MachineLoad now();
  /// "load average before the start: 8.50 on 2 CPUs: busy, so run it again when the machine is
  /// idle"; busy is a load above three quarters of the CPUs.
  std::string text() const;
};

/// A number of at most four digits, unless a power of ten would stand for more: "0.1961", "5099".
std::string four_digits(double value);

/// "4012 to 5300 tokens/s in 3 runs", and that it is noisy if the largest is more than twice the
/// least. Empty if there is but one figure. `several` names what the figures are of, as "runs".
std::string spread_text(const std::vector<double>& figures, const std::string& unit,
                        const std::string& several);

}  // namespace shoal
