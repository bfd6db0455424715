#include "runtime/comm/device/nccl_collective.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/base/cat.h"
#include "runtime/comm/check_arguments.h"
#include "runtime/comm/device/keep_for_process.h"
#include "runtime/comm/device/nccl_api.h"
#include "runtime/comm/tree_sum.h"

namespace shoal {
namespace {

// A call that only enqueues has ended by then.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr auto kNap = std::chrono::microseconds(100);
constexpr auto kBetweenLooks = std::chrono::milliseconds(100);

/// The most bytes that a rank sends in one all-gather. Bounds the buffer that receives them.
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kPieceFloats = kPieceBytes / sizeof(float);
/// The longest ncclAllReduce, so that no message is longer than those that the warm-up has tried.
constexpr size_t kMostFloats = size_t{4} << 20;

/// A call of NCCL, for messages. It is turned into text only if it fails.
struct Call {
  const char* function;
  size_t bytes = 0;
};
std::string text_of(const Call& call) {
  return call.bytes == 0 ? call.function : cat(call.function, " of ", call.bytes, " bytes");
}

/// Maps an NCCL error to a Status code. NCCL reports all system errors with one code, so the
/// message text decides.
Code code_of(NcclResult result, const std::string& words) {
  const auto says = [&](const char* text) { return words.find(text) != std::string::npos; };
  if (says("No space left on device") || says("Cannot allocate memory"))
    return Code::kResourceExhausted;
  if (says("Permission denied") || says("Operation not permitted") || says("Read-only file system"))
    return Code::kPermissionDenied;
  if (result == kNcclRemoteError) return Code::kUnavailable;
  if (result == kNcclInvalidUsage || result == kNcclInvalidArgument)
    return Code::kFailedPrecondition;
  return Code::kInternal;
}

struct Buffers {
  Device::Memory mine;      ///< [kPieceBytes]: this rank's planes of a piece
  Device::Memory gathered;  ///< [world size][kPieceBytes]
  Device::Memory zeros;     ///< [kPieceBytes]: sent by a rank that contributes nothing
  Device::Memory large;     ///< [kMostFloats]: used while warming up
};

class NcclCollective final : public DeviceCollective {
 public:
  NcclCollective(std::shared_ptr<Device> device, World world, const NcclOptions& options,
                 Interrupted interrupted)
      : device_(std::move(device)),
        world_(world),
        options_(options),
        interrupted_(std::move(interrupted)) {}
  ~NcclCollective() override;

  Status open(const Exchange& exchange);

  const char* name() const override { return options_.name.c_str(); }
  World world() const override { return world_; }
  Status enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count,
                            void* stream, Deadline until) override;
  Status enqueue_all_gather(const void* mine, void* all, size_t bytes_each, void* stream,
                            Deadline until) override;
  Status check() override;

 private:
  Result<NcclUniqueId> agree(const Exchange& exchange);
  Status compare(int rank, int version, const std::string& path) const;
  Status init(const NcclUniqueId& id);
  Status allocate();
  Status warm_up();
  Status finish(const Call& call, void* stream, Deadline deadline);

  Status tree_piece(const ReducePlan& plan, const float* own, float* out, size_t count, Slice piece,
                    void* stream, Deadline until);
  Result<const float*> planes_of(const ReducePlan& plan, const float* own, size_t count,
                                 Slice piece, void* stream);
  Result<const float*> folded(const ReducePlan& plan, const float* own, size_t count, Slice piece,
                              void* stream);
  Status all_gather(const void* mine, void* all, size_t bytes, void* stream, Deadline until);
  Status all_reduce(const float* own, float* out, size_t count, void* stream, Deadline until);

  Status settle(NcclResult result, const Call& call, Deadline deadline);
  Status failure(NcclResult result, const Call& call) const;
  std::string last_words() const;
  float* floats(const Device::Memory& memory) const { return static_cast<float*>(memory.get()); }

