#include "runtime/transport/needs/nccl_budget.h"

#include <algorithm>

#include "runtime/base/cat.h"
#include "runtime/base/counted.h"
#include "runtime/base/quantity.h"

namespace shoal {
namespace {

/// sizeof(ncclSendMem), and the size of the head of ncclRecvMem (comm.h: MEM_ALIGN).
constexpr int64_t kNcclPage = 4096;
/// transport/p2p.cc: both of them.
constexpr int64_t kCopyBytes = 2 * kNcclPage;
constexpr int kMaxChannels = 64;  ///< MAXCHANNELS, to which ncclTopoPostset cuts

// Versions from which on something is as it is here, as NCCL_VERSION_CODE has them.
constexpr int kFirstMemcpy = 21300;       ///< copies by cudaMemcpy
constexpr int kFirstLazy = 22200;         ///< connections are made at first use
constexpr int kFirstCumemHost = 22300;    ///< buffers in cuMem host memory
constexpr int kFirstNoShmMemcpy = 23007;  ///< NCCL_SHM_USE_CUDA_MEMCPY is gone

int64_t in_pages(int64_t bytes, int64_t page) {
  return (bytes + page - 1) / page * page;
}

/// As ncclTopoPostset (graph/connect.cc) counts: what the search found, cut to the maxima, then
/// raised to the minima.
int channels_of(const NcclSettings& settings) {
  int channels = std::min(settings.found_channels, kMaxChannels);
  if (settings.max_channels > 0) channels = std::min(channels, settings.max_channels);
  if (settings.max_ctas > 0) channels = std::min(channels, settings.max_ctas);
  return std::max({channels, settings.min_channels, settings.min_ctas});
}

/// Directed connections among the ranks of one node that run over one kind of pair: the ranks
/// either reach each other's memory or do not.
struct Edges {
  int64_t pairs = 0;  ///< directed pairs
  int64_t ring = 0;
  int64_t tree = 0;  ///< in addition to the ring's, whose connections the tree shares
};

bool reaches(const NcclSettings& settings, int from, int to) {
  if (settings.p2p_disabled) return false;
  return settings.peers.empty() ? settings.all_peers : settings.peers[from][to];
}

/// True if NCCL connects lazily (since 2.22, and only with cuMem). Then a transport allocates when
/// an algorithm first uses it instead of in init.
bool connects_lazily(const NcclSettings& settings) {
  return settings.cumem && settings.runtime_connect && settings.version.code() >= kFirstLazy;
}

/// The largest number of edges of a ring, and of a tree's chain in both directions, over pairs that
/// reach each other's memory (wanted) or do not (not wanted). Exact if all pairs are alike.
/// Otherwise an upper bound, because the order that NCCL's search chooses is not known.
Edges count_edges(const NcclSettings& settings, bool wanted) {
  const int ranks = settings.ranks;
  if (ranks < 2) return {};
  Edges edges;
  std::vector<bool> out(ranks), in(ranks);
  for (int i = 0; i < ranks; ++i) {
    for (int j = 0; j < ranks; ++j) {
      if (i == j || reaches(settings, i, j) != wanted) continue;
      ++edges.pairs;
      out[i] = true;
      in[j] = true;
    }
  }
  // A ring leaves each rank once and enters it once. If other nodes are part of it, one edge leads
  // out to them.
  edges.ring =
      std::min(std::count(out.begin(), out.end(), true), std::count(in.begin(), in.end(), true));
  if (settings.other_nodes) edges.ring = std::min<int64_t>(edges.ring, ranks - 1);
  // If NCCL does not connect lazily, init connects the tree whether it will be used or not
  // (init.cc: ncclTransportTreeConnect).
  if (!settings.tree && connects_lazily(settings)) return edges;
  // A chain has ranks-1 links, each used in both directions. If it follows the ring's order, the
  // ring already has one of the directions.
  const int64_t chain = settings.tree_follows_ring ? ranks - 1 : 2 * (ranks - 1);
  edges.tree = std::min(chain, edges.pairs - edges.ring);
  return edges;
}

/// Whether memory that NCCL shares among processes is cuMem host memory (since 2.23), which is
/// passed as file descriptors and takes no files.
bool shares_cumem(const NcclSettings& settings) {
  return settings.cumem && settings.cumem_host && settings.version.code() >= kFirstCumemHost;
}

bool buffers_are_files(const NcclSettings& settings) {
  return !shares_cumem(settings) || settings.one_process;
}

/// Whether a proxy thread copies over this kind of pairs.
bool copies_over_p2p(const NcclSettings& settings) {
  return settings.p2p_memcpy && settings.version.code() >= kFirstMemcpy;
}
bool copies_over_shm(const NcclSettings& settings) {
  const int code = settings.version.code();
  return settings.shm_memcpy && code >= kFirstMemcpy && code < kFirstNoShmMemcpy;
}

/// The number of ranks that start the proxy's progress thread, whose pool is a file.
int64_t proxies(const NcclSettings& settings, const Edges& peers, const Edges& not_peers) {
  const bool network = settings.other_nodes || (settings.shm_disabled && not_peers.pairs > 0);
  const bool copies = (copies_over_p2p(settings) && peers.pairs > 0) ||
                      (copies_over_shm(settings) && not_peers.pairs > 0);
  return network || copies || !connects_lazily(settings) ? settings.ranks : 0;
}

Status check(const NcclSettings& settings) {
  const auto bad = [](const std::string& what) {
    return Status::error(Code::kInvalidArgument, what);
  };
  const NcclVersion& version = settings.version;
  if (version.major < 2 || (version.major == 2 && version.minor < nccl_releases().front().minor))
    return bad(cat("NCCL ", version.major, ".", version.minor, ": sizes are known from 2.12 on"));
  if (const int most = nccl_release_of(version).local_ranks;
      settings.ranks < 1 || settings.ranks > most) {
    return bad(cat("ranks ", settings.ranks, ": 1 to ", most, " on a node with NCCL ",
                   version.major, ".", version.minor));
  }
  if (settings.communicators < 0)
    return bad(cat("communicators ", settings.communicators, ": 0 or more"));
  if (settings.page_bytes < 1) return bad(cat("page_bytes ", settings.page_bytes, ": 1 or more"));
  if (settings.found_channels < 1)
    return bad(cat("found_channels ", settings.found_channels, ": 1 or more"));
  for (const int channels :
       {settings.max_ctas, settings.min_ctas, settings.max_channels, settings.min_channels})
    if (channels < 0 || channels > kMaxChannels)
      return bad(cat("channels ", channels, ": 0 (not set) to 64"));
  for (const int64_t bytes : {settings.buffers.ll, settings.buffers.ll128, settings.buffers.simple})
    if (bytes < 0 || bytes > int64_t{1} << 40)
      return bad(cat("buffer of ", bytes, " bytes: 0 to 1 TiB"));
  if (settings.peers.empty()) return {};
  if (static_cast<int>(settings.peers.size()) != settings.ranks)
    return bad(cat("peers has ", settings.peers.size(), " rows for ", settings.ranks, " ranks"));
  for (const auto& row : settings.peers)
    if (row.size() != settings.peers.size())
      return bad(cat("peers has a row of ", row.size(), " columns"));
  return {};
}

/// Collects the consumers of one communicator, whose files `what` counts. Bytes and inodes are
/// those of all communicators.
class Bill {
 public:
  explicit Bill(const NcclSettings& settings)
      : settings_(settings), count_bytes_(nccl_count_bytes(nccl_release_of(settings.version))) {}

