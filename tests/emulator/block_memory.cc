#include "tests/emulator/block_memory.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace shoal::emulator {
namespace {

struct Raised {
  std::mutex mutex;
  std::map<std::pair<int, const void*>, size_t> bytes;
};
Raised& raised() {
  static auto& one = *new Raised;  // threads of streams may outlive static objects
  return one;
}

}  // namespace

bool raise_block_memory(int device, const void* kernel, size_t bytes) {
  if (bytes > kMostBlockMemory) return false;
  const std::lock_guard<std::mutex> lock(raised().mutex);
  size_t& most = raised().bytes[{device, kernel}];
  most = std::max(most, bytes);
  return true;
}

bool may_have_block_memory(int device, const void* kernel, size_t bytes) {
  if (bytes <= kPlainBlockMemory) return true;
  const std::lock_guard<std::mutex> lock(raised().mutex);
  const auto found = raised().bytes.find({device, kernel});
  return found != raised().bytes.end() && bytes <= found->second;
}

}  // namespace shoal::emulator
