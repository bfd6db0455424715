// Part of a FAKE of libnccl (fake_nccl.cc): its environment.
#include "tests/fakes/fake_nccl_settings.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <unistd.h>

#include "tests/fakes/fake_nccl_log.h"

namespace fake_nccl {
namespace {

/// Reads NAME=VALUE lines. The environment overrides them.
void load_conf(const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t equals = line.find('=');
    if (line.empty() || line[0] == '#' || equals == std::string::npos) continue;
    ::setenv(line.substr(0, equals).c_str(), line.substr(equals + 1).c_str(), 0);
  }
}

std::string text(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int64_t number(const char* name, int64_t otherwise) {
  const std::string value = text(name);
  if (value.empty()) return otherwise;
  char* end = nullptr;
  const int64_t result = std::strtoll(value.c_str(), &end, 0);
  if (end == value.c_str()) return otherwise;
  if (std::strncmp(name, "NCCL_", 5) == 0)
    info(Subsystem::kEnv, "%s set by environment to %lld.", name, static_cast<long long>(result));
  return result;
}

/// The size of ncclProxyOpsPool in bytes, without the reference count of its file. The literals
/// were read out of the libraries, or obtained by compiling each release's headers.
int64_t pool_of(int version) {
  if (version < 22000) return 4194656;
  if (version < 22100) return 5767520;
  if (version < 22300) return 7340384;
  if (version < 22400) return 10486112;
  if (version < 22500) return 14156128;
  if (version < 22600) return 31850880;
  if (version < 22800) return 33030528;
  if (version < 23100) return 34210176;
  return version < 23200 ? 34210184 : 68420264;
}

/// What a rank adds to the region for NVLS, from 2.28.7 on.
int64_t nvls_of(int version) {
  if (version < 23000) return 5632;
  return version < 23200 ? 3328 : 512;
}

uint64_t hash_of_host() {
  std::string host = text("NCCL_HOSTID");
  if (host.empty()) {
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    std::ostringstream boot;
    boot << std::ifstream("/proc/sys/kernel/random/boot_id").rdbuf();
    host = name + boot.str();
  }
  return std::hash<std::string>()(host);
}

Settings read() {
  const std::string own_conf = text("NCCL_CONF_FILE");
  load_conf(own_conf.empty() ? text("HOME") + "/.nccl.conf" : own_conf);
  load_conf("/etc/nccl.conf");
  Settings s;
  s.buff_bytes = number("NCCL_BUFFSIZE", 4194304);
  s.ll_bytes = number("NCCL_LL_BUFFSIZE", 524288);
  s.ll128_bytes = number("NCCL_LL128_BUFFSIZE", 4915200);
  s.shm_disable = number("NCCL_SHM_DISABLE", 0) != 0;
  const std::string level = text("NCCL_P2P_LEVEL");
  s.p2p_forbidden = number("NCCL_P2P_DISABLE", 0) != 0 || level == "LOC" || level == "0";
  s.cumem = number("NCCL_CUMEM_ENABLE", -2) != 0;
  s.cumem_host = number("NCCL_CUMEM_HOST_ENABLE", -1) != 0;
  s.runtime_connect = number("NCCL_RUNTIME_CONNECT", 1) != 0;
  s.nvls = static_cast<int>(number("NCCL_NVLS_ENABLE", 2));
  s.max_channels = static_cast<int>(number("NCCL_MAX_NCHANNELS", 0));
  s.min_channels = static_cast<int>(number("NCCL_MIN_NCHANNELS", 0));
  s.max_ctas = static_cast<int>(number("NCCL_MAX_CTAS", 0));
  s.min_ctas = static_cast<int>(number("NCCL_MIN_CTAS", 0));
  s.blocking = static_cast<int>(number("NCCL_COMM_BLOCKING", -1));
  s.host_hash = hash_of_host();

  s.version = version_code();
  if (const std::string version = text("FAKE_NCCL_VERSION"); !version.empty())
    s.version_text = version;
  s.pool_bytes = number("FAKE_NCCL_POOL_BYTES", pool_of(s.version));
  s.nvls_bytes_per_rank = nvls_of(s.version);
  s.found_channels = static_cast<int>(number("FAKE_NCCL_CHANNELS", 2));
  s.peers = text("EMULATED_GPU_PEERS") == "all";
  s.nvls_hardware = number("FAKE_NCCL_NVLS", 0) != 0;
  s.cumem_host_works = number("FAKE_NCCL_CUMEM_HOST", 0) != 0;
  s.hang = text("FAKE_NCCL_HANG");
  s.die = text("FAKE_NCCL_DIE");
  s.hold_init = text("FAKE_NCCL_HOLD_INIT");
  s.tell = text("FAKE_NCCL_TELL");
  s.most_gathered = number("FAKE_NCCL_MOST_GATHERED", 0);
  s.wrong_bytes = number("FAKE_NCCL_WRONG_BYTES", 0);
  return s;
}

}  // namespace

const Settings& settings() {
  static const Settings* const cached = new Settings(read());
  return *cached;
}

int version_code() {
  const std::string version = text("FAKE_NCCL_VERSION");
  if (version.empty()) return 22809;
  int major = 0, minor = 0, patch = 0;
  char dot = 0;
  std::istringstream(version) >> major >> dot >> minor >> dot >> patch;
  return major * 10000 + minor * 100 + patch;
}

bool algorithm_allowed(const char* name) {
  std::string list = text("NCCL_ALGO");
  if (list.empty()) return true;
  const bool others = list[0] == '^';
  bool named = false;
  std::istringstream names(others ? list.substr(1) : list);
  for (std::string one; std::getline(names, one, ',');)
    named = named || ::strcasecmp(one.c_str(), name) == 0;
  return named != others;
}

}  // namespace fake_nccl
