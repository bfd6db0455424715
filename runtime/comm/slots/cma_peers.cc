#include "runtime/comm/slots/cma_peers.h"

#include <cerrno>
#include <sys/mman.h>
#include <utility>

#include "runtime/base/quantity.h"

namespace shoal {

PrivateMemory::PrivateMemory(PrivateMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PrivateMemory& PrivateMemory::operator=(PrivateMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PrivateMemory::~PrivateMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<PrivateMemory> PrivateMemory::create(size_t bytes) {
  // MAP_POPULATE: a lack of memory shows now, and no collective has to wait for a page fault.
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  const int error = errno;
  if (data == MAP_FAILED) {
    return Status::error(Code::kResourceExhausted,
                         cat("map ", bytes_text(static_cast<int64_t>(bytes)), " of private memory"),
                         error);
  }
  (void)::madvise(data, bytes, MADV_DONTDUMP);
  PrivateMemory memory;
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}

int CmaPeers::read(int rank, size_t offset, void* to, size_t bytes) const {
  const iovec local{to, bytes};
  iovec remote{reinterpret_cast<void*>(offset), bytes};
  return read_pieces(rank, {&local, 1}, {&remote, 1});
}

int CmaPeers::read_pieces(int rank, std::span<const iovec> to,
                          std::span<iovec> from_offsets) const {
  const CmaHello& peer = hellos_[rank];
  size_t bytes = 0;
  for (iovec& piece : from_offsets) {
    piece.iov_base =
        reinterpret_cast<void*>(peer.address + reinterpret_cast<uintptr_t>(piece.iov_base));
    bytes += piece.iov_len;
  }
  const ssize_t got = ::process_vm_readv(peer.pid, to.data(), to.size(), from_offsets.data(),
                                         from_offsets.size(), 0);
  if (got == static_cast<ssize_t>(bytes)) return 0;
  // If only a part was read, the rest is no longer mapped.
  return got < 0 ? errno : EFAULT;
}

int CmaPeers::check(int rank) const {
  uint64_t nonce = 0;
  const int error = read(rank, 0, &nonce, sizeof nonce);
  return error != 0 ? error : nonce == hellos_[rank].nonce ? 0 : ESRCH;
}

}  // namespace shoal
