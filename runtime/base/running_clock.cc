#include "runtime/base/running_clock.h"

#include <algorithm>
#include <atomic>
#include <mutex>

namespace shoal {
namespace {

using Wall = std::chrono::steady_clock;

std::atomic<RunningClock::Source> source_of_tests = nullptr;
std::mutex mutex;  // guards both
Wall::time_point last_look = Wall::time_point::min();
RunningClock::duration ran{0};

}  // namespace

RunningClock::time_point RunningClock::now() {
  const std::lock_guard lock(mutex);
  if (const Source source = source_of_tests) return time_point(ran = source());
  const Wall::time_point look = Wall::now();
  if (last_look != Wall::time_point::min()) {
    ran += std::min<duration>(look - last_look, std::chrono::milliseconds(kMostPerLookMs));
  }
  last_look = look;
  return time_point(ran);
}

RunningClock::duration RunningClock::wall() {
  const Source source = source_of_tests;
  return source != nullptr ? source() : duration(Wall::now().time_since_epoch());
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
