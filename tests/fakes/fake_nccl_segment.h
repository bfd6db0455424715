// Part of a FAKE of libnccl (fake_nccl.cc): its files in /dev/shm.
#pragma once
#include <cstddef>
#include <string>

namespace fake_nccl {

/// A file /dev/shm/nccl-XXXXXX with `bytes` of data, followed by a count of the processes that have
/// not attached yet. It stays mapped, with its descriptor open, until the process ends, as with the
/// real library's ncclShmOpen.
struct Segment {
  std::string path;
  size_t bytes = 0;
  int fd = -1;
  char* memory = nullptr;
};

/// attachers: how many processes will attach; the last of them removes the name. Returns false on
/// failure, which is logged. If there was not enough room, an empty file stays behind, as with
/// 2.28.9.
bool create_segment(size_t bytes, int attachers, Segment* segment);
bool attach_segment(const std::string& path, size_t bytes, Segment* segment);
void unlink_segment(Segment* segment);

}  // namespace fake_nccl
