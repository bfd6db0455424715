#include "tests/emulator/loading.h"

#include <chrono>
#include <fcntl.h>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>

#include "tests/emulator/settings.h"

namespace shoal::emulator {

void await_compiler() {
  const std::string& path = settings().compiles;
  while (!path.empty() && ::access(path.c_str(), F_OK) == 0)
    // no deadline: the test says when the driver is done, by removing the file
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void note_launch(const void* kernel) {
  const std::string& path = settings().launched;
  if (path.empty()) return;
  struct Launched {
    std::mutex mutex;
    std::set<const void*> kernels;
  };
  static auto& launched = *new Launched;  // threads of streams may outlive static objects
  const std::lock_guard<std::mutex> lock(launched.mutex);
  if (!launched.kernels.insert(kernel).second) return;
  const std::string line = "process " + std::to_string(::getpid()) + ", kernel " +
                           std::to_string(launched.kernels.size()) + "\n";
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(file, line.data(), line.size());
  ::close(file);
}

}  // namespace shoal::emulator
