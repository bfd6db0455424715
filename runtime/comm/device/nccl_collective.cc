#include "runtime/comm/device/nccl_collective.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "runtime/base/cat.h"
#include "runtime/comm/check_arguments.h"
#include "runtime/comm/device/nccl_api.h"
#include "runtime/comm/device/nccl_opening.h"
#include "runtime/comm/tree_sum.h"
#include "runtime/device/keep_for_process.h"

namespace shoal {
namespace {

constexpr size_t kPieceFloats = kNcclPieceBytes / sizeof(float);

class NcclCollective final : public DeviceCollective {
 public:
  NcclCollective(std::shared_ptr<Device> device, World world, const NcclOptions& options)
      : device_(std::move(device)), world_(world), options_(options) {}
  ~NcclCollective() override;

  Status open(const Exchange& exchange, const Waiting& waits);

  const char* name() const override { return options_.name.c_str(); }
  World world() const override { return world_; }
  bool sums_by_plan() const override { return options_.reproducible; }
  Status enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count,
                            void* stream, Deadline until) override;
  Status enqueue_all_gather(const void* mine, void* all, size_t bytes_each, void* stream,
                            Deadline until) override;
  Status check() override;

 private:
  Result<NcclUniqueId> agree(const Exchange& exchange);
  Status compare(int rank, int version, const std::string& path) const;

  Status tree_piece(const ReducePlan& plan, const float* own, float* out, size_t count, Slice piece,
                    void* stream);
  Result<const float*> planes_of(const ReducePlan& plan, const float* own, size_t count,
                                 Slice piece, void* stream);
  Result<const float*> folded(const ReducePlan& plan, const float* own, size_t count, Slice piece,
                              void* stream);
  Status all_gather(const void* mine, void* all, size_t bytes, void* stream);
  Status all_reduce(const float* own, float* out, size_t count, void* stream);

  Status checked(NcclResult result, const NcclCall& call) const;
  float* floats(const Device::Memory& memory) const { return static_cast<float*>(memory.get()); }

  const std::shared_ptr<Device> device_;
  const World world_;
  const NcclOptions options_;
  NcclApi api_;
  NcclComm comm_ = nullptr;
  OpenNccl::Buffers buffers_;
};

/// ncclCommDestroy is never called, even after a success: it waits for the proxy's thread, which
/// waits for peers that hold connections, so a peer that has died would block this process forever.
/// The communicator lives as long as the process, and so do the buffers: a kernel or a thread of
/// NCCL may still use them, and cudaFree would wait for it.
NcclCollective::~NcclCollective() {
  keep_for_process(std::move(buffers_));
}

Status NcclCollective::checked(NcclResult result, const NcclCall& call) const {
  return result == kNcclSuccess ? Status() : nccl_failure(api_, result, call);
}

Status NcclCollective::check() {
  NcclResult error = kNcclSuccess;
  SHOAL_RETURN_IF_ERROR(
      checked(api_.comm_get_async_error(comm_, &error), {"ncclCommGetAsyncError"}));
  return checked(error, {"a collective"});
}

Status NcclCollective::open(const Exchange& exchange, const Waiting& waits) {
  SHOAL_ASSIGN_OR_RETURN(api_, load_nccl(options_.library));
  SHOAL_ASSIGN_OR_RETURN(const NcclUniqueId id, agree(exchange));
  SHOAL_ASSIGN_OR_RETURN(OpenNccl made,
                         open_nccl_communicator(api_, *device_, {id, world_, options_.reproducible},
                                                options_.timeout_ms, waits));
  comm_ = made.comm;
  buffers_ = std::move(made.buffers);
  return {};
}

/// One exchange: every rank sends "VERSION PATH\n", and rank 0 appends its unique id.
Result<NcclUniqueId> NcclCollective::agree(const Exchange& exchange) {
  NcclUniqueId id;
  std::string mine = cat(api_.version, " ", api_.path, "\n");
  if (world_.rank == 0) {
    const NcclResult result = api_.get_unique_id(&id);
    SHOAL_RETURN_IF_ERROR(checked(result, {"ncclGetUniqueId"}));
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

/// The call returns once the collective is on the stream. If it does not, because a peer has
/// failed, the front ends this process as it ends one whose kernel hangs.
Status NcclCollective::all_gather(const void* mine, void* all, size_t bytes, void* stream) {
  return checked(api_.all_gather(mine, all, bytes, kNcclInt8, comm_, stream),
                 {"ncclAllGather", bytes});
}

Status NcclCollective::all_reduce(const float* own, float* out, size_t count, void* stream) {
  return checked(api_.all_reduce(own, out, count, kNcclFloat32, kNcclSum, comm_, stream),
                 {"ncclAllReduce", count * sizeof(float)});
}

/// Long messages are gathered in pieces and then copied, as a piece of `all` is not contiguous.
Status NcclCollective::enqueue_all_gather(const void* mine, void* all, size_t bytes_each,
                                          void* stream, Deadline) {
  if (bytes_each == 0) return {};
  if (bytes_each <= kNcclPieceBytes) return all_gather(mine, all, bytes_each, stream);
  const auto* from = static_cast<const std::byte*>(mine);
  for (size_t at = 0; at < bytes_each; at += kNcclPieceBytes) {
    const size_t width = std::min(kNcclPieceBytes, bytes_each - at);
    SHOAL_RETURN_IF_ERROR(all_gather(from + at, buffers_.gathered.get(), width, stream));
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
                                          size_t count, void* stream, Deadline) {
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
  const size_t step = straight                ? kNcclMostFloats
                      : options_.reproducible ? kPieceFloats / static_cast<size_t>(*most) / 64 * 64
                                              : kPieceFloats;
  for (size_t begin = 0; begin < count; begin += step) {
    const Slice piece{begin, std::min(count, begin + step)};
    if (options_.reproducible) {
      SHOAL_RETURN_IF_ERROR(tree_piece(plan, own, out, count, piece, stream));
    } else {
      SHOAL_ASSIGN_OR_RETURN(const float* mine, folded(plan, own, count, piece, stream));
      SHOAL_RETURN_IF_ERROR(all_reduce(mine, out + begin, piece.size(), stream));
    }
  }
  return {};
}

/// Gathers all ranks' planes of the piece, then sums them by the plan's tree.
Status NcclCollective::tree_piece(const ReducePlan& plan, const float* own, float* out,
                                  size_t count, Slice piece, void* stream) {
  const int most = *std::max_element(plan.contributions.begin(), plan.contributions.end());
  const size_t rank_floats = static_cast<size_t>(most) * piece.size();
  SHOAL_ASSIGN_OR_RETURN(const float* mine, planes_of(plan, own, count, piece, stream));
  SHOAL_RETURN_IF_ERROR(
      all_gather(mine, buffers_.gathered.get(), rank_floats * sizeof(float), stream));
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
                                                               const Waiting& waits) {
  auto collective = std::make_unique<NcclCollective>(std::move(device), world, options);
  SHOAL_RETURN_IF_ERROR(collective->open(exchange, waits));
  return std::unique_ptr<DeviceCollective>(std::move(collective));
}

}  // namespace shoal