  const std::shared_ptr<Device> device_;
  const World world_;
  const NcclOptions options_;
  const Interrupted interrupted_;
  NcclApi api_;
  NcclComm comm_ = nullptr;
  Buffers buffers_;
};

/// ncclCommDestroy is never called, even after a success: it waits for the proxy's thread, which
/// waits for peers that hold connections, so a peer that has died would block this process forever.
/// The communicator lives as long as the process, and so do the buffers: a kernel or a thread of
/// NCCL may still use them, and cudaFree would wait for it.
NcclCollective::~NcclCollective() {
  keep_for_process(std::move(buffers_));
}

std::string NcclCollective::last_words() const {
  const char* words = api_.get_last_error(nullptr);  // nullptr: the last error of any thread
  return words == nullptr ? "" : words;
}

Status NcclCollective::failure(NcclResult result, const Call& call) const {
  const std::string words = last_words();
  const Code code = code_of(result, words);
  const Status error =
      Status::error(code, cat(text_of(call), ": NCCL ", nccl_version_text(api_.version), " says ",
                              api_.get_error_string(result), " (", static_cast<int>(result), ")",
                              words.empty() ? "" : "; its last error: ", words));
  // The host memory that NCCL takes is its segments in shared memory. A shortage of device memory
  // has a different message.
  return code == Code::kResourceExhausted ? error.blamed_on(Fault::kSharedMemory) : error;
}

/// Polls until the communicator has finished the call.
Status NcclCollective::settle(NcclResult result, const Call& call, Deadline deadline) {
  if (result == kNcclSuccess) return {};
  const Clock::time_point began = Clock::now();
  Clock::time_point looked = began;
  while (result == kNcclInProgress) {
    const NcclResult asked = api_.comm_get_async_error(comm_, &result);
    if (asked != kNcclSuccess) return failure(asked, {"ncclCommGetAsyncError"});
    if (result != kNcclInProgress) break;
    if (Clock::now() - began < kSpin) continue;
    if (deadline.passed()) {
      const std::string words = last_words();
      const auto waited =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
      return Status::error(Code::kDeadlineExceeded,
                           cat(text_of(call), " has not ended after ", waited.count(),
                               " ms: a peer has failed or is not there, which NCCL does not notice",
                               words.empty() ? "" : "; its last error: ", words));
    }
    if (Clock::now() - looked >= kBetweenLooks) {
      looked = Clock::now();
      if (interrupted_) SHOAL_RETURN_IF_ERROR(interrupted_());
    }
    std::this_thread::sleep_for(kNap);
  }
  return result == kNcclSuccess ? Status() : failure(result, call);
}

Status NcclCollective::check() {
  NcclResult error = kNcclSuccess;
  const NcclResult asked = api_.comm_get_async_error(comm_, &error);
  if (asked != kNcclSuccess) return failure(asked, {"ncclCommGetAsyncError"});
  return error == kNcclSuccess || error == kNcclInProgress ? Status()
                                                           : failure(error, {"a collective"});
}

Status NcclCollective::open(const Exchange& exchange) {
  SHOAL_ASSIGN_OR_RETURN(api_, load_nccl(options_.library));
  SHOAL_ASSIGN_OR_RETURN(const NcclUniqueId id, agree(exchange));
  SHOAL_RETURN_IF_ERROR(init(id));
  SHOAL_RETURN_IF_ERROR(allocate());
  return warm_up();
}

/// One exchange: every rank sends "VERSION PATH\n", and rank 0 appends its unique id.
Result<NcclUniqueId> NcclCollective::agree(const Exchange& exchange) {
  NcclUniqueId id;
  std::string mine = cat(api_.version, " ", api_.path, "\n");
  if (world_.rank == 0) {
    const NcclResult result = api_.get_unique_id(&id);
    if (result != kNcclSuccess) return failure(result, {"ncclGetUniqueId"});
    mine.append(id.internal, sizeof id.internal);
  }
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> all, exchange(std::move(mine)));
  for (int rank = 0; rank < world_.size; ++rank) {
    const std::string& text = all[static_cast<size_t>(rank)];
    const size_t end = text.find('\n'), space = text.find(' ');
    int version = 0;
    std::from_chars(text.data(), text.data() + std::min(space, text.size()), version);
    const bool fine = end != std::string::npos && space < end &&
                      (rank > 0 || text.size() - end - 1 == sizeof id.internal);
    if (!fine)
      return Status::error(Code::kInternal, cat("rank ", rank, " brings no NCCL version and path"));
    SHOAL_RETURN_IF_ERROR(compare(rank, version, text.substr(space + 1, end - space - 1)));
    if (rank == 0) std::memcpy(id.internal, text.data() + end + 1, sizeof id.internal);
  }
  return id;
}

Status NcclCollective::compare(int rank, int version, const std::string& path) const {
  if (version == api_.version && path == api_.path) return {};
  return Status::error(Code::kFailedPrecondition,
                       cat("rank ", rank, " has NCCL ", nccl_version_text(version), " at ", path,
                           ", rank ", world_.rank, " has ", nccl_version_text(api_.version), " at ",
                           api_.path, ": name one library for all with --nccl-library PATH"));
}

Status NcclCollective::init(const NcclUniqueId& id) {
  NcclConfig config;
  config.blocking = 0;
  // NCCL stores the handle here at once, and again at the end of the init from the init's own
  // thread, whether the init succeeds or not. Neither our deadline nor a stop by the front ends
  // that thread, so it may write long after this object is gone.
  NcclComm* const handle = keep_for_process<NcclComm>(nullptr);
  const NcclResult result =
      api_.comm_init_rank_config(handle, world_.size, id, world_.rank, &config);
  comm_ = std::atomic_ref<NcclComm>(*handle).load();
  if (result != kNcclSuccess && result != kNcclInProgress)
    return failure(result, {"ncclCommInitRankConfig"});
  return settle(kNcclInProgress, {"ncclCommInitRankConfig"},
                Deadline::after_ms(options_.timeout_ms));
}

