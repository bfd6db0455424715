#include "models/library_products.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "runtime/base/cat.h"
#include "runtime/base/log.h"

namespace shoal {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr uint32_t kAlignment = 16;  // bytes, of every matrix

/// From how many rows on the library is used, by compute capability, the newest first, and its
/// workspace: NVIDIA recommends 32 MiB from Hopper on and 4 MiB before. The row of 90 was measured
/// on an H200 with cuBLASLt 13.1.0. Nobody has measured the others: 128 is a guess.
/// `scripts/gpu-check library` measures a device, and prints the row to enter here.
struct Crossover {
  int capability;  ///< and later ones up to the next row
  int32_t least_rows;
  int64_t workspace_bytes;
};
constexpr Crossover kCrossovers[] = {
    {120, 128, 32 * kMiB}, {100, 128, 32 * kMiB}, {90, 33, 32 * kMiB}, {0, 128, 4 * kMiB}};
// Products that are left unfolded have fewer rows (CudaLayers).
static_assert(std::all_of(std::begin(kCrossovers), std::end(kCrossovers), [](const Crossover& one) {
  return one.least_rows > kShoalMostUnfoldedRows;
}));

/// 90 of "9.0".
int number_of(const std::string& compute_capability) {
  int major = 0, minor = 0;
  const char* const end = compute_capability.data() + compute_capability.size();
  const auto [dot, error] = std::from_chars(compute_capability.data(), end, major);
  if (error == std::errc() && dot != end) std::from_chars(dot + 1, end, minor);
  return major * 10 + minor;
}

/// The columns of a matrix that is one product for the library; nullopt if it is not.
std::optional<int32_t> whole_columns(const DeviceMatrix& w) {
  int32_t end = 0;
  for (int32_t i = 0; i < w.leaves; ++i) {
    const ShoalLeaf& leaf = w.leaf[i];
    const bool is_last = i + 1 == w.leaves;
    if (leaf.begin != end || leaf.weights_at != end || leaf.contribution != (is_last ? 0 : -1))
      return std::nullopt;
    end = leaf.end;
  }
  return end == 0 ? std::nullopt : std::optional<int32_t>(end);
}

}  // namespace

std::string ProductLibrary::text() const {
  return is_used() ? cat("-cublas-", version, "-from-", least_rows) : "";
}

ProductLibrary product_library_for(const std::vector<std::string>& compute_capabilities,
                                   std::string path, std::string version) {
  int lowest = INT32_MAX;
  for (const std::string& one : compute_capabilities) lowest = std::min(lowest, number_of(one));
  const auto* const row =
      std::find_if(std::begin(kCrossovers), std::end(kCrossovers),
                   [&](const Crossover& at) { return at.capability <= lowest; });
  return {std::move(path), std::move(version), row->least_rows, row->workspace_bytes};
}

bool library_computes(const ProductLibrary& library, Dtype type, int32_t most_rows) {
  return library.is_used() && type != Dtype::kF16 && most_rows >= library.least_rows;
}

std::vector<int32_t> row_buckets(int32_t least, int32_t most) {
  constexpr int32_t kFinest = 16;
  std::vector<int32_t> buckets;
  for (int64_t rows = (least + kFinest - 1) / kFinest * kFinest; rows < most;) {
    buckets.push_back(static_cast<int32_t>(rows));
    int64_t step = kFinest;
    while (step * 8 <= rows) step *= 2;  // a quarter of the power of two below
    rows += step;
  }
  if (most >= least) buckets.push_back(most);
  return buckets;
}

struct LibraryProducts::Plan {
  int32_t rows;
  Object x, y;
  CublasAlgorithm algorithm;
};

struct LibraryProducts::Shape {
  int32_t outputs, columns;
  int64_t weight_stride, x_stride;
  int32_t most_rows;  ///< for which x and y have room
  int32_t type;       ///< of both factors, as the library names it
  Object weights;
  std::vector<Plan> plans;  ///< by rows, ascending

  const Plan* plan_for(int32_t rows) const {
    const auto plan = std::lower_bound(plans.begin(), plans.end(), rows,
                                       [](const Plan& one, int32_t r) { return one.rows < r; });
    return plan == plans.end() ? nullptr : &*plan;
  }
};

LibraryProducts::LibraryProducts(const ProductLibrary& library, Device& device)
    : library_(library), device_(device) {}
LibraryProducts::~LibraryProducts() = default;

Result<std::unique_ptr<LibraryProducts>> LibraryProducts::open(const ProductLibrary& library,
                                                               Device& device) {
  std::unique_ptr<LibraryProducts> products(new LibraryProducts(library, device));
  SHOAL_RETURN_IF_ERROR(products->prepare());
  return products;
}

