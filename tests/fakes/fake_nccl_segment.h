// Part of a FAKE of libnccl (fake_nccl.cc): its files in /dev/shm.
#pragma once
#include <cstddef>
#include <string>

namespace fake_nccl {

/// A file /dev/shm/nccl-XXXXXX of bytes and, behind them, a count of those who have still to
/// attach; mapped, and the descriptor kept, until the process ends. As the real library's
/// ncclShmOpen.
struct Segment {
  std::string path;
  size_t bytes = 0;
  int fd = -1;
  char* memory = nullptr;
};

/// attachers: how many will attach; the last removes the name. False: said in the log, and where it
/// did not fit an empty file stays behind, as 2.28.9 leaves one.
bool create_segment(size_t bytes, int attachers, Segment* segment);
bool attach_segment(const std::string& path, size_t bytes, Segment* segment);
void unlink_segment(Segment* segment);

}  // namespace fake_nccl
