// Part of a FAKE of libnccl (fake_nccl.cc): how its ranks meet and what bytes travel on.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fake_nccl {

/// What every rank tells all others when they meet.
struct RankInfo {
  int32_t rank = 0;
  int32_t port = 0;  ///< on the loopback interface, where it takes messages
  int32_t pid = 0;
  int32_t device = -1;  ///< -1: not known
  int32_t version = 0;
  int32_t channels = 0;
  int32_t cumem_host = 0;
  int32_t no_p2p = 0, no_shm = 0;
  uint64_t host_hash = 0;
  uint64_t shm_device = 0;  ///< st_dev of /dev/shm
};

/// Starts the thread that introduces the ranks of one communicator to each other, in this process,
/// as the real one does. 0: no socket. The port is what the unique id carries, with a key that
/// tells it from others.
int start_root(uint64_t key);

/// One rank's end. Waits as the real library waits: for ever, and busily while a peer has to
/// connect.
class Sockets {
 public:
  /// Meets all others at the root. False: nobody listens there.
  bool meet(int root_port, uint64_t key, RankInfo mine, int ranks);
  const std::vector<RankInfo>& all() const { return all_; }

  /// False: nobody listens there, tried for a minute.
  bool send(int peer, int tag, const std::string& text);
  /// Spins in accept until it is there.
  std::string receive(int peer, int tag);

  /// The connections of a ring, for exchange.
  bool open_ring();
  /// `bytes` to the next rank while as many come from the one before. False: one of them is gone.
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
