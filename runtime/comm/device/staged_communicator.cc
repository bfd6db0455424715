#include "runtime/comm/device/staged_communicator.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/cat.h"
#include "runtime/comm/check_arguments.h"
#include "runtime/comm/collective_tag.h"
#include "runtime/device/keep_for_process.h"

namespace shoal {
namespace {

/// A buffer on the host and one on the device for the same bytes. Both grow as needed.
struct Stage {
  Device::Memory pinned;
  Device::Memory device;
  size_t bytes = 0;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::shared_ptr<Device> device, std::unique_ptr<DeviceCollective> collective,
                     int64_t timeout_ms, Interrupted interrupted,
                     std::shared_ptr<Communicator> host)
      : device_(std::move(device)),
        collective_(std::move(collective)),
        timeout_ms_(timeout_ms),
        interrupted_(std::move(interrupted)),
        host_(std::move(host)) {}

  ~StagedCommunicator() override;

  Status prepare() {
    SHOAL_ASSIGN_OR_RETURN(stream_, device_->make_stream());
    SHOAL_ASSIGN_OR_RETURN(done_, device_->make_event());
    return {};
  }

  const char* name() const override { return collective_->name(); }
  World world() const override { return collective_->world(); }
  Status all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) override;
  Status gather(int root, std::span<const std::byte> mine, std::span<const size_t> sizes,
                std::byte* out) override;
  Status barrier() override;
  WaitState wait_state() const override;
  std::optional<Waited> waited() const override { return collective_->waited(); }
  DeviceCollective* on_devices() override { return collective_.get(); }

 private:
  Status begin(Op op, size_t amount);
  Status all_gather(const void* mine, size_t bytes, size_t bytes_each);
  Status reserve(Stage& stage, size_t bytes);
  Status wait();
  Status keep(Status status);

  const std::shared_ptr<Device> device_;
  const std::unique_ptr<DeviceCollective> collective_;
  const int64_t timeout_ms_;  // for each collective
  const Interrupted interrupted_;
  const std::shared_ptr<Communicator> host_;  // nullptr: everything goes over collective_
  Device::Stream stream_;
  Device::Event done_;
  Stage in_, out_;
  uint64_t collectives_ = 0;  // begun so far
  uint64_t tag_ = 0;
  Deadline until_ = Deadline::infinite();  // of the running collective
  // A call of collective_, which may also wait for peers, has begun and has not succeeded yet.
  bool waiting_ = false;
  Status failed_;  // the first error; every later call returns it
};

/// After a failure a kernel may still use the buffers, and freeing them would wait for it. So they
/// are kept until the process ends, which is soon.
StagedCommunicator::~StagedCommunicator() {
  if (failed_.ok()) return;
  keep_for_process(std::move(in_));
  keep_for_process(std::move(out_));
}

Status StagedCommunicator::begin(Op op, size_t amount) {
  if (!failed_.ok()) return failed_;
  tag_ = make_tag(op, amount);
  ++collectives_;
  until_ = Deadline::after_ms(timeout_ms_);
  return {};
}

Status StagedCommunicator::keep(Status status) {
  if (!status.ok() && failed_.ok()) {
    failed_ =
        status.while_doing(cat(name(), " collective ", collectives_, " (", tag_text(tag_), ")"));
  }
  return failed_;
}

Status StagedCommunicator::reserve(Stage& stage, size_t bytes) {
  if (stage.bytes >= bytes) return {};
  stage = {};  // frees the old buffers first: there may be no room for both
  const size_t wanted = std::max<size_t>(bytes, 64 * 1024);
  SHOAL_ASSIGN_OR_RETURN(stage.pinned, device_->allocate_pinned(wanted));
  SHOAL_ASSIGN_OR_RETURN(stage.device, device_->allocate(wanted));
  stage.bytes = wanted;
  return {};
}

Status StagedCommunicator::wait() {
  SHOAL_RETURN_IF_ERROR(device_->record(done_.get(), stream_.get()));
  const auto look = [this]() -> Status {
    SHOAL_RETURN_IF_ERROR(collective_->check());
    return interrupted_ ? interrupted_() : Status();
  };
  SHOAL_RETURN_IF_ERROR(device_->wait(done_.get(), until_, look));
  // Check again, because a kernel that has given up a peer ends like any other.
  SHOAL_RETURN_IF_ERROR(collective_->check());
  waiting_ = false;
  return {};
}

