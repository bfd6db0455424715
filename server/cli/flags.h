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
#include "server/cli/chat_flags.h"
#include "server/cli/client_flags.h"
#include "server/cli/command_table.h"
#include "server/cli/configuration.h"
#include "server/net/tls_files.h"
#include "server/serving/generation_request.h"
#include "server/shmtest/condition.h"
#include "server/shmtest/outcome.h"

namespace shoal {

// The command line as plain values, with one struct per command.

/// Flags that decide what ranks compute on.
struct DeviceFlags {
  /// --device: what it says, or for `auto` what choose_device (server/host) has made of it.
  DeviceKind kind = DeviceKind::kCpu;
  /// --device auto, and neither --transport nor --min-transport names transports of the CPU.
  bool automatic = false;
  enum class Choice { kAuto, kCpu, kCuda };
  Choice choice = Choice::kAuto;              ///< --device, unchanged
  std::string cuda_module;                    ///< a path; empty: next to the program
  std::string nccl_library = "libnccl.so.2";  ///< a path, or a name that the loader searches for
  /// A path or a name, like nccl_library; empty: those of cublas_library_names(). Used only if
  /// reproducible is false.
  std::string cublas_library;
  int ranks_per_gpu = 1;     ///< above 1 only in tests
  bool reproducible = true;  ///< the same bits on every transport
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
  double gpu_memory_utilization = 0.9;      ///< share of a device's memory in use, by anyone
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

/// The HTTP front of a server.
struct HttpFlags {
  /// 0: any free port; -1: no HTTP; absent: kHttpPort, or a free one if gRPC's port is free too.
  std::optional<int> port;
  std::string uds;  ///< the path of a Unix socket; empty: listen on the port
  std::vector<std::string> allowed_origins, allowed_hosts;
  int max_connections = 1024;
  uint64_t max_header_bytes = 16 << 10;
  uint64_t max_body_bytes = 16 << 20;
  double header_timeout_s = 10;
  double body_timeout_s = 30;
  double keep_alive_s = 15;  ///< between two signs of life of a stream; 0: never
};
inline constexpr int kHttpPort = 8000, kGrpcPort = 50051;

/// Who may use a server.
struct AccessFlags {
  std::vector<std::string> api_keys;
  std::string api_key_file;
  bool metrics_without_key = false;
};

struct ServeFlags {
  EngineFlags engine;
  SchedulingFlags scheduling{.decode_stretch = 2};
  QueueFlags queue;
  std::string host = "127.0.0.1";
  int grpc_port = kGrpcPort;  ///< 0: any free port
  HttpFlags http;
  AccessFlags access;
  TlsFiles tls;
  std::optional<int> health_port;            ///< 0: any free port; absent: none
  std::optional<std::string> chat_template;  ///< a file; absent: the model's own
  bool trust_message_tokens = false;
  std::vector<std::string> served_model_names;    ///< empty: MODEL's own (ModelFiles::name)
  uint64_t request_memory = uint64_t{256} << 20;  ///< bytes of all requests together
  double shutdown_grace_s = 0;     ///< in which requests are still accepted after SIGTERM
  double shutdown_timeout_s = 30;  ///< in which running requests may finish
  std::string ready_file;          ///< a path; empty: none
  std::string set_elsewhere = {};  ///< what the environment and the file have set, for the log
};

struct GenerateFlags {
  EngineFlags engine;
  SchedulingFlags scheduling;
  GenerationRequest request;  ///< with jsonl: defaults for fields that a line leaves out
  ChatFlags chat;             ///< its messages instead of a prompt; with jsonl: for its lines
  bool converses = false;     ///< a conversation on stdin, which begins with these messages
  std::optional<std::string> jsonl;
  bool keep_going = false;  ///< with jsonl: a wrong line costs the others nothing
  bool json = false;
};

struct LogitsFlags {
  EngineFlags engine;
  GenerationRequest request;  ///< only its prompt
  std::optional<std::string> jsonl;
  std::string out;                     ///< a file; empty with jsonl
  std::string out_dir;                 ///< a folder; empty without jsonl
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
  std::optional<std::vector<int64_t>>
      ids;  ///< exactly one of ids, ids_from_stdin and jsonl is given
  bool ids_from_stdin = false;
  std::optional<std::string> jsonl;
  bool skip_special = false;
};

struct RenderFlags {
  std::string model;
  ChatFlags chat;    ///< messages are given
  bool ids = false;  ///< print token ids instead of the text
};

struct DoctorFlags {
  ServeFlags serve;    ///< without a model only its ranks and transports count
  bool needs = false;  ///< print the table of needs without inspecting this machine
  std::optional<NcclVersion> nccl_version;  ///< print what ranks with this version of NCCL would
                                            ///< need here, and start nothing
  int communicators = 1;  ///< of NCCL that exist at once and share nothing; with nccl_version
  bool json = false;
  bool ranks_by_default = false;  ///< there is no MODEL and no -tp, so the number is a default
  bool says_whose_ranks = false;  ///< the reader may be the author of another engine
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
  shmtest::Accept accept = shmtest::Accept::kSuccess;
  std::optional<std::string> junit;  ///< a file to write
  bool json = false, list = false, keep_going = false, fail_fast = false, verbose = false;
  bool no_trace = false;      ///< do not ask the kernel how every process ends
  bool min_size = false;      ///< look for the smallest size instead of running the matrix
  bool matrix_given = false;  ///< false: `matrix` is the default
  bool host_added = false;    ///< the control was not asked for, and stands in front all the same
};

struct VersionFlags {
  bool json = false;
};

/// Text to print on stdout, and nothing else to do.
struct PrintText {
  std::string text;
};

/// The result of --help: the help of one command, or of several the list.
struct PrintHelp {
  std::vector<CommandEntry> commands;
};

/// The result of shoal bench --help.
struct PrintFamily {
  CommandFamily family;
};

struct CommandLine {
  LogOptions log;
  std::variant<PrintText, PrintHelp, PrintFamily, ServeFlags, GenerateFlags, LogitsFlags,
               TokenizeFlags, DetokenizeFlags, RenderFlags, ClientFlags, BenchModelFlags,
               BenchCollectivesFlags, DoctorFlags, ShmtestFlags, VersionFlags>
      command;
};

/// Reads the words after the program's name, and for serve also these variables and the file of
/// --config. Error: INVALID_ARGUMENT, which names the flag (or the variable, or the line of the
/// file), its value, the bounds and what to do.
Result<CommandLine> parse_command_line(std::span<const std::string> words,
                                       const Environment& environment = {});

}  // namespace shoal
