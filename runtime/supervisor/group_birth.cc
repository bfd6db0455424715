#include "runtime/supervisor/group_birth.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/program_path.h"
#include "runtime/supervisor/spawn.h"

namespace shoal {
namespace {

constexpr int64_t kIntroduceMs = 10'000;
/// Descriptors that a stock of channels leaves to the clients of a server, and to what is open for
/// a moment while ranks are started.
constexpr int kLeftToOthers = 32;

uint64_t new_seed() {
  uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed) {
    seed = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
  }
  return seed;
}

void introduce(const WorkerGroupOptions& options, const TransportSetup& setup,
               std::vector<RankProcess>& ranks) {
  const uint64_t seed = new_seed();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    RankStart start = options.start;
    start.rank = static_cast<int32_t>(rank);
    start.world_size = options.world_size;
    start.transport = setup.rung;
    start.shm_bytes = static_cast<int64_t>(setup.shm.size());
    start.tcp_ports = setup.tcp_ports;
    start.group_key = setup.group_key;
    start.self_test_seed = seed;
    start.heartbeat_ms = std::max<int64_t>(static_cast<int64_t>(options.step_timeout_s * 100), 1);
    const size_t own = options.start.cpus.size() / ranks.size();
    const auto begin = options.start.cpus.begin() + static_cast<std::ptrdiff_t>(rank * own);
    start.cpus.assign(begin, begin + static_cast<std::ptrdiff_t>(own));
    start.log = log_options();
    // A send that fails means that the worker has died: the first look at the group finds out how.
    (void)ranks[rank].channel.send(program_build(), Deadline::after_ms(kIntroduceMs));
    (void)ranks[rank].channel.send(encode_front_message(start), Deadline::after_ms(kIntroduceMs));
  }
}

/// Whether this many descriptors can still be opened. A limit of thousands is not looked at.
bool descriptors_left(int wanted) {
  constexpr rlim_t kMany = 4096;
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  if (limit.rlim_cur >= kMany) return true;
  int left = 0;
  for (int fd = 0; fd < static_cast<int>(limit.rlim_cur) && left < wanted; ++fd)
    left += ::fcntl(fd, F_GETFD) < 0 ? 1 : 0;
  return left >= wanted;
}

Result<std::pair<Fd, Fd>> take_channel(ChannelStock* stock) {
  if (stock == nullptr || stock->empty()) return Channel::make_pair();
  std::pair<Fd, Fd> ends = std::move(stock->back());
  stock->pop_back();
  return ends;
}

}  // namespace

void stock_channels(int count, ChannelStock* stock) {
  const auto wanted = static_cast<size_t>(count);
  if (stock->size() >= wanted || !descriptors_left(2 * count + kLeftToOthers)) return;
  while (stock->size() < wanted) {
    Result<std::pair<Fd, Fd>> ends = Channel::make_pair();
    if (!ends.ok()) return;
    stock->push_back(std::move(ends).value());
  }
}

Status spawn_ranks(const WorkerGroupOptions& options, const TransportSetup& setup,
                   ChannelStock* stock, std::vector<RankProcess>* ranks) {
  for (int rank = 0; rank < options.world_size; ++rank) {
    SHOAL_ASSIGN_OR_RETURN(auto ends, take_channel(stock));
    const auto index = static_cast<size_t>(rank);
    WorkerDescriptors descriptors{ends.second.get(), setup.shm.fd(), -1, -1, options.work_fds};
    if (!setup.listeners.empty()) descriptors.listener = setup.listeners[index].get();
    if (!setup.logs.empty()) descriptors.log = setup.logs[index].get();
    const std::vector<std::string> none;
    SHOAL_ASSIGN_OR_RETURN(
        WorkerProcess process,
        spawn_worker(rank, descriptors,
                     setup.environment.empty() ? none : setup.environment[index]));
    ranks->emplace_back(std::move(process), Channel(std::move(ends.first)));
  }
  introduce(options, setup, *ranks);
  return {};
}

}  // namespace shoal
