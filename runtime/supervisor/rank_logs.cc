#include "runtime/supervisor/rank_logs.h"

#include <cerrno>
#include <sys/mman.h>
#include <unistd.h>

namespace shoal {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;

}  // namespace

Result<std::vector<Fd>> make_rank_logs(int ranks) {
  std::vector<Fd> logs;
  for (int rank = 0; rank < ranks; ++rank) {
    logs.emplace_back(::memfd_create("shoal-rank-log", MFD_CLOEXEC));
    if (!logs.back().valid())
      return Status::error(Code::kResourceExhausted, cat("make a log in memory for rank ", rank),
                           errno);
  }
  return logs;
}

std::vector<std::string> read_rank_logs(const std::vector<Fd>& logs) {
  std::vector<std::string> texts;
  for (const Fd& log : logs) {
    std::string text(kMostBytes, '\0');
    size_t filled = 0;
    while (filled < text.size()) {
      const ssize_t got = ::pread(log.get(), text.data() + filled, text.size() - filled,
                                  static_cast<off_t>(filled));
      if (got <= 0) break;
      filled += static_cast<size_t>(got);
    }
    text.resize(filled);
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace shoal
