// Part of a FAKE of libnccl (fake_nccl.cc): how its ranks meet, and the sockets that carry the
// data.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fake_nccl {

/// What each rank tells all the others when they meet.
struct RankInfo {
  int32_t rank = 0;
  int32_t port = 0;  ///< on the loopback interface, where the rank receives messages
  int32_t pid = 0;
  int32_t device = -1;  ///< -1: unknown
  int32_t version = 0;
  int32_t channels = 0;
  int32_t cumem_host = 0;
  int32_t no_p2p = 0, no_shm = 0;
  uint64_t host_hash = 0;
  uint64_t shm_device = 0;  ///< st_dev of /dev/shm
};

/// Starts a thread in this process that introduces the ranks of one communicator to each other, as
/// the real library does. Returns its port, or 0 if there is no socket. The unique id carries the
/// port, and a key that distinguishes it from others.
int start_root(uint64_t key);

/// One rank's sockets. They wait as the real library does: for ever, and busily while a peer has to
/// connect.
class Sockets {
 public:
  /// Meets all other ranks at the root. Returns false if nobody listens there.
  bool meet(int root_port, uint64_t key, RankInfo mine, int ranks);
  const std::vector<RankInfo>& all() const { return all_; }

  /// Returns false if nobody listened at the peer's port for a minute.
  bool send(int peer, int tag, const std::string& text);
  /// Spins in accept until the message has arrived.
  std::string receive(int peer, int tag);

  /// Opens the connections of a ring, which exchange() uses.
  bool open_ring();
  /// Sends `bytes` to the next rank while receiving `bytes` from the previous one. Returns false if
  /// one of them is gone.
  bool exchange(const char* out, char* in, size_t bytes);

 private:
  void take_one();

  int rank_ = 0;
  int listener_ = -1;
  int next_ = -1, before_ = -1;
  std::vector<RankInfo> all_;
  std::map<std::pair<int, int>, std::string> inbox_;  // by sender and tag
};

}  // namespace fake_nccl
