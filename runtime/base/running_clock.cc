#include "runtime/base/running_clock.h"

#include <algorithm>
#include <mutex>

namespace shoal {
namespace {

using Wall = std::chrono::steady_clock;

std::mutex mutex;  // guards all three
RunningClock::Source source_of_tests = nullptr;
Wall::time_point last_look = Wall::time_point::min();
RunningClock::duration ran{0};

}  // namespace

RunningClock::time_point RunningClock::now() {
  const std::lock_guard lock(mutex);
  if (source_of_tests != nullptr) return time_point(ran = source_of_tests());
  const Wall::time_point look = Wall::now();
  if (last_look != Wall::time_point::min()) {
    ran += std::min<duration>(look - last_look, std::chrono::milliseconds(kMostPerLookMs));
  }
  last_look = look;
  return time_point(ran);
}

void RunningClock::set_source(Source source) {
  const std::lock_guard lock(mutex);
  source_of_tests = source;
  last_look = Wall::now();
}

double seconds_since(RunningClock::time_point start) {
  return std::chrono::duration<double>(RunningClock::now() - start).count();
}

}  // namespace shoal