Status NcclCollective::allocate() {
  SHOAL_ASSIGN_OR_RETURN(buffers_.mine, device_->allocate(kPieceBytes));
  SHOAL_ASSIGN_OR_RETURN(buffers_.gathered,
                         device_->allocate(kPieceBytes * static_cast<size_t>(world_.size)));
  if (options_.reproducible) return {};
  SHOAL_ASSIGN_OR_RETURN(buffers_.zeros, device_->allocate(kPieceBytes));
  SHOAL_ASSIGN_OR_RETURN(buffers_.large, device_->allocate(kMostFloats * sizeof(float)));
  return {};
}

/// NCCL connects and takes its memory when it first chooses an algorithm. The choice depends on the
/// size.
Status NcclCollective::warm_up() {
  SHOAL_ASSIGN_OR_RETURN(const Device::Stream stream, device_->make_stream());
  const Deadline deadline = Deadline::after_ms(options_.timeout_ms);
  for (const size_t bytes : {size_t{4}, size_t{8192}, kPieceBytes}) {
    const Call call{"ncclAllGather", bytes};
    SHOAL_RETURN_IF_ERROR(settle(api_.all_gather(buffers_.mine.get(), buffers_.gathered.get(),
                                                 bytes, kNcclInt8, comm_, stream.get()),
                                 call, deadline));
    SHOAL_RETURN_IF_ERROR(finish(call, stream.get(), deadline));
  }
  if (options_.reproducible) return {};
  float* const large = floats(buffers_.large);
  for (const size_t count : {size_t{64}, size_t{16} << 10, size_t{256} << 10, kMostFloats}) {
    const Call call{"ncclAllReduce", count * sizeof(float)};
    SHOAL_RETURN_IF_ERROR(
        settle(api_.all_reduce(large, large, count, kNcclFloat32, kNcclSum, comm_, stream.get()),
               call, deadline));
    SHOAL_RETURN_IF_ERROR(finish(call, stream.get(), deadline));
  }
  buffers_.large.reset();
  return {};
}

/// Waits until the stream is done.
Status NcclCollective::finish(const Call& call, void* stream, Deadline deadline) {
  SHOAL_ASSIGN_OR_RETURN(const Device::Event done, device_->make_event());
  SHOAL_RETURN_IF_ERROR(device_->record(done.get(), stream));
  const Status status = device_->wait(done.get(), deadline, [this]() -> Status {
    SHOAL_RETURN_IF_ERROR(check());
    return interrupted_ ? interrupted_() : Status();
  });
  return status.while_doing(cat("warm up with ", text_of(call)));
}

Status NcclCollective::all_gather(const void* mine, void* all, size_t bytes, void* stream,
                                  Deadline until) {
  return settle(api_.all_gather(mine, all, bytes, kNcclInt8, comm_, stream),
                {"ncclAllGather", bytes}, until);
}

Status NcclCollective::all_reduce(const float* own, float* out, size_t count, void* stream,
                                  Deadline until) {
  return settle(api_.all_reduce(own, out, count, kNcclFloat32, kNcclSum, comm_, stream),
                {"ncclAllReduce", count * sizeof(float)}, until);
}

/// Long messages are gathered in pieces and then copied, as a piece of `all` is not contiguous.
Status NcclCollective::enqueue_all_gather(const void* mine, void* all, size_t bytes_each,
                                          void* stream, Deadline until) {
  if (bytes_each == 0) return {};
  if (bytes_each <= kPieceBytes) return all_gather(mine, all, bytes_each, stream, until);
  const auto* from = static_cast<const std::byte*>(mine);
  for (size_t at = 0; at < bytes_each; at += kPieceBytes) {
    const size_t width = std::min(kPieceBytes, bytes_each - at);
    SHOAL_RETURN_IF_ERROR(all_gather(from + at, buffers_.gathered.get(), width, stream, until));
    for (size_t rank = 0; rank < static_cast<size_t>(world_.size); ++rank) {
      std::byte* const to = static_cast<std::byte*>(all) + rank * bytes_each + at;
      const std::byte* const part =
          static_cast<const std::byte*>(buffers_.gathered.get()) + rank * width;
      SHOAL_RETURN_IF_ERROR(device_->copy(to, part, width, stream));
    }
  }
  return {};
}

