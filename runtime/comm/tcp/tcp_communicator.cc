#include "runtime/comm/tcp/tcp_communicator.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/uio.h>

#include "runtime/base/cat.h"
#include "runtime/comm/check_arguments.h"
#include "runtime/comm/collective_tag.h"
#include "runtime/comm/spin.h"
#include "runtime/comm/tcp/buffer_list.h"
#include "runtime/comm/tree_sum.h"
#include "runtime/comm/wait_time.h"

namespace shoal {
namespace {

// The most floats of one plane that are received before they are summed.
constexpr size_t kPieceFloats = 256 * 1024;
// With three or more ranks. For smaller messages the second round costs more than it saves.
constexpr size_t kSlicedFromBytes = 32 * 1024;

/// The part of a collective that a message belongs to.
enum class Kind : uint32_t { kAllReduce = 1, kSliceSum = 2, kGather = 3, kBarrier = 4 };
const char* kind_name(uint32_t kind) {
  switch (static_cast<Kind>(kind)) {
    case Kind::kAllReduce:
    case Kind::kSliceSum:
      return "all_reduce";
    case Kind::kGather:
      return "gather";
    case Kind::kBarrier:
      return "barrier";
  }
  return "no collective";
}

struct Header {
  uint32_t message = 0;  ///< number of this exchange in the communicator's life; wraps
  uint32_t kind = 0;
  uint64_t bytes = 0;    ///< in the payload
  int64_t ready_at = 0;  ///< when its rank began to send it, in nanoseconds of RunningClock::wall()
};

/// One peer, and its part of the running exchange.
struct Lane {
  Fd fd;
  Header sent;
  Header expected;
  Header received;
  size_t received_bytes = 0;  ///< header included
  BufferList out;             ///< empty: no message goes to this peer, or all of it is sent
  BufferList in;              ///< likewise

  bool misses_header() const { return !in.empty() && received_bytes < sizeof(Header); }
};

class TcpCommunicator final : public Communicator {
 public:
  TcpCommunicator(World world, TcpMesh mesh, int64_t timeout_ms, Interrupted interrupted)
      : world_(world),
        timeout_ms_(timeout_ms),
        interrupted_(std::move(interrupted)),
        spin_ns_(spin_budget_ns(mesh.cpus)),
        lanes_(mesh.peers.size()) {
    for (size_t rank = 0; rank < lanes_.size(); ++rank)
      lanes_[rank].fd = std::move(mesh.peers[rank]);
  }

  const char* name() const override { return "tcp"; }
  World world() const override { return world_; }

  Status all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) override;
  Status gather(int root, std::span<const std::byte> mine, std::span<const size_t> sizes,
                std::byte* out) override;
  Status barrier() override;
  WaitState wait_state() const override {
    return {collectives_, collectives_ == 0 ? "" : tag_text(tag_), missing()};
  }
  std::optional<Waited> waited() const override { return wait_time_.total(); }

 private:
  Status begin(uint64_t tag);
  Status one_round(const ReducePiece& piece);
  Status two_rounds(const ReducePiece& piece);
  float* receive_planes(const ReducePiece& piece, Slice slice);
  void sum_planes(const ReducePiece& piece, Slice slice, const float* received);

  void start_exchange(Kind kind);
  void send_to(int peer, const void* data, size_t bytes);
  void receive_from(int peer, void* data, size_t bytes);
  Status run_exchange();
  Status progress(int peer, bool& moved);
  Status check_header(int peer);
  Status sleep();
  Status broken(int peer, int error);
  std::vector<int> missing() const;
  std::string here() const {
    return cat("tcp collective ", collectives_, " (", tag_text(tag_), ")");
  }
  Status fail(Status status) { return failed_ = std::move(status); }

