#include "runtime/comm/device/cuda_ipc_collective.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "runtime/base/cat.h"
#include "runtime/base/counted.h"
#include "runtime/comm/check_arguments.h"
#include "runtime/comm/collective_tag.h"
#include "runtime/device/keep_for_process.h"

namespace shoal {
namespace {

// The part of an area that pushes use: a whole number of 2 MiB pages.
constexpr int64_t kPushBytes = int64_t{8} << 20;
// The part of an area that all_gathers use. It is divided among the ranks.
constexpr size_t kGatherBytes = size_t{2} << 20;
constexpr int64_t kLeastSpinMs = 2'000;
// A hundred years, which still fit into 64 bits of nanoseconds.
constexpr int64_t kMostSpinMs = int64_t{100} * 365 * 24 * 3600 * 1000;

/// What the ranks send each other.
struct Offer {
  uint8_t handle[kShoalIpcHandleBytes];
  int64_t push_bytes;
  uint64_t gather_bytes;
};

/// What the pushes of a collective show of its kind, its size and its number: 16 bits, which two
/// different collectives share once in 65,536 times.
uint16_t mark_of(uint64_t tag, uint64_t number) {
  return static_cast<uint16_t>((tag ^ number * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u >> 48);
}

/// A collective, as the host tells its pushes (ShoalPushAllReduce::name).
struct CollectiveName {
  uint64_t number;
  uint64_t tag;
};
static_assert(sizeof(CollectiveName) == kShoalNameWords * sizeof(uint32_t));
constexpr size_t kFailureWords = 1 + kShoalNameWords;

std::string collective_text(const CollectiveName& name) {
  return cat("cuda-ipc collective ", name.number, " (", tag_text(name.tag), ")");
}

struct Memory {
  Device::Memory area;     ///< this rank's
  Device::Memory scratch;  ///< for barriers: one float in, one out
  Device::Memory failure;  ///< words that the kernels write and the host reads
};

/// The host does not wait here, so calls do not need their deadline: the kernels wait, and have
/// a limit of their own.
class CudaIpcCollective final : public DeviceCollective {
 public:
  CudaIpcCollective(std::shared_ptr<Device> device, World world, int64_t timeout_ms)
      : device_(std::move(device)), world_(world) {
    // A kernel gives up somewhat before the host does, so that the error that is reported is the
    // kernel's, which names a rank.
    const int64_t spin_ms = std::clamp(timeout_ms - timeout_ms / 8, kLeastSpinMs, kMostSpinMs);
    spin_ns_ = static_cast<uint64_t>(spin_ms) * 1'000'000;
  }
  ~CudaIpcCollective() override;

  Status open(const Exchange& exchange);

  const char* name() const override { return "cuda-ipc"; }
  World world() const override { return world_; }
  Status enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count,
                            void* stream, Deadline until) override;
  Status enqueue_all_gather(const void* mine, void* all, size_t bytes_each, void* stream,
                            Deadline until) override;
  Status check() override;
  std::optional<std::vector<int>> missing() const override;

 private:
  /// A word of ShoalPushAllReduce::failure, which a kernel may write meanwhile.
  uint32_t failure_word(size_t index) const {
    return std::atomic_ref(static_cast<uint32_t*>(memory_.failure.get())[index])
        .load(std::memory_order_acquire);
  }
  /// 0, or which rank a kernel has given up.
  uint32_t given_up() const { return failure_word(0); }
  /// In which collective it was. Others have mostly been enqueued since.
  CollectiveName failed_one() const;
  static int rank_of(uint32_t failure) { return static_cast<int>(failure % kShoalOtherMark) - 1; }
  Status import_areas(const std::vector<std::string>& offers);
  Status push(const ReducePlan& plan, const float* own, int64_t pitch, float* out, int64_t count,
              void* stream);
  Status enqueue_barrier(void* stream);
  std::byte* gather_part(int rank) const {
    return static_cast<std::byte*>(areas_[rank]) + kPushBytes;
  }

  const std::shared_ptr<Device> device_;
  const World world_;
  uint64_t spin_ns_ = 0;
  Memory memory_;
  void* areas_[kShoalMostRanks] = {};  // by rank; addresses in this process
  ReducePlan barrier_plan_;
  uint64_t collectives_ = 0;
  uint64_t tag_ = 0;
};

/// However the collective ends, this rank's memory is not freed and the peers' memory is not
/// unmapped. After a failure a kernel may still spin on both until its time is over: unmapping
/// would make the device fault, and cudaFree would wait for the kernel. After a success a peer may
/// still have this area mapped, and CUDA forbids freeing memory that another process has open. Only
/// a rendezvous could rule that out, and it would wait for ranks that are gone. The driver cleans
/// up when the process ends.
CudaIpcCollective::~CudaIpcCollective() {
  keep_for_process(std::move(memory_));
}

Status CudaIpcCollective::open(const Exchange& exchange) {
  SHOAL_ASSIGN_OR_RETURN(memory_.area,
                         device_->allocate(static_cast<size_t>(kPushBytes) + kGatherBytes));
  SHOAL_ASSIGN_OR_RETURN(memory_.scratch, device_->allocate(2 * sizeof(float)));
  SHOAL_ASSIGN_OR_RETURN(memory_.failure,
                         device_->allocate_pinned(kFailureWords * sizeof(uint32_t)));
  std::memset(memory_.failure.get(), 0, kFailureWords * sizeof(uint32_t));
  areas_[world_.rank] = memory_.area.get();
  barrier_plan_.contributions.assign(static_cast<size_t>(world_.size), 0);
  barrier_plan_.contributions[0] = 1;
  barrier_plan_.finish.merges = {0};

  Offer mine{};
  mine.push_bytes = kPushBytes;
  mine.gather_bytes = kGatherBytes;
  SHOAL_RETURN_IF_ERROR(device_->check(
      device_->module().export_memory(memory_.area.get(), mine.handle), "cudaIpcGetMemHandle"));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> offers,
                         exchange(std::string(reinterpret_cast<const char*>(&mine), sizeof mine)));
  return import_areas(offers);
}

Status CudaIpcCollective::import_areas(const std::vector<std::string>& offers) {
  if (offers.size() != static_cast<size_t>(world_.size)) {
    return Status::error(Code::kInternal, cat("cuda-ipc: ", counted(offers.size(), "offer"),
                                              " for ", counted(world_.size, "rank")));
  }
  for (int rank = 0; rank < world_.size; ++rank) {
    if (rank == world_.rank) continue;
    const std::string& text = offers[static_cast<size_t>(rank)];
    Offer theirs{};
    if (text.size() == sizeof theirs) std::memcpy(&theirs, text.data(), sizeof theirs);
    if (theirs.push_bytes != kPushBytes || theirs.gather_bytes != kGatherBytes) {
      return Status::error(
          Code::kFailedPrecondition,
          cat("cuda-ipc: rank ", rank, " offers another area than this rank: another build?"));
    }
    const Status opened = device_->check(
        device_->module().import_memory(theirs.handle, &areas_[rank]), "cudaIpcOpenMemHandle");
    if (!opened.ok()) return opened.while_doing(cat("mapping the memory of rank ", rank));
  }
  return {};
}

Status CudaIpcCollective::enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out,
                                             size_t count, void* stream, Deadline) {
  SHOAL_RETURN_IF_ERROR(check_plan(plan, world_));
  SHOAL_RETURN_IF_ERROR(check());
  ++collectives_;
  tag_ = make_tag(Op::kAllReduce, count);
  const int most = *std::max_element(plan.contributions.begin(), plan.contributions.end());
  const int64_t widest = device_->module().push_floats(kPushBytes, world_.size, most);
  if (plan.total_contributions() > kShoalMostPlanes || widest <= 0) {
    return Status::error(
        Code::kInvalidArgument,
        cat(collective_text({collectives_, tag_}), ": ", plan.total_contributions(),
            " contributions are more than a push can sum"));
  }
  const auto floats = static_cast<int64_t>(count);
  for (int64_t at = 0; at < floats; at += widest) {
    SHOAL_RETURN_IF_ERROR(
        push(plan, own + at, floats, out + at, std::min(widest, floats - at), stream));
  }
  return {};
}

