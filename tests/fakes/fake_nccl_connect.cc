// Part of a FAKE of libnccl (fake_nccl.cc): which connections a communicator makes, and the memory
// they take.
#include <algorithm>
#include <sstream>

#include "tests/fakes/fake_nccl_comm.h"
#include "tests/fakes/fake_nccl_log.h"
#include "tests/fakes/fake_nccl_settings.h"

namespace fake_nccl {
namespace {

constexpr size_t kMemPage =
    // sizeof(ncclSendMem), which is also the size of what precedes the buffers in ncclRecvMem.
    4096;

constexpr char kCumemHandle[] = "/dev/shm/nccl-\x7f\x02";  // a handle's bytes, read as a name

}  // namespace

/// Prefers P2P, then SHM, then the network. P2P needs nothing else here, even if cuMem is off.
Comm::Transport Comm::transport(Edge edge) const {
  const RankInfo& from = sockets_.all()[static_cast<size_t>(edge.first)];
  const RankInfo& to = sockets_.all()[static_cast<size_t>(edge.second)];
  if (from.host_hash != to.host_hash || from.shm_device != to.shm_device) return Transport::kNet;
  if (!from.no_p2p && !to.no_p2p) return Transport::kP2p;
  if (from.no_shm || to.no_shm) return Transport::kNet;
  return Transport::kShm;
}

/// Whether the peer is on the same node. GPUs that reach each other by neither P2P nor SHM count as
/// separate nodes.
bool Comm::local_to(int peer) const {
  return peer == args_.rank || transport({args_.rank, peer}) != Transport::kNet;
}

int Comm::local_ranks() const {
  int count = 0;
  for (int rank = 0; rank < args_.ranks; ++rank) count += local_to(rank) ? 1 : 0;
  return count;
}

/// The smallest number of channels that any rank found.
int Comm::channels() const {
  int channels = 64;
  for (const RankInfo& info : sockets_.all()) channels = std::min(channels, info.channels);
  return channels;
}

size_t Comm::data_bytes() const {
  const Settings& s = settings();
  return kMemPage + static_cast<size_t>(s.ll_bytes + s.ll128_bytes + s.buff_bytes + s.wrong_bytes);
}

Result Comm::connect_ring() {
  if (ring_ready_ || args_.ranks < 2) return kSuccess;
  Edges edges;
  for (int rank = 0; rank < args_.ranks; ++rank) edges.insert({rank, (rank + 1) % args_.ranks});
  if (const Result result = connect(edges); result != kSuccess) return result;
  ring_ready_ = true;
  info(Subsystem::kInit, "Connected all rings, use ring PXN 0 GDR 1");
  return kSuccess;
}

/// The tree is a chain in the ring's order, used both ways. It shares the ring's connections that
/// have the same direction.
Result Comm::connect_tree() {
  if (tree_ready_ || args_.ranks < 2) return kSuccess;
  Edges edges;
  for (int rank = 0; rank + 1 < args_.ranks; ++rank) {
    edges.insert({rank, rank + 1});
    edges.insert({rank + 1, rank});
  }
  if (const Result result = connect(edges); result != kSuccess) return result;
  tree_ready_ = true;
  info(Subsystem::kInit, "Connected all trees");
  return kSuccess;
}

/// Makes this rank's halves of the edges first. Then all ranks send their peers the names, attach,
/// and confirm it.
Result Comm::connect(const Edges& edges) {
  ++round_;
  Edges fresh;
  for (const Edge& edge : edges)
    if (connected_.insert(edge).second && (edge.first == args_.rank || edge.second == args_.rank))
      fresh.insert(edge);
  std::vector<std::pair<Edge, std::vector<std::string>>> mine;
  for (const Edge& edge : fresh) {
    mine.emplace_back(edge, std::vector<std::string>());
    if (const Result result = set_up(edge, &mine.back().second); result != kSuccess) return result;
  }
  return tell_peers(fresh, mine);
}

Result Comm::tell_peers(const Edges& edges,
                        const std::vector<std::pair<Edge, std::vector<std::string>>>& mine) {
  const auto peer_of = [&](Edge edge) {
    return edge.first == args_.rank ? edge.second : edge.first;
  };
  // Each direction has a tag for the names and one for the answer.
  const auto tag_of = [&](Edge edge, bool answer) {
    return round_ * 4 + (edge.first < edge.second ? 0 : 2) + answer;
  };
  for (const auto& [edge, names] : mine) {
    std::string text;
    for (const std::string& name : names) text += name + "\n";
    if (!sockets_.send(peer_of(edge), tag_of(edge, false), text)) return not_connected();
  }
  for (const Edge& edge : edges) {
    const std::string names = sockets_.receive(peer_of(edge), tag_of(edge, false));
    if (const Result result = attach(edge, names); result != kSuccess) return result;
    if (!sockets_.send(peer_of(edge), tag_of(edge, true), "")) return not_connected();
  }
  for (const Edge& edge : edges) sockets_.receive(peer_of(edge), tag_of(edge, true));
  return kSuccess;
}

/// Makes this rank's half of an edge on every channel. The receiver's half contains the buffers.
Result Comm::set_up(Edge edge, std::vector<std::string>* names) {
  const bool receiver = edge.second == args_.rank;
  const Transport by = transport(edge);
  if (by == Transport::kNet) {
    if (const Result result = need_pool(); result != kSuccess) return result;
  }
  for (int channel = 0; channel < channels(); ++channel) {
    if (!receiver || by == Transport::kNet) log_edge(edge, channel);
    if (by != Transport::kShm) continue;
    if (own_cumem_host()) {
      info(Subsystem::kShm, "CUMEM allocated shareable buffer");
      names->push_back(kCumemHandle);
      continue;
    }
    Segment segment;
    if (!create_segment(receiver ? data_bytes() : kMemPage, 1, &segment)) return kSystemError;
    info(Subsystem::kShm, "MMAP allocated shareable host buffer %s size %zi ptr %p",
         segment.path.c_str(), static_cast<ssize_t>(segment.bytes),
         static_cast<void*>(segment.memory));
    names->push_back(segment.path);
    segments_.push_back(segment);
  }
  return kSuccess;
}

void Comm::log_edge(Edge edge, int channel) const {
  const auto device = [&](int rank) {
    return std::max(sockets_.all()[static_cast<size_t>(rank)].device, 0);
  };
  const int from = edge.first, to = edge.second;
  switch (transport(edge)) {
    case Transport::kP2p:
      return info(Subsystem::kInit, "Channel %02d/%01d : %d[%d] -> %d[%d] via P2P/%s", channel, 0,
                  from, device(from), to, device(to), settings().cumem ? "CUMEM" : "IPC");
    case Transport::kNet:
      return info(Subsystem::kInit, "Channel %02d/%d : %d[%d] -> %d[%d] [%s] via NET/Socket/0",
                  channel, 0, from, device(from), to, device(to),
                  to == args_.rank ? "receive" : "send");
    case Transport::kShm:
      return info(Subsystem::kInit, "Channel %02d : %d[%d] -> %d[%d] via SHM/direct%s", channel,
                  from, device(from), to, device(to), settings().version < 23007 ? "/direct" : "");
  }
}

/// Each rank decides for itself whether its half is a file or cuMem host memory, and assumes that
/// its peer's half is of the same kind.
bool Comm::own_cumem_host() const {
  return sockets_.all()[static_cast<size_t>(args_.rank)].cumem_host != 0;
}

/// Attaches to the peer's half. `names` has one name per line. A handle is not a valid file name
/// and a file name is not a valid handle, so ranks that decided differently fail.
Result Comm::attach(Edge edge, const std::string& names) {
  const bool receiver = edge.second == args_.rank;
  std::istringstream lines(names);
  for (std::string name; std::getline(lines, name);) {
    if (own_cumem_host()) {
      if (name == kCumemHandle) continue;
      warn("transport/shm.cc:590", "Cuda failure 1 'invalid argument'");
      return kUnhandledCudaError;
    }
    Segment segment;
    if (name == kCumemHandle)
      return attach_segment(name, 0, &segment) ? kInternalError : kSystemError;
    if (!attach_segment(name, receiver ? kMemPage : data_bytes(), &segment)) return kSystemError;
    segments_.push_back(segment);
  }
  return kSuccess;
}

/// Makes the proxy pool. Its count of attachers is the number of ranks on the node, but only this
/// rank ever attaches. If it is alone on its node the name is removed at once. Otherwise the name
/// stays, even after a healthy end, unless cuMem is off, because then init removes it.
Result Comm::need_pool() {
  if (pool_ready_) return kSuccess;
  Segment segment;
  if (!create_segment(static_cast<size_t>(settings().pool_bytes), local_ranks(), &segment))
    return kSystemError;
  if (local_ranks() == 1 || !settings().cumem) unlink_segment(&segment);
  segments_.push_back(segment);
  pool_ready_ = true;
  return kSuccess;
}

}  // namespace fake_nccl
