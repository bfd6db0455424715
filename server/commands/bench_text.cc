#include "server/commands/bench_text.h"

#include <algorithm>
#include <cstdlib>
#include <unistd.h>

#include "runtime/base/counted.h"
#include "runtime/base/number_text.h"

namespace shoal {
namespace {

/// Figures that differ by more than this say more about the machine than about the program.
constexpr double kNoisyAbove = 2;
/// A greater part of the processors that others load leaves the bench too few.
constexpr double kBusyAbove = 0.75;

}  // namespace

MachineLoad MachineLoad::now() {
  MachineLoad load;
  (void)::getloadavg(&load.average, 1);
  load.cpus = ::sysconf(_SC_NPROCESSORS_ONLN);
  return load;
}

std::string MachineLoad::text() const {
  return cat("load average before the start: ", with_decimals(average, 2), " on ",
             counted(cpus, "CPU"),
             average > kBusyAbove * static_cast<double>(cpus)
                 ? ": busy, so run it again when the machine is idle"
                 : "");
}

std::string four_digits(double value) {
  return with_digits(value, 4);
}

std::string spread_text(const std::vector<double>& figures, const std::string& unit,
                        const std::string& several) {
  if (figures.size() < 2) return "";
  const auto [least, most] = std::minmax_element(figures.begin(), figures.end());
  return cat(four_digits(*least), " to ", four_digits(*most), " ", unit, " in ", figures.size(),
             " ", several,
             *most > kNoisyAbove * *least
                 ? cat("; noisy: ", several, " differ by more than a factor of ", kNoisyAbove)
                 : "");
}

}  // namespace shoal
