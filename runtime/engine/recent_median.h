#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

namespace shoal {

/// The median of the last few values, which one or two outliers among them do not move.
class RecentMedian {
 public:
  void add(double value) { values_[count_++ % kValues] = value; }

  /// nullopt: no value was added yet.
  std::optional<double> get() const {
    if (count_ == 0) return std::nullopt;
    std::array<double, kValues> sorted = values_;
    const auto end = sorted.begin() + static_cast<ptrdiff_t>(std::min(count_, kValues));
    const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
    std::nth_element(sorted.begin(), middle, end);
    return *middle;
  }

 private:
  static constexpr size_t kValues = 5;
  std::array<double, kValues> values_{};
  size_t count_ = 0;
};

}  // namespace shoal
