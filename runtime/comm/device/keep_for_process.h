#pragma once
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace shoal {

/// Moves a value to where nothing frees it before the process's end, and says where. For what a
/// thread or a kernel that no deadline of ours ends may still write to, or what a peer may still
/// have mapped. A process has one group, so this is bounded.
template <class T>
T* keep_for_process(T value) {
  static std::mutex mutex;
  static auto* const kept =
      new std::vector<std::unique_ptr<T>>();  // still reachable: no leak to a sanitizer
  const std::lock_guard<std::mutex> lock(mutex);
  return kept->emplace_back(std::make_unique<T>(std::move(value))).get();
}

}  // namespace shoal
