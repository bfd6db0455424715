#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/device_kind.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/engine/scheduler.h"
#include "runtime/transport/needs/nccl_settings.h"
#include "server/cli/command_table.h"
#include "server/serving/generation_request.h"
#include "server/shmtest/condition.h"

namespace shoal {

// The command line as plain values, with one struct per command.

/// Flags that decide where ranks compute their sums.
struct DeviceFlags {
  DeviceKind kind = DeviceKind::kCpu;         ///< --device; `auto` has been replaced by a device
  std::string cuda_module;                    ///< a path; empty: next to the program
  std::string nccl_library = "libnccl.so.2";  ///< a path, or a name that the loader searches for
  int ranks_per_gpu = 1;                      ///< above 1 only in tests
  bool reproducible = true;                   ///< the same bits on every transport
};

/// Flags that decide how ranks may communicate.
struct TransportFlags {
  DeviceFlags device;
  std::optional<std::string> transport;  ///< the value of --transport, unchanged
  std::vector<std::string>
      order;  ///< rungs in the order in which they are tried; never empty after settle_transport
  bool degrade_on_shm_shortage = true;
  std::string min_transport;  ///< the last rung that may be used; empty: any
  uint64_t shm_headroom_bytes = 256 * 1024;
  double startup_timeout_s = 600;
  double step_timeout_s = 10;
  bool clean_stale = false;  ///< remove files that killed processes left in /dev/shm
};

/// Flags of every command that runs a model. Values that are absent are decided once the model is
/// known (engine_plan.h).
struct EngineFlags {
  std::string model;
  int tensor_parallel_size = 1;
  std::string dtype = "auto";
  std::optional<int> max_model_len;  ///< tokens
  int max_num_seqs = 64;
  int max_num_batched_tokens = 512;
  std::optional<uint64_t> kv_cache_memory;  ///< bytes, for all ranks together
  std::optional<int> threads_per_rank;
  std::string cpu_kernels = "auto";
  TransportFlags transport;
  int max_restarts = 3;          ///< restarts of lost ranks; used by serve and generate
  std::optional<uint64_t> seed;  ///< for requests without a seed of their own
};

/// How requests share the steps. The default of decode_stretch depends on the command.
struct SchedulingFlags {
  double decode_stretch = 0;  ///< 0: off
  int max_step_ms = 500;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
};

/// The limits of a server's queue.
struct QueueFlags {
  std::optional<int64_t> max_requests;       ///< that run or wait; default: kDefaultWaiting more
                                             ///< than run
  std::optional<int64_t> max_tokens;         ///< of prompts still to be computed
  uint64_t max_bytes = uint64_t{128} << 20;  ///< of waiting requests
  double max_seconds = 0;                    ///< until the first step; 0: no limit
};
/// How many requests may wait besides those that run, if no flag says so.
inline constexpr int64_t kDefaultWaiting = 1024;

struct ServeFlags {
  EngineFlags engine;
  SchedulingFlags scheduling{.decode_stretch = 2};
  QueueFlags queue;
  std::string host = "127.0.0.1";
  int grpc_port = 50051;  ///< 0: any free port
};

struct GenerateFlags {
  EngineFlags engine;
  SchedulingFlags scheduling;
  GenerationRequest request;  ///< with jsonl: defaults for fields that a line leaves out
  std::optional<std::string> jsonl;
  bool json = false;
};

struct LogitsFlags {
  EngineFlags engine;
  std::vector<int64_t> prompt_ids;
  std::string out;
  std::optional<int64_t> chunk;        ///< tokens per prefill step
  std::optional<int64_t> decode_from;  ///< first position that goes through the decode path
};

struct TokenizeFlags {
  std::string model;
  std::optional<std::string> text, file, jsonl;  ///< exactly one of them is given
  bool no_special = false;
  bool json = false;
};

struct DetokenizeFlags {
  std::string model;
  std::optional<std::vector<int64_t>> ids;  ///< exactly one of ids and jsonl is given
  std::optional<std::string> jsonl;
  bool skip_special = false;
};

struct ClientFlags {
  std::string server = "127.0.0.1:50051";
  std::string model;  ///< empty: the model that the server serves
  GenerationRequest
      request;        ///< prompt or prompt_ids, and the sampling fields; the server checks them
  bool json = false;  ///< print one JSON object at the end instead of streaming the text
};

struct DoctorFlags {
  TransportFlags transport;
  int tensor_parallel_size = 2;
  bool needs = false;  ///< print the table of needs without inspecting this machine
  std::optional<NcclVersion> nccl_version;  ///< print what ranks with this version of NCCL would
                                            ///< need here, and start nothing
  bool json = false;
};

struct BenchModelFlags {
  EngineFlags engine;
  bool prefill = false;  ///< false: decode
  int tokens = 0;        ///< how many to prefill or to decode
  bool json = false;
};

struct BenchCollectivesFlags {
  int tensor_parallel_size = 2;
  std::vector<std::string> transport;
  int rounds = 3;  ///< each round starts the ranks again
  bool json = false;
};

struct ShmtestFlags {
  std::vector<shmtest::Condition> matrix;  ///< never empty after parsing
  std::vector<std::string> command;        ///< not empty, unless list is set
  double timeout_s = 60;                   ///< for each condition
  int jobs = 1;                            ///< conditions that run at the same time
  std::optional<std::string> junit;        ///< a file to write
  bool json = false, list = false, keep_going = false, fail_fast = false, verbose = false;
};

struct VersionFlags {
  bool json = false;
};

/// The result of --help: text to print on stdout, and nothing else to do.
struct PrintText {
  std::string text;
  std::string description = {};        ///< of the command that the help is about; otherwise empty
  std::vector<FlagGroup> groups = {};  ///< its flags
};

struct CommandLine {
  LogOptions log;
  std::variant<PrintText, ServeFlags, GenerateFlags, LogitsFlags, TokenizeFlags, DetokenizeFlags,
               ClientFlags, BenchModelFlags, BenchCollectivesFlags, DoctorFlags, ShmtestFlags,
               VersionFlags>
      command;
};

/// Reads the words after the program's name. Error: INVALID_ARGUMENT, which names the flag, its
/// value, the bounds and what to do.
Result<CommandLine> parse_command_line(std::span<const std::string> words);

}  // namespace shoal
