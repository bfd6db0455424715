#pragma once
#include <cstdlib>
#include <cstring>
#include <vector>

namespace shoal {

/// How many of a test's repetitions one run does. scripts/test sets both variables. Without them
/// (with ctest alone), and in scripts/test without --all, every run is the same.

/// scripts/test --all runs the tests under an emulator on every fourth day.
#ifdef SHOAL_EMULATED
inline constexpr int kDaysBetweenRuns = 4;
#else
inline constexpr int kDaysBetweenRuns = 1;
#endif

/// SHOAL_TEST_DAY is the number of the UTC day since 1970. Repetitions that differ only in their
/// seed are distributed over the runs, so that each of them does a part and several together do
/// all. Returns the number of the day's run.
inline int test_day() {
  const char* day = std::getenv("SHOAL_TEST_DAY");
  return day == nullptr ? 0 : std::atoi(day) / kDaysBetweenRuns;
}

/// scripts/test --long sets SHOAL_TEST_BREADTH=full: all repetitions and all combinations, even
/// under a sanitizer.
inline bool full_breadth() {
  const char* breadth = std::getenv("SHOAL_TEST_BREADTH");
  return breadth != nullptr && std::strcmp(breadth, "full") == 0;
}

/// scripts/test without --all sets SHOAL_TEST_BREADTH=pairs, because --all does the rest.
inline bool quick_breadth() {
  const char* breadth = std::getenv("SHOAL_TEST_BREADTH");
  return breadth != nullptr && std::strcmp(breadth, "pairs") == 0;
}

/// As few repetitions as a sanitizer's run needs, which looks for races and leaks.
inline bool narrow_breadth() {
#ifdef SHOAL_SANITIZED
  return !full_breadth();
#else
  return quick_breadth();
#endif
}

/// All of these settings, or in a quick run every second one.
template <typename T>
std::vector<T> of_today(const std::vector<T>& settings) {
  if (!quick_breadth()) return settings;
  std::vector<T> chosen;
  for (size_t i = static_cast<size_t>(test_day()) % 2; i < settings.size(); i += 2)
    chosen.push_back(settings[i]);
  return chosen;
}

/// Whether this run does repetition `number`, if each run does one of every `shares`.
inline bool in_share(int number, int shares) {
  return full_breadth() || number % shares == test_day() % shares;
}

}  // namespace shoal
