#pragma once
#include <sys/socket.h>
#include <sys/uio.h>
#include <vector>

namespace shoal {

/// A list of buffers that is consumed from the front.
class BufferList {
 public:
  void clear() { buffers_.clear(), next_ = 0; }
  void add(const void* data, size_t bytes) {
    if (bytes > 0) buffers_.push_back({const_cast<void*>(data), bytes});
  }
  bool empty() const { return next_ == buffers_.size(); }
  msghdr message() {
    msghdr header{};
    header.msg_iov = buffers_.data() + next_;
    header.msg_iovlen = buffers_.size() - next_;
    return header;
  }
  void advance(size_t bytes) {
    while (next_ < buffers_.size() && bytes >= buffers_[next_].iov_len)
      bytes -= buffers_[next_++].iov_len;
    if (bytes == 0) return;
    buffers_[next_].iov_base = static_cast<char*>(buffers_[next_].iov_base) + bytes;
    buffers_[next_].iov_len -= bytes;
  }

 private:
  std::vector<iovec> buffers_;
  size_t next_ = 0;
};

}  // namespace shoal