  void files(std::vector<Consumer>& list, const std::string& what, int64_t count,
             int64_t segment) const {
    const int64_t all = count * settings_.communicators;
    if (all == 0) return;
    list.push_back(
        {cat(what, ": ", counted(count, "file"), " of ", bytes_text(segment + count_bytes_)),
         all * in_pages(segment + count_bytes_, settings_.page_bytes), all});
  }

  /// Adds both halves of edges x channels connections.
  void connections(NcclNeed& result, const std::string& what, int64_t edges,
                   int64_t channels) const {
    const std::string text = cat("SHM transport, ", what, " (", counted(edges, "directed pair"),
                                 " x ", counted(channels, "channel"), ")");
    const int64_t count = edges * channels;
    if (buffers_are_files(settings_)) {
      files(result.need.dev_shm, cat(text, ", receiver's half"), count, result.segments.data);
      files(result.need.dev_shm, cat(text, ", sender's half"), count, result.segments.control);
    } else if (count > 0) {
      const int64_t each = in_pages(result.segments.data, settings_.page_bytes) +
                           in_pages(result.segments.control, settings_.page_bytes);
      result.need.memory.push_back(
          {cat(text, ", in cuMem host memory"), count * settings_.communicators * each, 0});
    }
  }

  /// Adds a segment for each connection over which a proxy thread copies to a peer's memory.
  void copies(NcclNeed& result, int64_t count) const {
    const std::string what = "P2P by cudaMemcpy";
    if (!shares_cumem(settings_)) return files(result.need.dev_shm, what, count, kCopyBytes);
    if (count == 0) return;
    result.need.memory.push_back(
        {cat(what, ", in cuMem host memory"),
         count * settings_.communicators * in_pages(kCopyBytes, settings_.page_bytes), 0});
  }

