#pragma once
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace shoal {

/// Moves a value to a place where it is not freed before the process ends, and returns its address
/// there. For memory that a thread or kernel may still write to after our deadline, or that a peer
/// may still have mapped. A process has one group, so the total is bounded.
template <class T>
T* keep_for_process(T value) {
  static std::mutex mutex;
  // A sanitizer sees no leak, because the values can still be reached.
  static auto* const kept = new std::vector<std::unique_ptr<T>>();
  const std::lock_guard<std::mutex> lock(mutex);
  return kept->emplace_back(std::make_unique<T>(std::move(value))).get();
}

}  // namespace shoal
