// Part of a FAKE of libnccl (fake_nccl.cc): a communicator's init and collectives.
#include "tests/fakes/fake_nccl_comm.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include "tests/fakes/fake_nccl_log.h"
#include "tests/fakes/fake_nccl_settings.h"

namespace fake_nccl {
namespace {

constexpr size_t kTreeBytes = 256 * 1024;    // the largest all-reduce that uses the tree
constexpr size_t kPieceFloats = 256 * 1024;  // an all-reduce works in pieces of this size
constexpr int kNvlsTag = -2;

/// The channels that the search found, reduced to the maxima, then raised to the minima.
int channels_found() {
  const Settings& s = settings();
  int channels = std::min(s.found_channels, 64);
  if (s.max_channels > 0) channels = std::min(channels, s.max_channels);
  if (s.max_ctas > 0) channels = std::min(channels, s.max_ctas);
  return std::max({channels, s.min_channels, s.min_ctas});
}

/// Whether FAKE_NCCL_HANG names this phase: "init", or "init:3" for rank 3 only.
bool hangs(const char* phase, int rank) {
  const std::string& wanted = settings().hang;
  return wanted == phase || wanted == std::string(phase) + ":" + std::to_string(rank);
}

/// Ends this process if it is the rank of FAKE_NCCL_DIE.
void die_if_planned(int rank) {
  const std::string& path = settings().die;
  int doomed = -1;
  if (path.empty() || !(std::ifstream(path) >> doomed) || doomed != rank) return;
  if (::unlink(path.c_str()) == 0) ::kill(::getpid(), SIGKILL);
}

/// Writes a line to the file of FAKE_NCCL_TELL, if there is one.
void tell(const char* line) {
  if (settings().tell.empty()) return;
  const int file = ::open(settings().tell.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const std::string text = std::string(line) + "\n";
  if (file < 0 || ::write(file, text.data(), text.size()) < 0) std::abort();
  ::close(file);
}

}  // namespace

void hang() {
  tell("hangs");
  for (;;) ::pause();
}

Comm::Comm(InitArgs args) : args_(args) {
  std::thread([this] { run(); }).detach();
}

void Comm::run() {
  set_log_device(std::max(args_.device, 0));
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return static_cast<bool>(work_); });
    const std::function<Result()> work = std::move(work_);
    work_ = nullptr;
    lock.unlock();
    const Result result = work();
    lock.lock();
    state_ = result;
    changed_.notify_all();
  }
}

/// waits: for the end of the work, as a blocking communicator does.
Result Comm::start(std::function<Result()> work, bool waits) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (state_ == kInProgress) {
    warn("init.cc:2600",
         "Attempt to use communicator before the previous operation returned ncclSuccess");
    return kInvalidArgument;
  }
  if (state_ != kSuccess) return state_;
  state_ = kInProgress;
  work_ = std::move(work);
  changed_.notify_all();
  if (waits) changed_.wait(lock, [&] { return state_ != kInProgress; });
  return state_;
}

Result Comm::connected(std::function<Result()> connect) {
  if (args_.blocking) return start(std::move(connect), true);
  warn("enqueue.cc:2000", "this fake has no collectives that do not block");
  return kInvalidUsage;
}

/// To be called when a collective begins. If it is the one that FAKE_NCCL_HANG=collective:RANK:N
/// names, this function never returns: the caller spins, as the real NCCL does while it asks its
/// proxy.
void Comm::spin_if_asked() {
  ++begun_;
  const std::string& wanted = settings().hang;
  const std::string mine = "collective:" + std::to_string(args_.rank) + ":";
  if (!wanted.starts_with(mine)) return;
  const std::string when = wanted.substr(mine.size());
  const bool now = when[0] == '/' ? ::unlink(when.c_str()) == 0 : when == std::to_string(begun_);
  if (!now) return;
  tell("hangs");
  for (;;) ::sched_yield();
}

/// What the rest of a collective has come to.
void Comm::finish(Result result) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == kSuccess) state_ = result;
}

Result Comm::state() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

Result Comm::init(Comm** place) {
  *place = this;
  return start([this, place] { return store_handle(place, do_init()); }, args_.blocking);
}

/// Aborts if the handle's place was reused in the meantime. The real NCCL would overwrite whatever
/// is there.
Result Comm::store_handle(Comm** place, Result result) {
  if (__atomic_load_n(place, __ATOMIC_ACQUIRE) != this) {
    std::fprintf(stderr, "fake NCCL: the init ends, and the place of its handle is gone\n");
    std::abort();
  }
  __atomic_store_n(place, this, __ATOMIC_RELEASE);
  tell("the init is over");
  return result;
}