Status CudaIpcCollective::push(const ReducePlan& plan, const float* own, int64_t pitch, float* out,
                               int64_t count, void* stream) {
  ShoalPushAllReduce args{};
  args.rank = world_.rank;
  args.world_size = world_.size;
  std::copy(plan.contributions.begin(), plan.contributions.end(), args.contributions);
  std::copy(std::begin(areas_), std::end(areas_), args.areas);
  args.area_bytes = kPushBytes;
  args.own = own;
  args.pitch = pitch;
  args.sum.values = plan.total_contributions();
  std::transform(plan.finish.merges.begin(), plan.finish.merges.end(), args.sum.merges,
                 [](int merges) { return static_cast<uint8_t>(merges); });
  args.sum.out = out;
  args.sum.count = count;
  args.spin_ns = spin_ns_;
  args.mark = mark_of(tag_, collectives_);
  const CollectiveName name{collectives_, tag_};
  std::memcpy(args.name, &name, sizeof name);
  args.failure = static_cast<uint32_t*>(memory_.failure.get());
  return device_->check(device_->module().push_all_reduce(&args, stream), "push all_reduce");
}

/// Pushes one float. When a peer's float has arrived, the peer has done everything that it enqueued
/// before.
Status CudaIpcCollective::enqueue_barrier(void* stream) {
  auto* scratch = static_cast<float*>(memory_.scratch.get());
  return push(barrier_plan_, scratch, 1, scratch + 1, 1, stream);
}