/// What the library refuses it will refuse again. Whatever else fails is the device's: its memory,
/// or an error that stays with the process.
Status LibraryProducts::check(CublasStatus status, const char* what) const {
  if (status == kCublasSuccess) return {};
  const bool refused = status == kCublasInvalidValue || status == kCublasArchMismatch ||
                       status == kCublasNotSupported;
  const Code code = status == kCublasAllocFailed ? Code::kResourceExhausted
                    : refused                    ? Code::kFailedPrecondition
                                                 : Code::kInternal;
  return Status::error(
      code,
      cat("cuBLASLt ", library_.version, ", ", what, ": ", api_.status_text(status), " (", status,
          ")", refused ? "; without --reproducible off own kernels compute every product" : ""));
}

Status LibraryProducts::prepare() {
  SHOAL_ASSIGN_OR_RETURN(api_, open_cublas(library_.path));
  if (const std::string version = cublas_version_text(api_.version); version != library_.version) {
    return Status::error(Code::kFailedPrecondition, cat(library_.path, " is cuBLASLt ", version,
                                                        " now, and was ", library_.version));
  }
  CublasHandle handle = nullptr;
  SHOAL_RETURN_IF_ERROR(check(api_.create(&handle), "cublasLtCreate"));
  handle_ = Object(handle, api_.destroy);
  CublasMatmul matmul = nullptr;
  SHOAL_RETURN_IF_ERROR(
      check(api_.create_matmul(&matmul, kCublasSum32F, kCublasFloat), "describe a product"));
  matmul_ = Object(matmul, api_.destroy_matmul);
  SHOAL_RETURN_IF_ERROR(
      check(api_.set_matmul(matmul, kCublasTransA, &kCublasTransposed, sizeof kCublasTransposed),
            "describe a product"));
  SHOAL_RETURN_IF_ERROR(set_preference());
  SHOAL_ASSIGN_OR_RETURN(workspace_,
                         device_.allocate(static_cast<size_t>(library_.workspace_bytes)));
  return {};
}

Status LibraryProducts::set_preference() {
  CublasPreference preference = nullptr;
  SHOAL_RETURN_IF_ERROR(check(api_.create_preference(&preference), "describe a preference"));
  preference_ = Object(preference, api_.destroy_preference);
  const auto bytes = static_cast<uint64_t>(library_.workspace_bytes);
  SHOAL_RETURN_IF_ERROR(
      check(api_.set_preference(preference, kCublasMostWorkspace, &bytes, sizeof bytes),
            "bound its workspace"));
  for (const auto which :
       {kCublasAlignmentA, kCublasAlignmentB, kCublasAlignmentC, kCublasAlignmentD}) {
    SHOAL_RETURN_IF_ERROR(
        check(api_.set_preference(preference, which, &kAlignment, sizeof kAlignment),
              "describe an alignment"));
  }
  return {};
}

Result<LibraryProducts::Object> LibraryProducts::layout(int32_t type, int64_t rows, int64_t columns,
                                                        int64_t stride) const {
  CublasLayout made = nullptr;
  SHOAL_RETURN_IF_ERROR(check(api_.create_layout(&made, type, static_cast<uint64_t>(rows),
                                                 static_cast<uint64_t>(columns), stride),
                              "describe a matrix"));
  return Object(made, api_.destroy_layout);
}

/// The library's matrices are column-major, so a row-major one is its own transpose there. With
/// A = W transposed and B = x, its result [outputs][rows] is y as we have it. False: the library
/// has no algorithm for it.
Result<bool> LibraryProducts::add_plan(int32_t rows, Shape& shape) const {
  Plan plan{.rows = rows, .x = nullptr, .y = nullptr, .algorithm = {}};
  SHOAL_ASSIGN_OR_RETURN(plan.x, layout(shape.type, shape.columns, rows, shape.x_stride));
  SHOAL_ASSIGN_OR_RETURN(plan.y, layout(kCublasFloat, shape.outputs, rows, shape.outputs));
  CublasChoice choice{};
  int32_t found = 0;
  const CublasStatus status =
      api_.choose(handle_.get(), matmul_.get(), shape.weights.get(), plan.x.get(), plan.y.get(),
                  plan.y.get(), preference_.get(), 1, &choice, &found);
  if (status != 0 || found < 1 || choice.state != 0) return false;
  plan.algorithm = choice.algorithm;
  shape.plans.push_back(std::move(plan));
  return true;
}

Status LibraryProducts::plan(const DeviceMatrix& w, Dtype type, int64_t x_stride,
                             int32_t most_rows) {
  const std::optional<int32_t> columns = whole_columns(w);
  if (!library_computes(library_, type, most_rows) || !columns) return {};
  if (shape_of({&w, nullptr, x_stride, most_rows, most_rows, nullptr}) != nullptr) return {};
  Shape shape{.outputs = w.outputs,
              .columns = *columns,
              .weight_stride = w.stride,
              .x_stride = x_stride,
              .most_rows = most_rows,
              .type = type == Dtype::kBf16 ? kCublasBf16 : kCublasFloat,
              .weights = nullptr,
              .plans = {}};
  SHOAL_ASSIGN_OR_RETURN(shape.weights,
                         layout(shape.type, shape.columns, shape.outputs, shape.weight_stride));
  for (const int32_t rows : row_buckets(library_.least_rows, most_rows)) {
    SHOAL_ASSIGN_OR_RETURN(const bool added, add_plan(rows, shape));
    if (added) continue;
    log_warning(
        cat("cuBLASLt ", library_.version, " has no algorithm for a product of ", rows, " rows, ",
            shape.outputs, " outputs and ", shape.columns,
            " columns; the one for the next larger number of rows is used, or own kernels"));
  }
  shapes_.push_back(std::move(shape));
  return {};
}