RankInfo Comm::introduction(uint64_t shm_device) const {
  const Settings& s = settings();
  const bool cumem_host = s.cumem && s.cumem_host && s.cumem_host_works;
  if (s.cumem && s.cumem_host && !s.cumem_host_works) {
    info(
        Subsystem::kInit,
        "cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based implementation. This "
        "could be due to the container runtime disabling NUMA support. To disable this warning, set "
        "NCCL_CUMEM_HOST_ENABLE=0");
  }
  RankInfo mine;
  mine.rank = args_.rank;
  mine.pid = ::getpid();
  mine.device = args_.device;
  mine.version = s.version;
  mine.channels = channels_found();
  mine.cumem_host = cumem_host ? 1 : 0;
  mine.no_p2p = !s.peers || s.p2p_forbidden ? 1 : 0;
  mine.no_shm = s.shm_disable ? 1 : 0;
  mine.host_hash = s.host_hash;
  mine.shm_device = shm_device;
  return mine;
}

Result Comm::do_init() {
  say_version();
  const int rank = args_.rank;
  info(Subsystem::kInit, "ncclCommInitRankConfig comm %p rank %d nranks %d cudaDev %d - Init START",
       static_cast<void*>(this), rank, args_.ranks, std::max(args_.device, 0));
  if (hangs("init", rank)) {
    // The real one says this of a stranger's connection, and goes on to wait for its peers.
    warn("misc/socket.cc:377", "socketFinalizeAccept: wrong magic 0 != %lx",
         static_cast<unsigned long>(args_.key));
    hang();
  }
  if (!settings().hold_init.empty()) tell("hangs");
  while (!settings().hold_init.empty() && ::access(settings().hold_init.c_str(), F_OK) != 0)
    ::usleep(500);
  struct stat dev_shm {};
  if (::stat("/dev/shm", &dev_shm) != 0) {
    warn("init.cc:631", "Call to stat failed: %s", std::strerror(errno));
    return kSystemError;
  }
  const Settings& s = settings();
  if (!sockets_.meet(args_.root_port, args_.key, introduction(dev_shm.st_dev), args_.ranks))
    return not_connected();
  if (const Result result = check_peers(); result != kSuccess) return result;
  const bool lazy = s.cumem && s.runtime_connect;
  // Without lazy connections, init connects everything, whether it will be used or not, including
  // the network between ranks of a single node.
  for (const auto step :
       {&Comm::connect_ring, &Comm::connect_tree, &Comm::share_nvls_region, &Comm::need_pool}) {
    if (lazy && step != &Comm::share_nvls_region) continue;
    if (const Result result = (this->*step)(); result != kSuccess) return result;
  }
  log_channels();
  return kSuccess;
}

void Comm::log_channels() {
  info(
      Subsystem::kInit,
      "%d coll channels, %d collnet channels, %d nvls channels, %d p2p channels, %d p2p channels per peer",
      channels(), 0, 0, channels(), std::min(channels(), 2));
  info(Subsystem::kInit,
       "ncclCommInitRankConfig comm %p rank %d nranks %d cudaDev %d - Init COMPLETE",
       static_cast<void*>(this), args_.rank, args_.ranks, std::max(args_.device, 0));
}

Result Comm::check_peers() {
  const std::vector<RankInfo>& all = sockets_.all();
  const RankInfo& mine = all[static_cast<size_t>(args_.rank)];
  for (const RankInfo& other : all) {
    if (other.version != mine.version) {
      warn("init.cc:880",
           "Mismatched NCCL version detected : rank %d version %d rank %d version %d", mine.rank,
           mine.version, other.rank, other.version);
      return kInvalidUsage;
    }
    if (other.rank == mine.rank || mine.device < 0) continue;
    if (other.host_hash != mine.host_hash || other.device != mine.device) continue;
    warn("init.cc:904", "Duplicate GPU detected : rank %d and rank %d both on CUDA device %lx",
         mine.rank, other.rank, static_cast<unsigned long>(0x10000 + 0x1000 * mine.device));
    return kInvalidUsage;
  }
  return kSuccess;
}

/// The first rank of the node makes the region and all others attach to it. If making it fails, the
/// others wait for its name for ever.
Result Comm::share_nvls_region() {
  const Settings& s = settings();
  if (!s.nvls_hardware || s.nvls == 0 || local_ranks() < 2) return kSuccess;
  const size_t bytes =
      static_cast<size_t>(settings().nvls_bytes_per_rank) * static_cast<size_t>(local_ranks());
  std::vector<int> local;
  for (int rank = 0; rank < args_.ranks; ++rank)
    if (local_to(rank)) local.push_back(rank);
  Segment region;
  if (local.front() == args_.rank) {
    if (!create_segment(bytes, local_ranks() - 1, &region)) return kSystemError;
    for (const int peer : local)
      if (peer != args_.rank && !sockets_.send(peer, kNvlsTag, region.path)) return not_connected();
  } else if (!attach_segment(sockets_.receive(local.front(), kNvlsTag), bytes, &region)) {
    return kSystemError;
  }
  segments_.push_back(region);
  return kSuccess;
}

