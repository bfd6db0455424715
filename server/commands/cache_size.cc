#include "server/commands/cache_size.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

/// Reads "32768K".
uint64_t size_of(const std::string& text) {
  char* unit = nullptr;
  const uint64_t number = std::strtoull(text.c_str(), &unit, 10);
  return number << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : 0);
}

}  // namespace

uint64_t cache_bytes(const std::string& folder) {
  uint64_t bytes = 0;
  std::set<std::string> counted;  // by the processors that share it
  for (int cpu = 0; std::filesystem::exists(cat(folder, "/cpu", cpu)); ++cpu) {
    int top = 0;
    std::string shared, size;
    for (int index = 0; index < 8; ++index) {
      const std::string cache = cat(folder, "/cpu", cpu, "/cache/index", index);
      const int level = std::atoi(first_line(cache + "/level").c_str());
      if (level <= top) continue;
      top = level;
      shared = first_line(cache + "/shared_cpu_list");
      size = first_line(cache + "/size");
    }
    if (top > 0 && counted.insert(shared).second) bytes += size_of(size);
  }
  return bytes;
}

bool fit_in_caches(uint64_t weight_bytes, uint64_t caches) {
  return caches > 0 && weight_bytes <= caches;
}

}  // namespace shoal