Status LibraryProducts::plan_model(const DeviceWeights& weights, const DeviceBuffers& buffers,
                                   const StepRoom& room) {
  const Dtype type = weights.dtype;
  for (const auto& layer : weights.layers) {
    SHOAL_RETURN_IF_ERROR(plan(layer.qkv, type, buffers.hidden_stride, room.rows));
    SHOAL_RETURN_IF_ERROR(plan(layer.o, type, buffers.attention_stride, room.rows));
    SHOAL_RETURN_IF_ERROR(plan(layer.gate_up, type, buffers.hidden_stride, room.rows));
    SHOAL_RETURN_IF_ERROR(plan(layer.down, type, buffers.mlp_stride, room.rows));
  }
  return plan(weights.lm_head, type, buffers.hidden_stride, static_cast<int32_t>(room.logit_rows));
}

Status LibraryProducts::launch_plans(Call call, void* stream) {
  const Shape* const shape = shape_of(call);
  if (shape == nullptr) return {};
  const CublasAlgorithm* last = nullptr;
  for (const Plan& plan : shape->plans) {
    if (last != nullptr && std::memcmp(last, &plan.algorithm, sizeof plan.algorithm) == 0) continue;
    last = &plan.algorithm;
    call.rows = plan.rows;
    SHOAL_RETURN_IF_ERROR(multiply(call, stream));
  }
  return {};
}

Status LibraryProducts::launch_all(const DeviceWeights& weights, const DeviceBuffers& b,
                                   const StepRoom& room, void* stream) {
  const auto& layer = weights.layers.front();
  const auto logit_rows = static_cast<int32_t>(room.logit_rows);
  const Call calls[] = {
      {&layer.qkv, b.input, b.hidden_stride, 0, room.rows, b.qkv},
      {&layer.o, b.attention, b.attention_stride, 0, room.rows, b.partial},
      {&layer.gate_up, b.input, b.hidden_stride, 0, room.rows, b.gate_up},
      {&layer.down, b.mlp, b.mlp_stride, 0, room.rows, b.partial},
      {&weights.lm_head, b.input, b.hidden_stride, 0, logit_rows, b.logits},
  };
  for (const Call& call : calls) SHOAL_RETURN_IF_ERROR(launch_plans(call, stream));
  return {};
}

const LibraryProducts::Shape* LibraryProducts::shape_of(const Call& call) const {
  const DeviceMatrix& w = *call.w;
  const std::optional<int32_t> columns = whole_columns(w);
  const auto same = [&](const Shape& one) {
    return one.outputs == w.outputs && columns == one.columns && one.weight_stride == w.stride &&
           one.x_stride == call.x_stride && one.most_rows == call.most_rows;
  };
  const auto found = std::find_if(shapes_.begin(), shapes_.end(), same);
  return found == shapes_.end() ? nullptr : &*found;
}

bool LibraryProducts::computes(const Call& call) const {
  const Shape* const shape = call.rows < library_.least_rows ? nullptr : shape_of(call);
  return shape != nullptr && shape->plan_for(call.rows) != nullptr;
}

Status LibraryProducts::multiply(const Call& call, void* stream) {
  const Shape& shape = *shape_of(call);
  const Plan& plan = *shape.plan_for(call.rows);
  const float alpha = 1, beta = 0;
  return check(api_.matmul(handle_.get(), matmul_.get(), &alpha, call.w->weights.get(),
                           shape.weights.get(), call.x, plan.x.get(), &beta, call.y, plan.y.get(),
                           call.y, plan.y.get(), &plan.algorithm, workspace_.get(),
                           static_cast<size_t>(library_.workspace_bytes), stream),
               "cublasLtMatmul");
}

Result<std::unique_ptr<LibraryProducts>> products_of_library(const ProductLibrary& library,
                                                             Device& device,
                                                             const DeviceWeights& weights,
                                                             const DeviceBuffers& buffers,
                                                             const StepRoom& room) {
  if (!library.is_used()) return std::unique_ptr<LibraryProducts>();
  SHOAL_ASSIGN_OR_RETURN(auto products, LibraryProducts::open(library, device));
  SHOAL_RETURN_IF_ERROR(products->plan_model(weights, buffers, room));
  return products;
}

}  // namespace shoal
