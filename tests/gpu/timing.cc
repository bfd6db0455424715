#include "tests/gpu/timing.h"

#include <algorithm>
#include <cstddef>

#include "tests/gpu/layer_problem.h"

namespace shoal::gpu {
namespace {

constexpr int kMostCalls = 1000;  // which fit into a stream

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Result<CallTime> one_turn(OneDevice& one, const Work& work, int calls) {
  const auto began = Clock::now();
  for (int call = 0; call < calls; ++call) SHOAL_RETURN_IF_ERROR(work(call));
  const double enqueued = seconds_since(began);
  SHOAL_RETURN_IF_ERROR(one.finish());
  return CallTime{seconds_since(began) * 1e6 / calls, enqueued * 1e6 / calls};
}

}  // namespace

Result<Device::Memory> random_elements(OneDevice& one, Dtype type, int64_t count, uint64_t seed) {
  constexpr int64_t kDrawn = (1 << 20) + 64;
  const std::vector<std::byte> drawn =
      encoded(floats(static_cast<size_t>(std::min(count, kDrawn)), seed), type);
  const size_t bytes = static_cast<size_t>(count) * dtype_bytes(type);
  SHOAL_ASSIGN_OR_RETURN(Device::Memory memory, one.device->allocate_raw(bytes));
  SHOAL_RETURN_IF_ERROR(one.put(memory.get(), drawn.data(), drawn.size()));
  auto* const begin = static_cast<std::byte*>(memory.get());
  for (size_t at = drawn.size(); at < bytes; at += drawn.size()) {
    SHOAL_RETURN_IF_ERROR(
        one.device->copy(begin + at, begin, std::min(drawn.size(), bytes - at), one.stream.get()));
  }
  SHOAL_RETURN_IF_ERROR(one.finish());
  return memory;
}

Result<std::vector<CallTime>> time_calls(OneDevice& one, const std::vector<Work>& works,
                                         const Turns& turns) {
  std::vector<int> calls;
  for (const Work& work : works) {
    SHOAL_ASSIGN_OR_RETURN(CallTime once, one_turn(one, work, 1));
    // Beside a short call, waiting for its end would take most of the time.
    if (once.device_us < 1000) {
      SHOAL_ASSIGN_OR_RETURN(once, one_turn(one, work, 20));
    }
    calls.push_back(
        static_cast<int>(std::clamp(turns.seconds * 1e6 / once.device_us, 1.0, 1.0 * kMostCalls)));
  }
  std::vector<std::vector<double>> device(works.size()), host(works.size());
  for (int turn = 0; turn <= turns.count; ++turn) {
    for (size_t i = 0; i < works.size(); ++i) {
      SHOAL_ASSIGN_OR_RETURN(const CallTime time, one_turn(one, works[i], calls[i]));
      if (turn == 0) continue;
      device[i].push_back(time.device_us);
      host[i].push_back(time.enqueue_us);
    }
  }
  std::vector<CallTime> times;
  for (size_t i = 0; i < works.size(); ++i) times.push_back({median(device[i]), median(host[i])});
  return times;
}

}  // namespace shoal::gpu
