#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

#include "tests/emulator/lanes.h"
#include "tests/emulator/pending_copies.h"

/// Launches of kernels, as the machine of the emulated device makes them.
namespace shoal::emulator {

/// early: whether the kernel has to wait for those before it, before it touches device memory.
template <class Args>
cudaError_t enqueue(void (*kernel)(Args), bool early, std::array<int64_t, 3> grid, int threads,
                    size_t shared_bytes, const Args& args, void* stream) {
  LaunchShape shape;
  shape.grid = {static_cast<unsigned>(grid[0]), static_cast<unsigned>(grid[1]),
                static_cast<unsigned>(grid[2])};
  shape.threads = static_cast<unsigned>(threads);
  shape.memory = shared_bytes;
  shape.kernel = reinterpret_cast<const void*>(kernel);
  // The arguments are copied now, so a graph that keeps this launch replays exactly these.
  return launch(
      shape,
      [kernel, early, args] {
        is_early() = early;
        kernel(args);
        // Or the next kernel would not wait for those before this one.
        check_not_early({}, "a lane has ended");
        end_of_copies();
      },
      static_cast<cudaStream_t>(stream));
}

}  // namespace shoal::emulator