 private:
  const NcclSettings& settings_;
  const int64_t count_bytes_;  // of each file
};

/// The same settings, with the fewest connections that NCCL may make under them.
NcclSettings fewest(NcclSettings settings) {
  settings.found_channels = 1;
  settings.tree_follows_ring = true;
  return settings;
}

std::vector<std::string> assumptions_of(const NcclSettings& settings, const Edges& shm,
                                        const NcclNeed& result) {
  std::vector<std::string> list;
  const NcclVersion& version = settings.version;
  if (!is_known_nccl(version)) {
    const NcclRelease& last = nccl_release_of(version);
    list.push_back(cat("NCCL ", version.major, ".", version.minor, ".", version.patch,
                       ", which is newer than the last one known, 2.", last.minor, ".",
                       last.last_patch, ", takes no less"));
  }
  if (version.code() < 21900)
    list.push_back(
        "before 2.19 files are sparse: pages are taken as they are written, and a full /dev/shm is SIGBUS");
  if (shm.ring > 0 && !settings.shm_disabled) {
    if (result.channels > channels_of(fewest(settings)))
      list.push_back(cat("NCCL's search finds ", counted(settings.found_channels, "channel"),
                         " and not fewer"));
    if (shm.pairs < int64_t{settings.ranks} * (settings.ranks - 1))
      list.push_back(
          "the order of ranks in the ring is not known: as many edges as possible are taken to use SHM");
    if (settings.tree && settings.ranks > 2 && !settings.tree_follows_ring)
      list.push_back("ring and tree are taken to use different orders of ranks");
    if (!buffers_are_files(settings)) list.push_back("cuMem host memory works on every rank");
  }
  return list;
}

/// The edges that there are whatever order of ranks NCCL chooses.
Edges certain(const NcclSettings& settings, Edges edges) {
  if (edges.pairs < int64_t{settings.ranks} * (settings.ranks - 1)) edges.ring = edges.tree = 0;
  return edges;
}

/// transport/shm.cc: shmRecvProxySetup and shmSendProxySetup. NCCL_SHM_LOCALITY=1 swaps the two
/// sizes, which leaves their sum as it is.
NcclSegments segments_of(const NcclSettings& settings) {
  const NcclBuffers& buffers = settings.buffers;
  const NcclRelease& release = nccl_release_of(settings.version);
  return {kNcclPage + buffers.ll + buffers.ll128 + buffers.simple, kNcclPage,
          nccl_pool_bytes(release), nccl_nvls_bytes(release, settings.ranks)};
}

/// Whether the region for NVLS has this size for some number of ranks of a node.
bool is_nvls_size(const NcclRelease& release, int64_t size) {
  const int64_t each = nccl_nvls_bytes(release, 1) - nccl_nvls_bytes(release, 0);
  const int64_t of_ranks = size - nccl_nvls_bytes(release, 0);
  return each > 0 && of_ranks > 0 && of_ranks % each == 0 && of_ranks / each <= release.local_ranks;
}

}  // namespace

int64_t nccl_connection_bytes(const NcclBuffers& buffers, int64_t page_bytes) {
  const int64_t data = kNcclPage + buffers.ll + buffers.ll128 + buffers.simple;
  return in_pages(data + kNcclRefcountBytes, page_bytes) +
         in_pages(kNcclPage + kNcclRefcountBytes, page_bytes);
}

Result<NcclNeed> nccl_need(const NcclSettings& given) {
  SHOAL_RETURN_IF_ERROR(check(given));
  // A newer version may take more for the same connections, so that it gets the least on every
  // account.
  const bool known = is_known_nccl(given.version);
  const NcclSettings settings = known ? given : fewest(given);
  NcclNeed result;
  result.need.rung = "nccl";
  result.channels = channels_of(settings);
  result.segments = segments_of(settings);

  const Bill bill(settings);
  Edges peers = count_edges(settings, true), shm = count_edges(settings, false);
  if (!known) {
    peers = certain(settings, peers);
    shm = certain(settings, shm);
  }
  if (!settings.shm_disabled) {
    bill.connections(result, "ring", shm.ring, result.channels);
    bill.connections(result, "tree", shm.tree, result.channels);
    // graph/paths.cc: two channels for each peer without NVLink, but not more than there are.
    if (settings.send_recv)
      bill.connections(result, "send and receive", shm.pairs, std::min(2, result.channels));
  }
  if (copies_over_p2p(settings)) bill.copies(result, (peers.ring + peers.tree) * result.channels);
  const std::string why =
      settings.net.empty() ? "proxy-ops pool" : cat("proxy-ops pool for ", settings.net);
  bill.files(result.need.dev_shm, why, proxies(settings, peers, shm), result.segments.pool);
  // Since 2.19 local rank 0 makes it in every init. It has become smaller more than once, so that
  // of an unknown version the least is nothing.
  if (known && settings.nvls && settings.ranks > 1 && result.segments.nvls > 0)
    bill.files(result.need.dev_shm, "NVLS registration region", 1, result.segments.nvls);
  result.assumptions = assumptions_of(settings, shm, result);
  if (!result.assumptions.empty()) result.need.bound = known ? Bound::kAtMost : Bound::kAtLeast;
  return result;
}

bool is_nccl_file_size(int64_t bytes, const NcclBuffers& buffers) {
  const int64_t size = bytes - kNcclRefcountBytes;
  const int64_t data = kNcclPage + buffers.ll + buffers.ll128 + buffers.simple;
  if (size == kNcclPage || size == data || !explain_nccl_size(bytes).empty()) return true;
  const std::span<const NcclRelease> all = nccl_releases();
  return std::any_of(all.begin(), all.end(),
                     [size](const NcclRelease& release) { return is_nvls_size(release, size); });
}

std::string explain_nccl_size(int64_t bytes) {
  const NcclBuffers defaults;
  const int64_t data = kNcclPage + defaults.ll + defaults.ll128 + defaults.simple;
  for (const int64_t extra : {int64_t{0}, kNcclRefcountBytes}) {
    if (bytes == data + extra)
      return "SHM transport, receiver's half of one connection, default buffers";
    int first = 0, last = 0;
    for (const NcclRelease& release : nccl_releases()) {
      if (bytes != nccl_pool_bytes(release) + extra) continue;
      if (first == 0) first = release.minor;
      last = release.minor;
    }
    if (first > 0)
      return cat("proxy-ops pool of NCCL 2.", first, first == last ? "" : cat(" to 2.", last));
  }
  return "";
}

}  // namespace shoal
