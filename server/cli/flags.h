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
#include "runtime/transport/needs/nccl_budget.h"
#include "server/client_command.h"
#include "server/serving/generation_request.h"
#include "server/shmtest/condition.h"

namespace shoal {

// The command line as plain values, one struct per command.

/// Flags that say where ranks move their sums.
struct DeviceFlags {
  DeviceKind kind = DeviceKind::kCpu;         ///< --device; auto is decided by then
  std::string cuda_module;                    ///< a path; empty: beside the program
  std::string nccl_library = "libnccl.so.2";  ///< a path, or a name for the loader's search
  int ranks_per_gpu = 1;                      ///< above 1: a test arrangement
  bool reproducible = true;                   ///< the same bits on every transport
};

/// Flags that say how ranks may talk.
struct TransportFlags {
  DeviceFlags device;
  std::optional<std::string> transport;  ///< --transport as it was given
  std::vector<std::string>
      order;  ///< rungs in the order to try; never empty after settle_transport
  bool degrade_on_shm_shortage = true;
  std::string min_transport;  ///< the last rung that may be used; empty: any
  uint64_t shm_headroom_bytes = 256 * 1024;
  double startup_timeout_s = 600;
  double step_timeout_s = 10;
  bool clean_stale = false;  ///< remove files that killed runs left in /dev/shm
};

/// Flags of every command that runs a model. Absent values are decided once the model is known
/// (engine_plan.h).
struct EngineFlags {
  std::string model;
  int tensor_parallel_size = 1;
  std::string dtype = "auto";
  std::optional<int> max_model_len;  ///< tokens
  int max_num_seqs = 64;
  int max_num_batched_tokens = 512;
  std::optional<uint64_t> kv_cache_memory;  ///< bytes, over all ranks
  std::optional<int> threads_per_rank;
  std::string cpu_kernels = "auto";
  TransportFlags transport;
  int max_restarts = 3;          ///< of lost ranks; serve and generate
  std::optional<uint64_t> seed;  ///< of requests that bring none
};

struct ServeFlags {
  EngineFlags engine;
  std::string host = "127.0.0.1";
  int grpc_port = 50051;  ///< 0: a free one
};

struct GenerateFlags {
  EngineFlags engine;
  GenerationRequest request;  ///< with jsonl: the fields that lines leave out
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
  std::optional<std::string> text, file, jsonl;  ///< exactly one
  bool no_special = false;
  bool json = false;
};

struct DetokenizeFlags {
  std::string model;
  std::optional<std::vector<int64_t>> ids;  ///< this or jsonl
  std::optional<std::string> jsonl;
  bool skip_special = false;
};

struct ClientFlags {
  ClientOptions options;
};

struct DoctorFlags {
  TransportFlags transport;
  int tensor_parallel_size = 2;
  bool needs = false;  ///< print the table of needs, look at nothing
  std::optional<NcclVersion>
      nccl_version;  ///< print what ranks of this NCCL would need here, start nothing
  bool json = false;
};

struct BenchModelFlags {
  EngineFlags engine;
  bool prefill = false;  ///< else decode
  int tokens = 0;        ///< to prefill, or to decode
  bool json = false;
};

struct BenchCollectivesFlags {
  int tensor_parallel_size = 2;
  std::vector<std::string> transport;
  int rounds = 3;  ///< each starts the ranks anew
  bool json = false;
};

struct ShmtestFlags {
  std::vector<shmtest::Condition> matrix;  ///< never empty after parsing
  std::vector<std::string> command;        ///< not empty, unless list
  double timeout_s = 60;                   ///< of each condition
  int jobs = 1;                            ///< conditions at the same time
  std::optional<std::string> junit;        ///< file to write
  bool json = false, list = false, keep_going = false, fail_fast = false, verbose = false;
};

/// --help and --version: text for stdout, and nothing else to do.
struct PrintText {
  std::string text;
};

struct CommandLine {
  LogOptions log;
  std::variant<PrintText, ServeFlags, GenerateFlags, LogitsFlags, TokenizeFlags, DetokenizeFlags,
               ClientFlags, BenchModelFlags, BenchCollectivesFlags, DoctorFlags, ShmtestFlags>
      command;
};

/// Reads the words after the program's name. INVALID_ARGUMENT names the flag, its value, the bounds
/// and what to do.
Result<CommandLine> parse_command_line(std::span<const std::string> words);

}  // namespace shoal