Status StagedCommunicator::all_reduce(const ReducePlan& plan, const float* own, float* out,
                                      size_t count) {
  SHOAL_RETURN_IF_ERROR(check_plan(plan, world()));
  SHOAL_RETURN_IF_ERROR(begin(Op::kAllReduce, count));
  const size_t bytes = count * sizeof(float);
  const size_t own_bytes =
      bytes * static_cast<size_t>(plan.contributions[static_cast<size_t>(world().rank)]);
  const auto run = [&]() -> Status {
    SHOAL_RETURN_IF_ERROR(reserve(in_, own_bytes));
    SHOAL_RETURN_IF_ERROR(reserve(out_, bytes));
    if (own_bytes > 0) std::memcpy(in_.pinned.get(), own, own_bytes);
    SHOAL_RETURN_IF_ERROR(
        device_->copy(in_.device.get(), in_.pinned.get(), own_bytes, stream_.get()));
    waiting_ = true;
    SHOAL_RETURN_IF_ERROR(collective_->enqueue_all_reduce(
        plan, static_cast<const float*>(in_.device.get()), static_cast<float*>(out_.device.get()),
        count, stream_.get(), until_));
    SHOAL_RETURN_IF_ERROR(
        device_->copy(out_.pinned.get(), out_.device.get(), bytes, stream_.get()));
    SHOAL_RETURN_IF_ERROR(wait());
    if (bytes > 0) std::memcpy(out, out_.pinned.get(), bytes);
    return {};
  };
  return keep(run());
}

/// Leaves [world size][bytes_each] in the host buffer of out_.
Status StagedCommunicator::all_gather(const void* mine, size_t bytes, size_t bytes_each) {
  const size_t all_bytes = bytes_each * static_cast<size_t>(world().size);
  SHOAL_RETURN_IF_ERROR(reserve(in_, bytes_each));
  SHOAL_RETURN_IF_ERROR(reserve(out_, all_bytes));
  if (bytes > 0) std::memcpy(in_.pinned.get(), mine, bytes);
  SHOAL_RETURN_IF_ERROR(
      device_->copy(in_.device.get(), in_.pinned.get(), bytes_each, stream_.get()));
  waiting_ = true;
  SHOAL_RETURN_IF_ERROR(collective_->enqueue_all_gather(in_.device.get(), out_.device.get(),
                                                        bytes_each, stream_.get(), until_));
  SHOAL_RETURN_IF_ERROR(
      device_->copy(out_.pinned.get(), out_.device.get(), all_bytes, stream_.get()));
  return wait();
}

Status StagedCommunicator::gather(int root, std::span<const std::byte> mine,
                                  std::span<const size_t> sizes, std::byte* out) {
  if (host_ != nullptr) return failed_.ok() ? host_->gather(root, mine, sizes, out) : failed_;
  SHOAL_RETURN_IF_ERROR(check_gather(root, mine.size(), sizes, world()));
  const size_t largest = *std::max_element(sizes.begin(), sizes.end());
  SHOAL_RETURN_IF_ERROR(begin(Op::kGather, largest));
  if (largest == 0) return {};  // all ranks know the sizes, so all return here
  SHOAL_RETURN_IF_ERROR(keep(all_gather(mine.data(), mine.size(), largest)));
  if (world().rank != root) return {};
  const auto* from = static_cast<const std::byte*>(out_.pinned.get());
  for (const size_t size : sizes) {
    out = std::copy(from, from + size, out);
    from += largest;
  }
  return {};
}

Status StagedCommunicator::barrier() {
  if (host_ != nullptr) return failed_.ok() ? host_->barrier() : failed_;
  SHOAL_RETURN_IF_ERROR(begin(Op::kBarrier, 0));
  const uint32_t here = 1;
  return keep(all_gather(&here, sizeof here, sizeof here));
}

WaitState StagedCommunicator::wait_state() const {
  if (host_ != nullptr && !waiting_) return host_->wait_state();
  const std::string what = collectives_ == 0 ? "" : tag_text(tag_);
  return waiting_ ? wait_state_in(*collective_, collectives_, what)
                  : WaitState{collectives_, what, {}, false};
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_staged_communicator(
    std::shared_ptr<Device> device, std::unique_ptr<DeviceCollective> collective,
    int64_t timeout_ms, Interrupted interrupted, std::shared_ptr<Communicator> host) {
  auto staged =
      std::make_unique<StagedCommunicator>(std::move(device), std::move(collective), timeout_ms,
                                           std::move(interrupted), std::move(host));
  SHOAL_RETURN_IF_ERROR(staged->prepare());
  return std::unique_ptr<Communicator>(std::move(staged));
}

}  // namespace shoal
