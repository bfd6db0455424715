#include "bench/gpu/tcp_collective.h"

#include <utility>
#include <vector>

namespace shoal::gpu {
namespace {

class TcpCollective final : public DeviceCollective {
 public:
  TcpCollective(std::shared_ptr<Device> device, std::unique_ptr<Communicator> communicator)
      : device_(std::move(device)), communicator_(std::move(communicator)) {}
  Status open() {
    SHOAL_ASSIGN_OR_RETURN(done_, device_->make_event());
    return {};
  }

  const char* name() const override { return communicator_->name(); }
  World world() const override { return communicator_->world(); }
  Status check() override { return {}; }
  std::vector<int> missing() const override { return communicator_->wait_state().waits_for; }

  Status enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count,
                            void* stream, Deadline until) override {
    const size_t planes =
        static_cast<size_t>(plan.contributions.at(static_cast<size_t>(world().rank)));
    SHOAL_RETURN_IF_ERROR(
        fetch(own, planes * count * sizeof(float), count * sizeof(float), stream, until));
    SHOAL_RETURN_IF_ERROR(communicator_->all_reduce(plan, static_cast<const float*>(in_.get()),
                                                    static_cast<float*>(out_.get()), count));
    return device_->copy(out, out_.get(), count * sizeof(float), stream);
  }

  Status enqueue_all_gather(const void* mine, void* all, size_t bytes_each, void* stream,
                            Deadline until) override {
    const size_t ranks = static_cast<size_t>(world().size);
    SHOAL_RETURN_IF_ERROR(fetch(mine, bytes_each, ranks * bytes_each, stream, until));
    const std::vector<size_t> sizes(ranks, bytes_each);
    auto* out = static_cast<std::byte*>(out_.get());
    for (int root = 0; root < world().size; ++root) {
      SHOAL_RETURN_IF_ERROR(communicator_->gather(
          root, {static_cast<const std::byte*>(in_.get()), bytes_each}, sizes, out));
    }
    return device_->copy(all, out, ranks * bytes_each, stream);
  }

 private:
  /// Copies `bytes` to in_ on the host, and makes sure that out_ has room for `out_bytes`.
  Status fetch(const void* from, size_t bytes, size_t out_bytes, void* stream, Deadline until) {
    // The copy that the last call has enqueued may still be reading out_.
    SHOAL_RETURN_IF_ERROR(wait(stream, until));
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
  Status wait(void* stream, Deadline until) {
    SHOAL_RETURN_IF_ERROR(device_->record(done_.get(), stream));
    return device_->wait(done_.get(), until, {});
  }

  const std::shared_ptr<Device> device_;
  const std::unique_ptr<Communicator> communicator_;
  Device::Event done_;
  Device::Memory in_, out_;  // pinned
  size_t in_bytes_ = 0;
  size_t out_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<DeviceCollective>> open_tcp_collective(
    std::shared_ptr<Device> device, std::unique_ptr<Communicator> communicator) {
  auto collective = std::make_unique<TcpCollective>(std::move(device), std::move(communicator));
  SHOAL_RETURN_IF_ERROR(collective->open());
  return std::unique_ptr<DeviceCollective>(std::move(collective));
}

}  // namespace shoal::gpu
