// Part of a FAKE of libnccl (fake_nccl.cc): its environment.
#pragma once
#include <cstdint>
#include <string>

namespace fake_nccl {

/// The environment as this process first saw it. NCCL caches its own variables in the same way.
struct Settings {
  // NCCL's own variables.
  int64_t buff_bytes = 0;   ///< NCCL_BUFFSIZE
  int64_t ll_bytes = 0;     ///< NCCL_LL_BUFFSIZE
  int64_t ll128_bytes = 0;  ///< NCCL_LL128_BUFFSIZE
  bool shm_disable = false;
  bool p2p_forbidden = false;  ///< NCCL_P2P_DISABLE, or NCCL_P2P_LEVEL=LOC
  bool cumem = true;
  bool cumem_host = true;
  bool runtime_connect = true;
  int nvls = 2;
  int max_channels = 0, min_channels = 0;  ///< NCCL_MAX_NCHANNELS, NCCL_MIN_NCHANNELS; 0: not set
  int max_ctas = 0, min_ctas = 0;          ///< NCCL_MAX_CTAS, NCCL_MIN_CTAS
  int blocking = -1;                       ///< NCCL_COMM_BLOCKING
  uint64_t host_hash = 0;                  ///< a hash of NCCL_HOSTID if set, otherwise of the
                                           ///< host's name and boot

  // The fake's own settings, which fake_nccl.cc explains.
  int version = 22809;
  std::string version_text = "2.28.9";
  int64_t pool_bytes = 0;
  int64_t nvls_bytes_per_rank = 0;
  int found_channels = 2;
  bool peers = false;
  bool nvls_hardware = false;
  bool cumem_host_works = false;
  std::string hang;
  std::string die, hold_init, tell;  // files
  int64_t most_gathered = 0;         ///< 0: no limit
  int64_t wrong_bytes = 0;
};

const Settings& settings();

/// Reads only FAKE_NCCL_VERSION, because asking for the version must not read any other setting.
int version_code();

/// The setting is read again at every communicator's init, as in NCCL.
bool algorithm_allowed(const char* name);

}  // namespace fake_nccl
