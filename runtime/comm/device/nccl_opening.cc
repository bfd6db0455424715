#include "runtime/comm/device/nccl_opening.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/cat.h"
#include "runtime/device/keep_for_process.h"

namespace shoal {
namespace {

constexpr auto kNap = std::chrono::milliseconds(1);
constexpr auto kBetweenLooks = std::chrono::milliseconds(100);

/// What the opening thread and the rank's own thread share. It lives as long as the process,
/// because the first may go on after the other has given up.
class Opening {
 public:
  Opening(const NcclApi& api, const Device& device, const NcclPlace& place)
      : api_(api), module_(device.module()), gpu_(device.index()), place_(place) {}

  /// The opening thread's work.
  void run();
  /// The rank's own thread waits here.
  Result<OpenNccl> wait(Deadline deadline, const Waiting& waits);

 private:
  Status open();
  Status init();
  Status allocate(Device& device);
  Status warm_up(Device& device);
  Status step(const NcclCall& call);
  Status finish(Device& device, void* stream);
  Status checked(NcclResult result);
  std::string where() const;
  Status too_late() const;

  // These never change.
  const NcclApi api_;
  const ShoalCudaModule& module_;
  const int gpu_;
  const NcclPlace place_;
  // The opening thread's until done_.
  OpenNccl made_;
  Device::Memory large_;  // [kNcclMostFloats], of the warm-up
  // Both threads', under the mutex.
  std::mutex mutex_;
  NcclCall call_{"selecting its GPU"};  // what runs now
  Clock::time_point began_ = Clock::now();
  bool given_up_ = false;
  bool done_ = false;
  Status result_;
};

void Opening::run() {
  Status status = open();
  const std::lock_guard<std::mutex> lock(mutex_);
  result_ = std::move(status);
  done_ = true;
}

Status Opening::open() {
  // CUDA selects a device for each thread.
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, Device::open(module_, gpu_));
  SHOAL_RETURN_IF_ERROR(init());
  SHOAL_RETURN_IF_ERROR(allocate(*device));
  return warm_up(*device);
}

/// Notes the call that comes next. After the rank has given up, nothing more is begun.
Status Opening::step(const NcclCall& call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (given_up_) return Status::error(Code::kCancelled, "the rank has given up");
  call_ = call;
  began_ = Clock::now();
  return {};
}

/// The result of the call that was noted last.
Status Opening::checked(NcclResult result) {
  if (result == kNcclSuccess) return {};
  if (result == kNcclInProgress)
    return Status::error(Code::kFailedPrecondition,
                         "NCCL_COMM_BLOCKING=0, in the environment or in an nccl.conf, makes "
                         "communicators that start a thread for every collective; unset it");
  return nccl_failure(api_, result, call_);  // only this thread writes call_
}

Status Opening::init() {
  SHOAL_RETURN_IF_ERROR(step({"ncclCommInitRankConfig"}));
  NcclConfig config;
  config.blocking = 1;
  return checked(api_.comm_init_rank_config(&made_.comm, place_.world.size, place_.id,
                                            place_.world.rank, &config));
}

Status Opening::allocate(Device& device) {
  SHOAL_RETURN_IF_ERROR(step({"allocating its buffers"}));
  OpenNccl::Buffers& buffers = made_.buffers;
  SHOAL_ASSIGN_OR_RETURN(buffers.mine, device.allocate(kNcclPieceBytes));
  SHOAL_ASSIGN_OR_RETURN(buffers.gathered,
                         device.allocate(kNcclPieceBytes * static_cast<size_t>(place_.world.size)));
  if (place_.reproducible) return {};
  SHOAL_ASSIGN_OR_RETURN(buffers.zeros, device.allocate(kNcclPieceBytes));
  SHOAL_ASSIGN_OR_RETURN(large_, device.allocate(kNcclMostFloats * sizeof(float)));
  return {};
}

Status Opening::warm_up(Device& device) {
  SHOAL_ASSIGN_OR_RETURN(const Device::Stream stream, device.make_stream());
  const OpenNccl::Buffers& buffers = made_.buffers;
  for (const size_t bytes : {size_t{4}, size_t{8192}, kNcclPieceBytes}) {
    SHOAL_RETURN_IF_ERROR(step({"ncclAllGather", bytes}));
    SHOAL_RETURN_IF_ERROR(checked(api_.all_gather(buffers.mine.get(), buffers.gathered.get(), bytes,
                                                  kNcclInt8, made_.comm, stream.get())));
    SHOAL_RETURN_IF_ERROR(finish(device, stream.get()));
  }
  if (place_.reproducible) return {};
  void* const large = large_.get();
  for (const size_t count : {size_t{64}, size_t{16} << 10, size_t{256} << 10, kNcclMostFloats}) {
    SHOAL_RETURN_IF_ERROR(step({"ncclAllReduce", count * sizeof(float)}));
    SHOAL_RETURN_IF_ERROR(checked(
        api_.all_reduce(large, large, count, kNcclFloat32, kNcclSum, made_.comm, stream.get())));
    SHOAL_RETURN_IF_ERROR(finish(device, stream.get()));
  }
  large_.reset();
  return {};
}

/// Waits until the stream is done. The rank's own thread has the deadline.
Status Opening::finish(Device& device, void* stream) {
  SHOAL_ASSIGN_OR_RETURN(const Device::Event done, device.make_event());
  SHOAL_RETURN_IF_ERROR(device.record(done.get(), stream));
  const auto look = [this]() -> Status {
    NcclResult error = kNcclSuccess;
    const NcclResult asked = api_.comm_get_async_error(made_.comm, &error);
    return checked(asked == kNcclSuccess ? error : asked);
  };
  Status status = device.wait(done.get(), Deadline::infinite(), look);
  if (status.ok()) status = look();
  return status.while_doing(cat("warm up with ", call_.text()));
}

/// "ncclAllGather of 4 bytes has not ended after 500 ms", with NCCL's last words.
std::string Opening::where() const {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began_);
  const std::string words = nccl_last_words(api_);
  return cat(call_.text(), " has not ended after ", waited.count(), " ms",
             words.empty() ? "" : "; NCCL's last error: ", words);
}

Status Opening::too_late() const {
  return Status::error(Code::kDeadlineExceeded,
                       cat(where(), "; a peer may have failed, which NCCL does not notice"));
}

Result<OpenNccl> Opening::wait(Deadline deadline, const Waiting& waits) {
  Clock::time_point looked = Clock::now();
  for (;; std::this_thread::sleep_for(kNap)) {
    Status ended;
    std::string look;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (done_ && result_.ok()) return std::move(made_);
      if (done_) return result_;
      if (deadline.passed()) ended = too_late();
      if (waits && Clock::now() - looked >= kBetweenLooks) look = where();
    }
    if (ended.ok() && !look.empty()) {
      looked = Clock::now();
      ended = waits(look);
    }
    if (ended.ok()) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    given_up_ = true;
    return ended;
  }
}

}  // namespace

Result<OpenNccl> open_nccl_communicator(const NcclApi& api, const Device& device,
                                        const NcclPlace& place, int64_t timeout_ms,
                                        const Waiting& waits) {
  Opening* const opening = keep_for_process(std::make_unique<Opening>(api, device, place))->get();
  std::thread([opening] { opening->run(); }).detach();
  return opening->wait(Deadline::after_ms(timeout_ms), waits);
}

}  // namespace shoal
