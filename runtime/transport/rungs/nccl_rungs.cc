#include "runtime/transport/rungs/nccl_rungs.h"

#include <algorithm>

#include "runtime/comm/device/nccl_collective.h"
#include "runtime/comm/device/staged_communicator.h"
#include "runtime/transport/needs/reservation.h"
#include "runtime/transport/rungs/gpu_checks.h"
#include "runtime/transport/rungs/rungs.h"

namespace shoal {
namespace {

constexpr char kP2p[] = "nccl-p2p";
constexpr char kShm[] = "nccl-shm";
constexpr char kLean[] = "nccl-shm-lean";
constexpr NcclBuffers kLeanBuffers{.ll128 = 65536, .simple = 1048576};
constexpr char kSocket[] = "nccl-socket";

/// Over shared memory NCCL finds 2 channels on PCIe 3 and 4; more would only take more of /dev/shm.
constexpr int kMostShmChannels = 2;

bool shares_gpus(const RungContext& context) {
  return context.facts.gpu.ranks_per_gpu > 1;
}

/// What every rung of NCCL's wants. cuMem host memory is off for all of them, because each rank
/// would find out for itself whether it works, and ranks that disagree cannot connect.
std::vector<RungSetting> common(const RungContext& context) {
  std::vector<RungSetting> settings = {
      {"NCCL_CUMEM_ENABLE", "1"},
      {"NCCL_CUMEM_HOST_ENABLE", "0"},
      {"NCCL_RUNTIME_CONNECT", "1"},
      {"NCCL_NVLS_ENABLE", "0"},
      {"NCCL_DEBUG", "INFO", false, {"NCCL_DEBUG_FILE"}},
      {"NCCL_DEBUG_FILE", kNcclLogPath, false, {"NCCL_DEBUG"}},
      {"NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV,ALLOC", false, {"NCCL_DEBUG", "NCCL_DEBUG_FILE"}},
  };
  // All ranks are on this host, so that its networks need not work.
  if (context.facts.loopback_ipv4) settings.push_back({"NCCL_SOCKET_IFNAME", "=lo"});
  // Sums in our own order need only all-gathers, and these need only the ring's connections.
  if (context.reproducible) settings.push_back({"NCCL_ALGO", "Ring"});
  return settings;
}

std::vector<RungSetting> with(std::vector<RungSetting> settings, std::vector<RungSetting> more) {
  for (RungSetting& setting : more) {
    const auto same = [&](const RungSetting& one) { return one.name == setting.name; };
    std::erase_if(settings, same);
    settings.push_back(std::move(setting));
  }
  return settings;
}

/// Asks for exactly this many channels. If the user sets any variable about channels, all of them
/// are left alone.
std::vector<RungSetting> channel_settings(int channels) {
  const std::string count = cat(channels);
  const std::vector<std::string> others = {"NCCL_MAX_CTAS",      "NCCL_MIN_CTAS",
                                           "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS",
                                           "NCCL_MAX_NRINGS",    "NCCL_MIN_NRINGS"};
  return {{"NCCL_MIN_CTAS", count, false, others}, {"NCCL_MAX_CTAS", count, false, others}};
}

std::vector<RungSetting> p2p_environment(const RungContext& context, int) {
  // NCCL's own level would stop at a host bridge. Every pair has been tried before this rung is
  // taken, so that none needs to be left out.
  return with(common(context), {{"NCCL_P2P_DISABLE", "0", true},
                                {"NCCL_P2P_LEVEL", "SYS"},
                                {"NCCL_SHM_DISABLE", "0"},
                                {"NCCL_NET_DISABLE_INTRA", "1"}});
}

std::vector<RungSetting> over_shm(const RungContext& context, int channels) {
  return with(with(common(context), {{"NCCL_P2P_DISABLE", "1", true},
                                     {"NCCL_SHM_DISABLE", "0", true},
                                     {"NCCL_NET_DISABLE_INTRA", "1"}}),
              channel_settings(channels));
}

/// Buffers are a sixth of the default. The LL128 buffer would be the largest part, and LL128 is off
/// over shared memory in any case.
std::vector<RungSetting> lean_environment(const RungContext& context, int) {
  return with(over_shm(context, 1), {{"NCCL_ALGO", "Ring"},
                                     {"NCCL_BUFFSIZE", cat(kLeanBuffers.simple)},
                                     {"NCCL_LL128_BUFFSIZE", cat(kLeanBuffers.ll128)},
                                     {"NCCL_PROTO", "^LL128"}});
}

/// Ranks on one GPU must look like ranks of several hosts, because NCCL refuses them otherwise.
std::vector<RungSetting> socket_environment(const RungContext& context, int rank) {
  std::vector<RungSetting> settings = with(
      common(context),
      {{"NCCL_P2P_DISABLE", "1", true}, {"NCCL_SHM_DISABLE", "1", true}, {"NCCL_NET", "Socket"}});
  if (shares_gpus(context)) settings.push_back({"NCCL_HOSTID", cat("shoal-rank-", rank), true});
  return settings;
}

/// The need, with the user's own settings where they win. Not ok: together they are out of range.
Result<NcclNeed> need_with(const RungContext& context, const std::vector<RungSetting>& settings,
                           bool peers) {
  std::map<std::string, std::string> environment = context.user.values();
  for (const SettingOutcome& outcome : settle(settings, context.user)) {
    if (outcome.winner == kSettingIsSet) environment[outcome.name] = outcome.value;
  }
  NcclSettings base;
  if (const int version = context.facts.gpu.nccl_version; version > 0)
    base.version = {version / 10000, version / 100 % 100, version % 100};
  base.ranks = context.world_size;
  base.communicators = context.communicators;
  base.all_peers = peers;
  base.cumem_host = false;
  base.page_bytes = context.facts.page_bytes;
  SHOAL_ASSIGN_OR_RETURN(const NcclSettings all, nccl_settings(environment, base));
  return nccl_need(all);
}

/// The need; if the user's settings are refused, the need without them. probe reports what is wrong
/// with them.
NcclNeed settled_need(const RungContext& context, const std::vector<RungSetting>& settings,
                      bool peers, const char* name) {
  Result<NcclNeed> need = need_with(context, settings, peers);
  if (!need.ok()) {
    RungContext alone = context;
    alone.user = {};
    need = need_with(alone, settings, peers);
  }
  NcclNeed result = need.ok() ? std::move(need).value() : NcclNeed();
  result.need.rung = name;
  return result;
}

/// The most channels with which all communicators fit, at least one.
int shm_channels(const RungContext& context) {
  for (int channels = kMostShmChannels; channels > 1; --channels) {
    const NcclNeed need = settled_need(context, over_shm(context, channels), false, kShm);
    if (check_budget(need.need, context.facts, context.budget).ok()) return channels;
  }
  return 1;
}

std::vector<RungSetting> shm_environment(const RungContext& context, int) {
  return over_shm(context, shm_channels(context));
}

struct Kind {
  const char* name;
  std::vector<RungSetting> (*environment)(const RungContext& context, int rank);
  bool peers;
};
constexpr Kind kKinds[] = {{kP2p, p2p_environment, true},
                           {kShm, shm_environment, false},
                           {kLean, lean_environment, false},
                           {kSocket, socket_environment, false}};

template <int K>
ShmNeed need(const RungContext& context) {
  return settled_need(context, kKinds[K].environment(context, 0), kKinds[K].peers, kKinds[K].name)
      .need;
}

Status check_sharing(const RungContext& context, const char* name) {
  if (!shares_gpus(context)) return {};
  return Status::error(Code::kFailedPrecondition,
                       cat(context.facts.gpu.ranks_per_gpu,
                           " ranks share a GPU (--ranks-per-gpu): NCCL takes them for "
                           "ranks of several hosts, and knows only sockets between "
                           "these; ",
                           name, " is not possible"));
}

/// What the user must not have set otherwise. Shoal says in the communicator's configuration that
/// it blocks, over which the variable would win. It is none of the rung's own settings, because
/// other engines are told to use those (doctor --nccl-version).
std::vector<RungSetting> essential_settings(const RungContext& context, const Kind& kind) {
  return with(kind.environment(context, 0), {{"NCCL_COMM_BLOCKING", "1", true}});
}

template <int K>
Status probe(const RungContext& context) {
  const Kind& kind = kKinds[K];
  SHOAL_RETURN_IF_ERROR(check_nccl(context.facts.gpu));
  SHOAL_RETURN_IF_ERROR(context.user.error);
  SHOAL_RETURN_IF_ERROR(
      check_essential(kind.name, essential_settings(context, kind), context.user));
  if (kind.name != kSocket) SHOAL_RETURN_IF_ERROR(check_sharing(context, kind.name));
  SHOAL_RETURN_IF_ERROR(need_with(context, kind.environment(context, 0), kind.peers).status());
  if (!kind.peers) return {};
  if (const NcclUserSetting* level = context.user.find("NCCL_P2P_LEVEL"); level != nullptr) {
    if (level->value == "LOC" || level->value == "0") {
      return Status::error(Code::kFailedPrecondition, cat(level->name, "=", level->value, " of ",
                                                          level->source, " forbids ", kind.name));
    }
  }
  return check_peers(context.facts.gpu);
}

/// NCCL makes its files itself, in the workers. This tries whether they could be made now.
template <int K>
Result<TransportSetup> prepare(const RungContext& context) {
  const int64_t bytes = need<K>(context).dev_shm_bytes();
  if (bytes > 0)
    SHOAL_RETURN_IF_ERROR(reserve_for_library(bytes, context.facts.dev_shm.path).status());
  TransportSetup setup;
  setup.rung = kKinds[K].name;
  return setup;
}

template <int K>
Result<std::unique_ptr<Communicator>> open(OpenArgs args) {
  NcclOptions options;
  options.name = kKinds[K].name;
  options.library = args.nccl_library;
  options.reproducible = args.reproducible;
  options.timeout_ms = args.timeout_ms;
  SHOAL_ASSIGN_OR_RETURN(auto collective, open_nccl_collective(args.device, args.world, options,
                                                               args.exchange, args.waits));
  return make_staged_communicator(std::move(args.device), std::move(collective), args.timeout_ms,
                                  std::move(args.interrupted));
}

}  // namespace

std::optional<NcclNeed> nccl_rung_need(std::string_view rung, const RungContext& context) {
  for (const Kind& kind : kKinds) {
    if (rung == kind.name)
      return settled_need(context, kind.environment(context, 0), kind.peers, kind.name);
  }
  return std::nullopt;
}

bool is_known_nccl_file(int64_t bytes) {
  return is_nccl_file_size(bytes, kLeanBuffers);
}

std::string_view nccl_rung_transport(std::string_view rung) {
  if (rung == kP2p) return "P2P";
  if (rung == kShm || rung == kLean) return "SHM";
  return rung == kSocket ? "NET" : "";
}

const Rung kNcclP2pRung{kP2p, need<0>, probe<0>, prepare<0>, open<0>, true, p2p_environment};
const Rung kNcclShmRung{kShm, need<1>, probe<1>, prepare<1>, open<1>, true, shm_environment};
const Rung kNcclShmLeanRung{kLean, need<2>, probe<2>, prepare<2>, open<2>, true, lean_environment};
const Rung kNcclSocketRung{kSocket, need<3>, probe<3>,          prepare<3>,
                           open<3>, true,    socket_environment};

}  // namespace shoal