/// Copies into the peers' areas, waits at a barrier, copies out of this rank's area, and waits at
/// another barrier before the next piece. As with an all_reduce, the steps are counted on the
/// device. The mark comes from the host, so that a graph may be replayed only if all ranks replay
/// the one that they captured together.
Status CudaIpcCollective::enqueue_all_gather(const void* mine, void* all, size_t bytes_each,
                                             void* stream, Deadline) {
  SHOAL_RETURN_IF_ERROR(check());
  ++collectives_;
  tag_ = make_tag(Op::kGather, bytes_each);
  const auto* from = static_cast<const std::byte*>(mine);
  auto* to = static_cast<std::byte*>(all);
  const size_t widest = kGatherBytes / static_cast<size_t>(world_.size) / 256 * 256;
  for (size_t at = 0; at < bytes_each; at += widest) {
    const size_t width = std::min(widest, bytes_each - at);
    for (int rank = 0; rank < world_.size; ++rank) {
      std::byte* slot = gather_part(rank) + static_cast<size_t>(world_.rank) * widest;
      SHOAL_RETURN_IF_ERROR(device_->copy(slot, from + at, width, stream));
    }
    SHOAL_RETURN_IF_ERROR(enqueue_barrier(stream));
    for (int rank = 0; rank < world_.size; ++rank) {
      const std::byte* slot = gather_part(world_.rank) + static_cast<size_t>(rank) * widest;
      SHOAL_RETURN_IF_ERROR(
          device_->copy(to + static_cast<size_t>(rank) * bytes_each + at, slot, width, stream));
    }
    SHOAL_RETURN_IF_ERROR(enqueue_barrier(stream));
  }
  return {};
}

CollectiveName CudaIpcCollective::failed_one() const {
  uint32_t words[kShoalNameWords];
  for (size_t i = 0; i < kShoalNameWords; ++i) words[i] = failure_word(1 + i);
  CollectiveName name;
  std::memcpy(&name, words, sizeof name);
  return name;
}

Status CudaIpcCollective::check() {
  const uint32_t failure = given_up();
  if (failure == 0) return {};
  const std::string where = collective_text(failed_one());
  if (failure > kShoalOtherMark)
    return Status::error(Code::kInternal,
                         cat(where, ": rank ", rank_of(failure), " is in another collective"))
        .blamed_on(Fault::kTransport);
  return Status::error(
      Code::kDeadlineExceeded,
      cat(where, ": the kernel waited ", spin_ns_ / 1'000'000, " ms for rank ", rank_of(failure)));
}

std::optional<std::vector<int>> CudaIpcCollective::missing() const {
  const uint32_t failure = given_up();
  if (failure == 0) return std::nullopt;
  return std::vector<int>{rank_of(failure)};
}

}  // namespace

Result<std::unique_ptr<DeviceCollective>> open_cuda_ipc_collective(std::shared_ptr<Device> device,
                                                                   World world,
                                                                   const Exchange& exchange,
                                                                   int64_t timeout_ms) {
  if (world.size < 1 || world.size > kShoalMostRanks || world.rank < 0 ||
      world.rank >= world.size) {
    return Status::error(Code::kInvalidArgument,
                         cat("cuda-ipc: rank ", world.rank, " of ", world.size, "; at most ",
                             static_cast<int>(kShoalMostRanks), " ranks"));
  }
  auto collective = std::make_unique<CudaIpcCollective>(std::move(device), world, timeout_ms);
  SHOAL_RETURN_IF_ERROR(collective->open(exchange));
  return std::unique_ptr<DeviceCollective>(std::move(collective));
}

}  // namespace shoal
