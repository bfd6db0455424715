// Part of a FAKE of libnccl (fake_nccl.cc): a communicator.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/fake_nccl_segment.h"
#include "tests/fakes/fake_nccl_sockets.h"

namespace fake_nccl {

/// The values of ncclResult_t.
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

struct InitArgs {
  int root_port = 0;
  uint64_t key = 0;
  int ranks = 0;
  int rank = 0;
  int device = -1;
  bool blocking = true;
};

/// Takes what remains of a collective once its connections are made, and runs it in its turn.
using Enqueue = std::function<void(std::function<void()>)>;

/// A communicator. It connects in a thread of its own, and is never destroyed.
class Comm {
 public:
  explicit Comm(InitArgs args);

  /// Starts the init. Returns kInProgress, or the init's result if the communicator is blocking. As
  /// in NCCL, the handle is stored in *place twice: at once, and by the thread when the init ends,
  /// whether it succeeded or not.
  Result init(Comm** place);
  Result state();
  /// Buffers are host memory. The call returns when the connections are there, which may be never.
  /// A failure of the rest is the communicator's state.
  Result all_gather(const char* mine, char* all, size_t bytes, const Enqueue& enqueue);
  Result all_reduce(const float* own, float* out, size_t count, const Enqueue& enqueue);
  int ranks() const { return args_.ranks; }

 private:
  enum class Transport { kP2p, kShm, kNet };
  using Edge = std::pair<int, int>;  // from, to
  using Edges = std::set<Edge>;

  void spin_if_asked();
  Result start(std::function<Result()> work, bool waits);
  Result connected(std::function<Result()> connect);
  void finish(Result result);
  void run();

  // These run in the thread:
  Result do_init();
  Result store_handle(Comm** place, Result result);
  RankInfo introduction(uint64_t shm_device) const;
  Result check_peers();
  Result share_nvls_region();
  void log_channels();
  Result connect_gather(size_t bytes);
  Result connect_reduce(size_t count);
  bool uses_tree(size_t count) const;
  // And these on the stream:
  Result reduce_ring(const float* own, float* out, size_t count);
  Result gather_ring(const char* mine, char* all, size_t bytes);
  Result peer_gone();
  Result not_connected();

  // These are in fake_nccl_connect.cc:
  Transport transport(Edge edge) const;
  bool local_to(int peer) const;
  int local_ranks() const;
  int channels() const;
  Result connect_ring();
  Result connect_tree();
  Result connect(const Edges& edges);
  Result set_up(Edge edge, std::vector<std::string>* names);
  void log_edge(Edge edge, int channel) const;
  Result tell_peers(const Edges& edges,
                    const std::vector<std::pair<Edge, std::vector<std::string>>>& mine);
  Result attach(Edge edge, const std::string& names);
  bool own_cumem_host() const;
  Result need_pool();
  size_t data_bytes() const;

  const InitArgs args_;
  Sockets sockets_;
  Edges connected_;
  bool ring_ready_ = false, tree_ready_ = false;
  bool pool_ready_ = false;
  int begun_ = 0;                  // collectives
  int round_ = 0;                  // counts rounds of connections; the tag of their messages
  std::vector<Segment> segments_;  // kept mapped for the communicator's life

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<Result()> work_;
  Result state_ = kSuccess;
};

/// Never returns. It behaves like a kernel that waits for the flag of a peer.
[[noreturn]] void hang();

}  // namespace fake_nccl