  const World world_;
  const int64_t timeout_ms_;
  const Interrupted interrupted_;
  const int64_t spin_ns_;
  std::vector<Lane> lanes_;        // by rank; this rank's own is unused
  uint64_t collectives_ = 0;       // begun so far, for messages
  uint64_t tag_ = 0;               // of the running collective
  uint32_t message_ = 0;           // number of the current exchange
  std::optional<Deadline> until_;  // of the running collective; set at its first sleep
  WaitTime wait_time_;
  Status failed_;               // the first error; every later call returns it
  std::vector<float> scratch_;  // the peers' planes of one piece
  std::vector<const float*> planes_;
};

Status TcpCommunicator::begin(uint64_t tag) {
  if (!failed_.ok()) return failed_;  // wait_state still describes the collective that failed
  tag_ = tag;
  ++collectives_;
  until_.reset();
  return {};
}

Status TcpCommunicator::all_reduce(const ReducePlan& plan, const float* own, float* out,
                                   size_t count) {
  SHOAL_RETURN_IF_ERROR(check_plan(plan, world_));
  SHOAL_RETURN_IF_ERROR(begin(make_tag(Op::kAllReduce, count)));
  const bool sliced = world_.size > 2 && count * sizeof(float) >= kSlicedFromBytes;
  for (size_t at = 0; at < count; at += kPieceFloats) {
    const ReducePiece piece{plan, own, out, count, at, std::min(kPieceFloats, count - at)};
    SHOAL_RETURN_IF_ERROR(sliced ? two_rounds(piece) : one_round(piece));
  }
  return {};
}

Status TcpCommunicator::one_round(const ReducePiece& piece) {
  const Slice all{0, piece.width};
  start_exchange(Kind::kAllReduce);
  for (int peer = 0; peer < world_.size; ++peer) {
    send_to(peer, nullptr, 0);  // a rank without planes sends only a header
    for (int plane = 0; plane < piece.plan.contributions[world_.rank]; ++plane) {
      send_to(peer, piece.own + plane * piece.count + piece.begin, piece.width * sizeof(float));
    }
  }
  const float* received = receive_planes(piece, all);
  SHOAL_RETURN_IF_ERROR(run_exchange());
  sum_planes(piece, all, received);
  return {};
}

Status TcpCommunicator::two_rounds(const ReducePiece& piece) {
  const Slice mine = slice_of(world_.rank, world_.size, piece.width);
  start_exchange(Kind::kAllReduce);
  for (int peer = 0; peer < world_.size; ++peer) {
    const Slice theirs = slice_of(peer, world_.size, piece.width);
    send_to(peer, nullptr, 0);  // a rank without planes sends only a header
    for (int plane = 0; plane < piece.plan.contributions[world_.rank]; ++plane) {
      send_to(peer, piece.own + plane * piece.count + piece.begin + theirs.begin,
              theirs.size() * sizeof(float));
    }
  }
  const float* received = receive_planes(piece, mine);
  SHOAL_RETURN_IF_ERROR(run_exchange());
  sum_planes(piece, mine, received);

  start_exchange(Kind::kSliceSum);
  for (int peer = 0; peer < world_.size; ++peer) {
    const Slice theirs = slice_of(peer, world_.size, piece.width);
    send_to(peer, piece.out + piece.begin + mine.begin, mine.size() * sizeof(float));
    receive_from(peer, piece.out + piece.begin + theirs.begin, theirs.size() * sizeof(float));
  }
  return run_exchange();
}

/// Arranges that every peer's planes of the slice arrive in scratch_, one after the other in rank
/// order. Returns their address.
float* TcpCommunicator::receive_planes(const ReducePiece& piece, Slice slice) {
  const int theirs = piece.plan.total_contributions() - piece.plan.contributions[world_.rank];
  const size_t floats = static_cast<size_t>(theirs) * slice.size();
  if (scratch_.size() < floats) scratch_.resize(floats);
  float* to = scratch_.data();
  for (int peer = 0; peer < world_.size; ++peer) {
    if (peer == world_.rank) continue;
    const size_t planes = static_cast<size_t>(piece.plan.contributions[peer]) * slice.size();
    receive_from(peer, to, planes * sizeof(float));
    to += planes;
  }
  return scratch_.data();
}

void TcpCommunicator::sum_planes(const ReducePiece& piece, Slice slice, const float* received) {
  planes_.clear();
  for (int rank = 0; rank < world_.size; ++rank) {
    for (int plane = 0; plane < piece.plan.contributions[rank]; ++plane) {
      if (rank == world_.rank) {
        planes_.push_back(piece.own + plane * piece.count + piece.begin + slice.begin);
      } else {
        planes_.push_back(received);
        received += slice.size();
      }
    }
  }
  tree_sum(piece.plan.finish, planes_, piece.out + piece.begin + slice.begin, slice.size());
}

Status TcpCommunicator::gather(int root, std::span<const std::byte> mine,
                               std::span<const size_t> sizes, std::byte* out) {
  SHOAL_RETURN_IF_ERROR(check_gather(root, mine.size(), sizes, world_));
  SHOAL_RETURN_IF_ERROR(
      begin(make_tag(Op::kGather, std::accumulate(sizes.begin(), sizes.end(), size_t{0}))));
  start_exchange(Kind::kGather);
  if (world_.rank != root) {
    send_to(root, mine.data(), mine.size());
    return run_exchange();
  }
  size_t at = 0;
  for (int peer = 0; peer < world_.size; ++peer) {
    if (peer == root) {
      if (mine.data() != out + at) std::copy(mine.begin(), mine.end(), out + at);
    } else {
      receive_from(peer, out + at, sizes[peer]);
    }
    at += sizes[peer];
  }
  return run_exchange();
}

Status TcpCommunicator::barrier() {
  SHOAL_RETURN_IF_ERROR(begin(make_tag(Op::kBarrier, 0)));
  start_exchange(Kind::kBarrier);
  for (int peer = 0; peer < world_.size; ++peer) {
    send_to(peer, nullptr, 0);
    receive_from(peer, nullptr, 0);
  }
  return run_exchange();
}

void TcpCommunicator::start_exchange(Kind kind) {
  ++message_;
  wait_time_.begin();
  wait_time_.only_previous_is_missing(world_.size == 2);
  for (Lane& lane : lanes_) {
    lane.sent = lane.expected = {message_, static_cast<uint32_t>(kind), 0, 0};
    lane.received = {};
    lane.received_bytes = 0;
    lane.out.clear();
    lane.in.clear();
  }
}

/// Adds data to the message for the peer. Several calls make one message. Does nothing if the peer
/// is this rank.
void TcpCommunicator::send_to(int peer, const void* data, size_t bytes) {
  if (peer == world_.rank) return;
  Lane& lane = lanes_[peer];
  if (lane.out.empty()) lane.out.add(&lane.sent, sizeof(Header));
  lane.out.add(data, bytes);
  lane.sent.bytes += bytes;
}

void TcpCommunicator::receive_from(int peer, void* data, size_t bytes) {
  if (peer == world_.rank) return;
  Lane& lane = lanes_[peer];
  if (lane.in.empty()) lane.in.add(&lane.received, sizeof(Header));
  lane.in.add(data, bytes);
  lane.expected.bytes += bytes;
}

/// Works until all messages have been sent and received.
Status TcpCommunicator::run_exchange() {
  Clock::time_point poll_until;
  for (bool first = true;; first = false) {
    bool pending = false;
    bool moved = first;
    int headers = 0;  // that are missing
    for (int peer = 0; peer < world_.size; ++peer) {
      Lane& lane = lanes_[peer];
      if (lane.out.empty() && lane.in.empty()) continue;
      SHOAL_RETURN_IF_ERROR(progress(peer, moved));
      pending = pending || !lane.out.empty() || !lane.in.empty();
      headers += lane.misses_header();
    }
    if (!pending) return {};
    wait_time_.only_previous_is_missing(headers == 1 && lanes_[world_.previous()].misses_header());
    moved ? wait_time_.begin() : wait_time_.look();
    const auto now = Clock::now();
    if (moved) poll_until = now + std::chrono::nanoseconds(spin_ns_);
    if (now < poll_until) {
      cpu_relax();
      continue;
    }
    SHOAL_RETURN_IF_ERROR(sleep());
  }
}

/// Sends and receives as much as it can without waiting.
Status TcpCommunicator::progress(int peer, bool& moved) {
  Lane& lane = lanes_[peer];
  if (!lane.out.empty()) {
    // Not in start_exchange, because this rank may be held up between two sends.
    if (lane.sent.ready_at == 0) lane.sent.ready_at = RunningClock::wall().count();
    const msghdr message = lane.out.message();
    const ssize_t sent = ::sendmsg(lane.fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return broken(peer, errno);
    if (sent > 0) {
      lane.out.advance(static_cast<size_t>(sent));
      moved = true;
    }
  }
  if (!lane.in.empty()) {
    msghdr message = lane.in.message();
    const ssize_t got = ::recvmsg(lane.fd.get(), &message, MSG_DONTWAIT);
    if (got == 0) return broken(peer, 0);
    if (got < 0 && errno != EAGAIN && errno != EINTR) return broken(peer, errno);
    if (got > 0) {
      const bool missed_header = lane.misses_header();
      lane.in.advance(static_cast<size_t>(got));
      lane.received_bytes += static_cast<size_t>(got);
      moved = true;
      if (missed_header && !lane.misses_header()) return check_header(peer);
    }
  }
  return {};
}

/// Otherwise ranks in different collectives would exchange nonsense or wait for each other.
Status TcpCommunicator::check_header(int peer) {
  const Header& theirs = lanes_[peer].received;
  const Header& ours = lanes_[peer].expected;
  if (theirs.message == ours.message && theirs.kind == ours.kind && theirs.bytes == ours.bytes) {
    wait_time_.come(RunningClock::duration(theirs.ready_at));
    return {};
  }
  return fail(Status::error(
      Code::kInternal,
      cat("tcp collective ", collectives_, ": this rank is in ", kind_name(ours.kind), " (message ",
          ours.message, " of ", ours.bytes, " bytes), rank ", peer, " in ", kind_name(theirs.kind),
          " (message ", theirs.message, " of ", theirs.bytes, " bytes)")));
}

/// Sleeps until data can move, for kSliceMs at most. DEADLINE_EXCEEDED if its deadline has passed.
Status TcpCommunicator::sleep() {
  if (!until_) until_ = Deadline::after_ms(timeout_ms_);
  std::vector<pollfd> entries;
  for (const int peer : missing()) {
    const Lane& lane = lanes_[peer];
    const int events = (lane.in.empty() ? 0 : POLLIN) | (lane.out.empty() ? 0 : POLLOUT);
    entries.push_back({lane.fd.get(), static_cast<short>(events), 0});
  }
  const int ready = ::poll(entries.data(), entries.size(), until_->remaining_ms(kSliceMs));
  if (until_->passed()) {
    std::string waited_for;
    for (const int peer : missing())
      waited_for += cat(waited_for.empty() ? "rank " : ", rank ", peer);
    return fail(Status::error(
        Code::kDeadlineExceeded,
        cat(here(), ", message ", message_, ": waited ", timeout_ms_, " ms for ", waited_for)));
  }
  if (ready <= 0 && interrupted_) {
    if (Status stop = interrupted_(); !stop.ok()) return fail(std::move(stop));
  }
  return {};
}

Status TcpCommunicator::broken(int peer, int error) {
  return fail(Status::error(Code::kUnavailable,
                            cat(here(), ": rank ", peer, " has closed its connection"), error));
}

/// The peers with which a message is not complete yet, in one direction or in both.
std::vector<int> TcpCommunicator::missing() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < world_.size; ++peer) {
    if (!lanes_[peer].in.empty() || !lanes_[peer].out.empty()) ranks.push_back(peer);
  }
  return ranks;
}

}  // namespace

Result<std::unique_ptr<Communicator>> open_tcp_communicator(World world, Fd listener,
                                                            std::vector<int> ports,
                                                            int64_t timeout_ms, uint64_t group_key,
                                                            Interrupted interrupted) {
  SHOAL_ASSIGN_OR_RETURN(TcpMesh mesh,
                         connect_tcp_mesh(world, std::move(listener), ports, group_key,
                                          Deadline::after_ms(timeout_ms), interrupted));
  return std::unique_ptr<Communicator>(std::make_unique<TcpCommunicator>(
      world, std::move(mesh), timeout_ms, std::move(interrupted)));
}

}  // namespace shoal