Result Comm::all_gather(const char* mine, char* all, size_t bytes, const Enqueue& enqueue) {
  spin_if_asked();
  const Result result = connected([=, this] { return connect_gather(bytes); });
  if (result == kSuccess && bytes > 0)
    enqueue([=, this] { finish(gather_ring(mine, all, bytes)); });
  return result;
}

Result Comm::all_reduce(const float* own, float* out, size_t count, const Enqueue& enqueue) {
  spin_if_asked();
  const Result result = connected([=, this] { return connect_reduce(count); });
  if (result == kSuccess && count > 0) enqueue([=, this] { finish(reduce_ring(own, out, count)); });
  return result;
}

Result Comm::connect_gather(size_t bytes) {
  die_if_planned(args_.rank);
  if (hangs("collective", args_.rank)) hang();
  if (bytes == 0) return kSuccess;
  if (const int64_t most = settings().most_gathered;
      most > 0 && bytes > static_cast<size_t>(most)) {
    warn("enqueue.cc:2000", "an all-gather of %zu bytes: this fake was told to take %lld at most",
         bytes, static_cast<long long>(most));
    return kInvalidArgument;
  }
  if (!algorithm_allowed("Ring") && args_.ranks > 1) {
    warn("enqueue.cc:2000", "Error : no algorithm/protocol available for function AllGather");
    return kInvalidUsage;
  }
  return connect_ring();
}

/// Rank r's block travels around the ring: in each step a rank passes on what it received in the
/// step before.
Result Comm::gather_ring(const char* mine, char* all, size_t bytes) {
  const auto ranks = static_cast<size_t>(args_.ranks), rank = static_cast<size_t>(args_.rank);
  if (all + rank * bytes != mine) std::memmove(all + rank * bytes, mine, bytes);
  if (ranks == 1) return kSuccess;
  if (!sockets_.open_ring()) return not_connected();
  for (size_t step = 0; step + 1 < ranks; ++step) {
    const size_t out = (rank + ranks - step) % ranks, in = (out + ranks - 1) % ranks;
    if (!sockets_.exchange(all + out * bytes, all + in * bytes, bytes)) return peer_gone();
  }
  return kSuccess;
}

bool Comm::uses_tree(size_t count) const {
  return (count * sizeof(float) <= kTreeBytes || !algorithm_allowed("Ring")) &&
         algorithm_allowed("Tree");
}

Result Comm::connect_reduce(size_t count) {
  die_if_planned(args_.rank);
  if (hangs("collective", args_.rank)) hang();
  if (count == 0) return kSuccess;
  return uses_tree(count) ? connect_tree() : connect_ring();
}

/// Every rank sums slice s starting at rank s+1 and continuing around the ring. All ranks get the
/// same bits, but not those of a tree.
Result Comm::reduce_ring(const float* own, float* out, size_t count) {
  const auto ranks = static_cast<size_t>(args_.ranks);
  std::vector<float> all(ranks * std::min(count, kPieceFloats));
  for (size_t begin = 0; begin < count; begin += kPieceFloats) {
    const size_t floats = std::min(count - begin, kPieceFloats);
    const Result result = gather_ring(reinterpret_cast<const char*>(own + begin),
                                      reinterpret_cast<char*>(all.data()), floats * sizeof(float));
    if (result != kSuccess) return result;
    for (size_t i = 0; i < floats; ++i) {
      const size_t slice = i * ranks / floats;
      float sum = all[(slice + 1) % ranks * floats + i];
      for (size_t hop = 2; hop <= ranks; ++hop) sum += all[(slice + hop) % ranks * floats + i];
      out[begin + i] = sum;
    }
  }
  return kSuccess;
}

/// The error after a minute of attempts to connect.
Result Comm::not_connected() {
  warn(
      "misc/socket.cc:584",
      "socketPollConnect: connect to 127.0.0.1<0> returned Connection refused, exceeded error retry count after 34 "
      "attempts");
  return kRemoteError;
}

/// Only sockets notice that a peer is gone. Over memory, a kernel waits for a flag that never
/// comes.
Result Comm::peer_gone() {
  for (int rank = 0, ranks = args_.ranks; rank < ranks; ++rank) {
    if (local_to(rank)) continue;
    warn("misc/socket.cc:73", "socketProgress: Connection closed by remote peer localhost<0>");
    return kRemoteError;
  }
  hang();
}

}  // namespace fake_nccl
