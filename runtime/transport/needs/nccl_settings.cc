#include "runtime/transport/needs/nccl_settings.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>

#include "runtime/base/cat.h"
#include "runtime/base/split.h"

namespace shoal {
namespace {

Status bad_value(const std::string& name, const std::string& value, const std::string& expected) {
  return Status::error(Code::kInvalidArgument, cat(name, "=\"", value, "\": expected ", expected));
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// NCCL_ALGO (tuning.cc: parseList): "Ring", "^Tree", and since 2.24 "ring;allreduce:tree,ring".
/// Returns whether any collective may use the tree. The ring is never off for all of them, because
/// broadcast and reduce have nothing else.
Result<bool> algorithms_with_tree(const std::string& value) {
  static const std::vector<std::string> known_algorithms = {
      "tree", "ring", "collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"};
  bool tree = false;
  const std::string lowered = lower(value);
  for (const std::string_view part : split(lowered, ';')) {
    const size_t colon = part.find(':');
    std::string_view list = colon == std::string_view::npos ? part : part.substr(colon + 1);
    const bool except = !list.empty() && list[0] == '^';
    if (except) list.remove_prefix(1);
    bool named = false;
    for (const std::string_view name : split(list, ',')) {
      if (std::find(known_algorithms.begin(), known_algorithms.end(), name) ==
          known_algorithms.end())
        return bad_value("NCCL_ALGO", value, "names like Ring,Tree or ^Tree");
      named = named || name == "tree";
    }
    tree = tree || named != except;
  }
  return tree;
}

/// Reads a number as NCCL does (param.cc: strtoll with base 0, so 0x100000 is allowed too). All of
/// the text must belong to it.
Result<int64_t> number(const std::string& name, const std::string& value, int64_t least,
                       int64_t most) {
  errno = 0;
  char* end = nullptr;
  const long long parsed = std::strtoll(value.c_str(), &end, 0);
  if (value.empty() || *end != '\0' || errno != 0 || parsed < least || parsed > most)
    return bad_value(name, value, cat("a number from ", least, " to ", most));
  return parsed;
}

struct Numeric {
  const char* name;
  int64_t least;
  int64_t most;
  void (*set)(NcclSettings&, int64_t);
};

/// Negative values of the cuMem variables and 2 of NVLS mean "if it works". Then keep the default
/// of the base, which was chosen from the host facts.
constexpr Numeric kNumerics[] = {
    {"NCCL_BUFFSIZE", 1, int64_t{1} << 31,
     [](NcclSettings& s, int64_t v) { s.buffers.simple = v; }},
    {"NCCL_LL_BUFFSIZE", 1, int64_t{1} << 31, [](NcclSettings& s, int64_t v) { s.buffers.ll = v; }},
    {"NCCL_LL128_BUFFSIZE", 1, int64_t{1} << 31,
     [](NcclSettings& s, int64_t v) { s.buffers.ll128 = v; }},
    // The older names come first, so that the newer ones win as they do in NCCL.
    {"NCCL_MAX_NRINGS", 1, 64,
     [](NcclSettings& s, int64_t v) { s.max_channels = static_cast<int>(v); }},
    {"NCCL_MIN_NRINGS", 1, 64,
     [](NcclSettings& s, int64_t v) { s.min_channels = static_cast<int>(v); }},
    {"NCCL_MAX_NCHANNELS", 1, 64,
     [](NcclSettings& s, int64_t v) { s.max_channels = static_cast<int>(v); }},
    {"NCCL_MIN_NCHANNELS", 1, 64,
     [](NcclSettings& s, int64_t v) { s.min_channels = static_cast<int>(v); }},
    {"NCCL_MAX_CTAS", 1, 64, [](NcclSettings& s, int64_t v) { s.max_ctas = static_cast<int>(v); }},
    {"NCCL_MIN_CTAS", 1, 64, [](NcclSettings& s, int64_t v) { s.min_ctas = static_cast<int>(v); }},
    {"NCCL_CUMEM_ENABLE", -2, 1,
     [](NcclSettings& s, int64_t v) {
       if (v >= 0) s.cumem = v == 1;
     }},
    {"NCCL_CUMEM_HOST_ENABLE", -1, 1,
     [](NcclSettings& s, int64_t v) {
       if (v >= 0) s.cumem_host = v == 1;
     }},
    {"NCCL_NVLS_ENABLE", 0, 2,
     [](NcclSettings& s, int64_t v) {
       if (v < 2) s.nvls = v == 1;
     }},
    {"NCCL_RUNTIME_CONNECT", 0, 1, [](NcclSettings& s, int64_t v) { s.runtime_connect = v == 1; }},
    {"NCCL_SHM_DISABLE", 0, 1, [](NcclSettings& s, int64_t v) { s.shm_disabled = v == 1; }},
    {"NCCL_P2P_DISABLE", 0, 1, [](NcclSettings& s, int64_t v) { s.p2p_disabled = v == 1; }},
    {"NCCL_SHM_USE_CUDA_MEMCPY", 0, 1, [](NcclSettings& s, int64_t v) { s.shm_memcpy = v == 1; }},
    {"NCCL_P2P_USE_CUDA_MEMCPY", 0, 1, [](NcclSettings& s, int64_t v) { s.p2p_memcpy = v == 1; }},
};

}  // namespace

Result<NcclSettings> nccl_settings(const std::map<std::string, std::string>& environment,
                                   NcclSettings base) {
  for (const Numeric& numeric : kNumerics) {
    const auto found = environment.find(numeric.name);
    if (found == environment.end()) continue;
    SHOAL_ASSIGN_OR_RETURN(const int64_t value,
                           number(found->first, found->second, numeric.least, numeric.most));
    numeric.set(base, value);
  }
  if (const auto algo = environment.find("NCCL_ALGO");
      algo != environment.end() && !algo->second.empty()) {
    SHOAL_ASSIGN_OR_RETURN(base.tree, algorithms_with_tree(algo->second));
  }
  // graph/paths.cc: ncclTopoGetUserP2pLevel. The numbers are an older form of the names, and
  // NCCL_P2P_DISABLE wins over the level.
  if (const auto level = environment.find("NCCL_P2P_LEVEL"); level != environment.end()) {
    static const std::vector<std::string> levels = {"LOC", "NVL", "NVB", "C2C", "PIX", "PXB",
                                                    "PXN", "P2C", "PHB", "SYS", "0",   "1",
                                                    "2",   "3",   "4",   "5"};
    if (std::find(levels.begin(), levels.end(), level->second) == levels.end())
      return bad_value("NCCL_P2P_LEVEL", level->second, "LOC, NVL, PIX, PXB, PHB or SYS");
    if (level->second == "LOC" || level->second == "0") base.p2p_disabled = true;
  }
  if (const auto net = environment.find("NCCL_NET"); net != environment.end())
    base.net = net->second;
  return base;
}

}  // namespace shoal
