#include "runtime/comm/device/host_collective.h"

#include <utility>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/comm/check_arguments.h"
#include "runtime/device/keep_for_process.h"

namespace shoal {
namespace {

class HostCollective final : public DeviceCollective {
 public:
  HostCollective(std::shared_ptr<Communicator> communicator, std::shared_ptr<Device> device,
                 Interrupted interrupted)
      : communicator_(std::move(communicator)),
        device_(std::move(device)),
        interrupted_(std::move(interrupted)) {}
  /// After a failure the device may still use the buffers, and freeing them would wait for it.
  ~HostCollective() override {
    if (!failed_) return;
    keep_for_process(std::move(in_));
    keep_for_process(std::move(out_));
  }
  Status open() {
    SHOAL_ASSIGN_OR_RETURN(done_, device_->make_event());
    return {};
  }

  const char* name() const override { return communicator_->name(); }
  World world() const override { return communicator_->world(); }
  Status check() override { return {}; }
  std::optional<Waited> waited() const override { return communicator_->waited(); }
  std::optional<std::vector<int>> missing() const override {
    return communicator_->wait_state().waits_for;
  }

  Status enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count,
                            void* stream, Deadline until) override {
    failed_ = true;  // until the end
    const size_t planes =
        static_cast<size_t>(plan.contributions.at(static_cast<size_t>(world().rank)));
    SHOAL_RETURN_IF_ERROR(
        fetch(own, planes * count * sizeof(float), count * sizeof(float), stream, until));
    SHOAL_RETURN_IF_ERROR(communicator_->all_reduce(plan, static_cast<const float*>(in_.get()),
                                                    static_cast<float*>(out_.get()), count));
    return copy_back(out, count * sizeof(float), stream);
  }

  Status enqueue_all_gather(const void* mine, void* all, size_t bytes_each, void* stream,
                            Deadline until) override {
    failed_ = true;  // until the end
    const size_t ranks = static_cast<size_t>(world().size);
    SHOAL_RETURN_IF_ERROR(fetch(mine, bytes_each, ranks * bytes_each, stream, until));
    const std::vector<size_t> sizes(ranks, bytes_each);
    auto* out = static_cast<std::byte*>(out_.get());
    for (int root = 0; root < world().size; ++root) {
      SHOAL_RETURN_IF_ERROR(communicator_->gather(
          root, {static_cast<const std::byte*>(in_.get()), bytes_each}, sizes, out));
    }
    return copy_back(all, ranks * bytes_each, stream);
  }

 private:
  /// Copies `bytes` to in_ on the host, and makes sure that out_ has room for `out_bytes`.
  Status fetch(const void* from, size_t bytes, size_t out_bytes, void* stream, Deadline until) {
    // The copy that the last call has enqueued may still read out_. Nothing writes to it before the
    // wait below, but it must not be freed.
    if (out_bytes > out_bytes_) SHOAL_RETURN_IF_ERROR(wait(stream, until));
    if (bytes > in_bytes_) {
      SHOAL_ASSIGN_OR_RETURN(in_, device_->allocate_pinned(bytes));
      in_bytes_ = bytes;
    }
    if (out_bytes > out_bytes_) {
      SHOAL_ASSIGN_OR_RETURN(out_, device_->allocate_pinned(out_bytes));
      out_bytes_ = out_bytes;
    }
    SHOAL_RETURN_IF_ERROR(device_->copy(in_.get(), from, bytes, stream));
    return wait(stream, until);
  }
  Status copy_back(void* to, size_t bytes, void* stream) {
    SHOAL_RETURN_IF_ERROR(device_->copy(to, out_.get(), bytes, stream));
    failed_ = false;
    return {};
  }
  Status wait(void* stream, Deadline until) {
    SHOAL_RETURN_IF_ERROR(device_->record(done_.get(), stream));
    return device_->wait(done_.get(), until, interrupted_);
  }

  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<Device> device_;
  const Interrupted interrupted_;
  Device::Event done_;
  Device::Memory in_, out_;  // pinned
  size_t in_bytes_ = 0;
  size_t out_bytes_ = 0;
  bool failed_ = false;
};

class SingleCollective final : public DeviceCollective {
 public:
  explicit SingleCollective(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  const char* name() const override { return "single"; }
  World world() const override { return {}; }
  Status check() override { return {}; }

  Status enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count,
                            void* stream, Deadline) override {
    SHOAL_RETURN_IF_ERROR(check_plan(plan, world()));
    if (plan.total_contributions() != 1)
      return Status::error(Code::kInvalidArgument,
                           cat("a group of one with ", plan.total_contributions(),
                               " contributions, which its rank has not folded"));
    return copy(out, own, count * sizeof(float), stream);
  }

  Status enqueue_all_gather(const void* mine, void* all, size_t bytes_each, void* stream,
                            Deadline) override {
    return copy(all, mine, bytes_each, stream);
  }

 private:
  Status copy(void* to, const void* from, size_t bytes, void* stream) {
    return to == from ? Status() : device_->copy(to, from, bytes, stream);
  }

  const std::shared_ptr<Device> device_;
};

}  // namespace

Result<std::unique_ptr<DeviceCollective>> open_host_collective(
    std::shared_ptr<Communicator> communicator, std::shared_ptr<Device> device,
    Interrupted interrupted) {
  auto collective = std::make_unique<HostCollective>(std::move(communicator), std::move(device),
                                                     std::move(interrupted));
  SHOAL_RETURN_IF_ERROR(collective->open());
  return std::unique_ptr<DeviceCollective>(std::move(collective));
}

std::unique_ptr<DeviceCollective> make_single_collective(std::shared_ptr<Device> device) {
  return std::make_unique<SingleCollective>(std::move(device));
}

}  // namespace shoal
