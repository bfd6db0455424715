#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/archive.h"
#include "runtime/base/device_kind.h"
#include "runtime/base/failure.h"
#include "runtime/base/gpu_name.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

// The messages between the front and a rank. What the ranks compute is only bytes here: the author
// of the work (runtime/rank/rank_work.h) defines RankStart::work, Step::plan, StepDone::result and
// Ready::about. Both ends are of the same build, so no message has a version: before any message
// the front sends its program_build() as a frame, and a rank of another build ends there.

namespace shoal {

/// The exit code of a rank that is of another build than its front (sysexits' EX_TEMPFAIL). Its
/// last line in the log names both.
inline constexpr int kOtherBuildExitCode = 75;

/// The front's first message to a rank: all that the rank needs to connect to the others and to
/// begin its work.
struct RankStart {
  int32_t rank = 0;
  int32_t world_size = 1;
  std::vector<int32_t> cpus;  ///< CPUs that this rank's threads are bound to; empty: not bound
  std::string transport;
  std::vector<int32_t> tcp_ports;  ///< loopback port that each rank listens on, in rank order
  int64_t shm_bytes = 0;
  int64_t collective_timeout_ms = 0;
  /// Identifies the group on tcp, so that a connection from a stranger is recognized.
  uint64_t group_key = 0;
  LogOptions log;
  int32_t start_number = 0;  ///< 0 at first, one more each time the front starts its ranks again
  /// Ranks of this group have run before, on the same devices. What is missing now may come back.
  bool has_run = false;
  bool transport_only = false;  ///< prove the transport and begin no work (shoal doctor)
  /// With transport_only: how many threads the work would compute with, and how much address space
  /// it would take. The rank takes as much until it ends, which shows whether it may.
  int32_t trial_threads = 1;
  int64_t trial_bytes = 0;
  uint64_t self_test_seed = 0;  ///< the same on every rank, new at every start
  /// How often a rank sends StepProgress during a long step, in milliseconds; 0: never.
  int64_t heartbeat_ms = 0;
  DeviceKind device = DeviceKind::kCpu;
  int32_t ranks_per_gpu = 1;  ///< rank r uses device r / ranks_per_gpu
  /// The devices of the group, which are chosen once. A rank looks for its own by the UUID. Empty:
  /// nobody has asked, and r / ranks_per_gpu is CUDA's number.
  std::vector<GpuName> gpus;
  std::string cuda_module;  ///< as --cuda-module; empty: find_cuda_module() looks for it
  std::string nccl_library;
  bool reproducible = true;
  /// The driver compiles the module's kernels when a rank opens its device, which takes minutes.
  bool compiles_kernels = false;
  std::string work;  ///< what the work needs to begin
};

struct Step {
  uint64_t number = 0;
  std::string plan;
};

struct Shutdown {};

/// The parts that all ranks sent for an exchange, in rank order.
struct ExchangeAll {
  std::vector<std::string> parts;
};

/// The front has given up on the group. Each rank that still can answers with a RankFailure, which
/// says what it was waiting for.
struct Explain {};

/// A rank has entered a phase, or is still moving in it. kSpawn, kStep and kIdle are not sent,
/// because the front knows them by itself.
struct PhaseBegun {
  Phase phase = Phase::kOpen;
  /// The driver may compile kernels for some rank, which takes minutes. Taken back by the next one.
  bool compiles = false;
};

/// The part that one rank sends for an exchange. Exchanges go through the front because the ranks
/// may have no transport yet.
struct ExchangePart {
  std::string part;
};

/// The transport has passed its self-test on this rank.
struct TransportVerified {
  double latency_us = 0;   ///< all_reduce of 8 KiB
  double bytes_per_s = 0;  ///< all_reduce of 1 MiB
  bool noisy = false;      ///< SelfTestFigures::noisy
  double seconds = 0;      ///< the whole self-test
};

struct LoadProgress {
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
};

/// The rank's work has begun, and the rank now waits for steps.
struct Ready {
  std::string transport;
  std::string about;  ///< what the work reports about itself (RankWork::begin())
};

/// Sent during a long step to show that the rank still moves, or that it waits.
struct StepProgress {
  uint64_t number = 0;
  uint64_t parts = 0;  ///< of its work that the rank has completed since it was born
  /// The rank has been waiting for other ranks or for a device for a while. Taken back by the next
  /// message.
  bool waits = false;
};

/// What the rank has measured in its steps since the last message. Sent at the end of a step, but
/// not more often than once a second.
struct StepTimes {
  int64_t steps = 0;
  double seconds = 0;             ///< that they took
  double collective_seconds = 0;  ///< of these, in collectives
  /// The part of `seconds` in which it waited for other ranks; nullopt if it cannot measure that.
  std::optional<double> waited_seconds;
  /// The part of this in which the previous rank alone was missing (Waited::for_previous).
  double waited_for_previous_seconds = 0;
};

/// Sent by rank 0 only, on behalf of all ranks.
struct StepDone {
  uint64_t number = 0;
  std::string result;
};

/// How far a rank's device is in a step. Only one that sums waits for other ranks, and it waits for
/// those that are in an earlier step, or have lesser marks in the same one. A step that wants no
/// logits ends for rank 0 although another rank may still be in it.
struct DeviceMark {
  uint64_t mark = 0;
  bool sums = false;
  uint64_t step = 0;  ///< its number
};

/// Which collective a rank was in (0: none), which ranks it was waiting for, and what it was
/// waiting for besides: "its GPU in layer 5, mlp". Empty: nothing.
struct RankWait {
  uint64_t collective = 0;
  std::string what;
  std::vector<int32_t> waits_for;
  std::string where;
  /// It waits for its device, and cannot tell for whom that waits, so that waits_for is all others.
  std::optional<DeviceMark> device = std::nullopt;
};

/// The rank has failed, for the reason in `status`. It exits right after.
struct RankFailure {
  Status status;
  RankWait wait;
  Fault fault = Fault::kOwn;
};

template <typename Archive>
void fields(Archive& archive, LogOptions& m) {
  archive(m.level, m.format);
}
template <typename Archive>
void fields(Archive& archive, RankStart& m) {
  archive(m.rank, m.world_size, m.cpus, m.transport, m.tcp_ports, m.shm_bytes,
          m.collective_timeout_ms, m.group_key, m.log, m.start_number, m.has_run, m.transport_only,
          m.trial_threads, m.trial_bytes, m.self_test_seed, m.heartbeat_ms, m.device,
          m.ranks_per_gpu, m.gpus, m.cuda_module, m.nccl_library, m.reproducible,
          m.compiles_kernels, m.work);
}
template <typename Archive>
void fields(Archive& archive, Step& m) {
  archive(m.number, m.plan);
}
template <typename Archive>
void fields(Archive&, Shutdown&) {}
template <typename Archive>
void fields(Archive& archive, ExchangeAll& m) {
  archive(m.parts);
}
template <typename Archive>
void fields(Archive&, Explain&) {}
template <typename Archive>
void fields(Archive& archive, PhaseBegun& m) {
  archive(m.phase, m.compiles);
}
template <typename Archive>
void fields(Archive& archive, ExchangePart& m) {
  archive(m.part);
}
template <typename Archive>
void fields(Archive& archive, TransportVerified& m) {
  archive(m.latency_us, m.bytes_per_s, m.noisy, m.seconds);
}
template <typename Archive>
void fields(Archive& archive, LoadProgress& m) {
  archive(m.bytes_done, m.bytes_total);
}
template <typename Archive>
void fields(Archive& archive, Ready& m) {
  archive(m.transport, m.about);
}
template <typename Archive>
void fields(Archive& archive, StepProgress& m) {
  archive(m.number, m.parts, m.waits);
}
template <typename Archive>
void fields(Archive& archive, StepTimes& m) {
  archive(m.steps, m.seconds, m.collective_seconds, m.waited_seconds,
          m.waited_for_previous_seconds);
}
template <typename Archive>
void fields(Archive& archive, StepDone& m) {
  archive(m.number, m.result);
}
template <typename Archive>
void fields(Archive& archive, DeviceMark& m) {
  archive(m.mark, m.sums, m.step);
}
template <typename Archive>
void fields(Archive& archive, RankWait& m) {
  archive(m.collective, m.what, m.waits_for, m.where, m.device);
}
template <typename Archive>
void fields(Archive& archive, RankFailure& m) {
  archive(m.status, m.wait, m.fault);
}

using FrontMessage = std::variant<RankStart, Step, Shutdown, ExchangeAll, Explain>;
using RankMessage = std::variant<LoadProgress, Ready, StepDone, RankFailure, PhaseBegun,
                                 ExchangePart, TransportVerified, StepProgress, StepTimes>;

/// One alternative of FrontMessage or RankMessage as a frame for the channel.
template <typename Message>
std::string encode_front_message(const Message& message) {
  return encode_as<FrontMessage>(message);
}
template <typename Message>
std::string encode_rank_message(const Message& message) {
  return encode_as<RankMessage>(message);
}

/// Decode one frame. INTERNAL: it is not one message of this direction, or it is a RankFailure
/// without a reason.
Result<FrontMessage> decode_front_message(std::string_view frame);
Result<RankMessage> decode_rank_message(std::string_view frame);

}  // namespace shoal