Status NcclCollective::enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out,
                                          size_t count, void* stream, Deadline until) {
  SHOAL_RETURN_IF_ERROR(check_plan(plan, world_));
  if (plan.total_contributions() > kShoalMostPlanes)
    return Status::error(Code::kInvalidArgument,
                         cat("a sum of ", plan.total_contributions(), " planes: at most ",
                             static_cast<int>(kShoalMostPlanes), " on a device"));
  const auto [least, most] =
      std::minmax_element(plan.contributions.begin(), plan.contributions.end());
  // All ranks use the same pieces. A sum by NCCL needs a buffer of ours only if planes have to be
  // folded first.
  const bool straight = !options_.reproducible && *least == 1 && *most == 1;
  const size_t step = straight                ? kMostFloats
                      : options_.reproducible ? kPieceFloats / static_cast<size_t>(*most) / 64 * 64
                                              : kPieceFloats;
  for (size_t begin = 0; begin < count; begin += step) {
    const Slice piece{begin, std::min(count, begin + step)};
    if (options_.reproducible) {
      SHOAL_RETURN_IF_ERROR(tree_piece(plan, own, out, count, piece, stream, until));
    } else {
      SHOAL_ASSIGN_OR_RETURN(const float* mine, folded(plan, own, count, piece, stream));
      SHOAL_RETURN_IF_ERROR(all_reduce(mine, out + begin, piece.size(), stream, until));
    }
  }
  return {};
}

/// Gathers all ranks' planes of the piece, then sums them by the plan's tree.
Status NcclCollective::tree_piece(const ReducePlan& plan, const float* own, float* out,
                                  size_t count, Slice piece, void* stream, Deadline until) {
  const int most = *std::max_element(plan.contributions.begin(), plan.contributions.end());
  const size_t rank_floats = static_cast<size_t>(most) * piece.size();
  SHOAL_ASSIGN_OR_RETURN(const float* mine, planes_of(plan, own, count, piece, stream));
  SHOAL_RETURN_IF_ERROR(
      all_gather(mine, buffers_.gathered.get(), rank_floats * sizeof(float), stream, until));
  ShoalTreeSum sum = {};
  for (size_t rank = 0; rank < plan.contributions.size(); ++rank) {
    const float* plane = floats(buffers_.gathered) + rank * rank_floats;
    for (int i = 0; i < plan.contributions[rank]; ++i, plane += piece.size())
      sum.planes[sum.values++] = plane;
  }
  std::copy(plan.finish.merges.begin(), plan.finish.merges.end(), sum.merges);
  sum.out = out + piece.begin;
  sum.count = static_cast<int64_t>(piece.size());
  return device_->tree_sum(sum, stream);
}

/// Returns this rank's planes of the piece, one after the other. The result is as long as that of
/// the rank with the most planes, because an all-gather takes the same length from all ranks. The
/// end of a shorter rank's buffer is never read.
Result<const float*> NcclCollective::planes_of(const ReducePlan& plan, const float* own,
                                               size_t count, Slice piece, void* stream) {
  const int planes = plan.contributions[static_cast<size_t>(world_.rank)];
  const int most = *std::max_element(plan.contributions.begin(), plan.contributions.end());
  if (planes == most && (planes == 1 || piece.size() == count)) return own + piece.begin;
  for (int i = 0; i < planes; ++i) {
    const size_t at = static_cast<size_t>(i);
    SHOAL_RETURN_IF_ERROR(device_->copy(floats(buffers_.mine) + at * piece.size(),
                                        own + at * count + piece.begin,
                                        piece.size() * sizeof(float), stream));
  }
  return floats(buffers_.mine);
}

/// Returns this rank's one summand: its planes, added from the first to the last.
Result<const float*> NcclCollective::folded(const ReducePlan& plan, const float* own, size_t count,
                                            Slice piece, void* stream) {
  const int planes = plan.contributions[static_cast<size_t>(world_.rank)];
  if (planes == 0) return floats(buffers_.zeros);
  if (planes == 1) return own + piece.begin;
  ShoalTreeSum sum = {};
  for (; sum.values < planes; ++sum.values) {
    sum.planes[sum.values] = own + static_cast<size_t>(sum.values) * count + piece.begin;
    sum.merges[sum.values] = sum.values == 0 ? 0 : 1;
  }
  sum.out = floats(buffers_.mine);
  sum.count = static_cast<int64_t>(piece.size());
  SHOAL_RETURN_IF_ERROR(device_->tree_sum(sum, stream));
  return floats(buffers_.mine);
}

}  // namespace

Result<std::unique_ptr<DeviceCollective>> open_nccl_collective(std::shared_ptr<Device> device,
                                                               World world,
                                                               const NcclOptions& options,
                                                               const Exchange& exchange,
                                                               const Interrupted& interrupted) {
  auto collective =
      std::make_unique<NcclCollective>(std::move(device), world, options, interrupted);
  SHOAL_RETURN_IF_ERROR(collective->open(exchange));
  return std::unique_ptr<DeviceCollective>(std::move(collective));
}

}  // namespace shoal
