#include "models/library_products.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr uint32_t kAlignment = 16;  // bytes, of every matrix and of every row

/// From how many rows on the library is used, by compute capability, and its workspace: NVIDIA
/// recommends 32 MiB from Hopper on and 4 MiB before. The rows are those at which own kernels fill
/// the tensor cores' tiles twice. They are not measured: `scripts/gpu-check library` prints them.
struct Crossover {
  int capability;  ///< and later ones up to the next row
  int32_t least_rows;
  int64_t workspace_bytes;
};
constexpr Crossover kCrossovers[] = {
    {120, 16, 32 * kMiB}, {100, 16, 32 * kMiB}, {90, 16, 32 * kMiB}, {0, 16, 4 * kMiB}};

/// 90 of "9.0".
int number_of(const std::string& compute_capability) {
  int major = 0, minor = 0;
  const char* const end = compute_capability.data() + compute_capability.size();
  const auto [dot, error] = std::from_chars(compute_capability.data(), end, major);
  if (error == std::errc() && dot != end) std::from_chars(dot + 1, end, minor);
  return major * 10 + minor;
}

}  // namespace

std::string ProductLibrary::text() const {
  return is_used() ? cat("-cublas-", version, "-from-", least_rows) : "";
}

ProductLibrary product_library_for(const std::string& compute_capability, std::string path,
                                   std::string version) {
  const int capability = number_of(compute_capability);
  const auto* const row =
      std::find_if(std::begin(kCrossovers), std::end(kCrossovers),
                   [&](const Crossover& one) { return one.capability <= capability; });
  return {std::move(path), std::move(version), row->least_rows, row->workspace_bytes};
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
  CublasLayout x, y;
  CublasAlgorithm algorithm;
};

struct LibraryProducts::Shape {
  int32_t outputs, columns;
  int64_t weight_stride, x_stride;
  int32_t type;  ///< of both factors, as the library names it
  CublasLayout weights;
  std::vector<Plan> plans;  ///< by rows, ascending

  const Plan* plan_for(int32_t rows) const {
    const auto plan = std::lower_bound(plans.begin(), plans.end(), rows,
                                       [](const Plan& one, int32_t r) { return one.rows < r; });
    return plan == plans.end() ? nullptr : &*plan;
  }
};

LibraryProducts::LibraryProducts(const ProductLibrary& library, Device& device)
    : library_(library), device_(device) {}
/// The library's objects live as long as the process, as it does. A call that hangs could use them.
LibraryProducts::~LibraryProducts() = default;

Result<std::unique_ptr<LibraryProducts>> LibraryProducts::open(const ProductLibrary& library,
                                                               Device& device) {
  std::unique_ptr<LibraryProducts> products(new LibraryProducts(library, device));
  SHOAL_RETURN_IF_ERROR(products->prepare());
  return products;
}

Status LibraryProducts::check(CublasStatus status, const char* what) const {
  if (status == 0) return {};
  return Status::error(Code::kInternal,
                       cat("cuBLASLt ", cublas_version_text(api_.version), ", ", what, ": ",
                           api_.status_text(status), " (", status, ")"));
}

Status LibraryProducts::prepare() {
  SHOAL_ASSIGN_OR_RETURN(api_, open_cublas(library_.path));
  if (const std::string version = cublas_version_text(api_.version); version != library_.version) {
    return Status::error(Code::kFailedPrecondition, cat(library_.path, " is cuBLASLt ", version,
                                                        " now, and was ", library_.version));
  }
  SHOAL_RETURN_IF_ERROR(check(api_.create(&handle_), "cublasLtCreate"));
  SHOAL_RETURN_IF_ERROR(
      check(api_.create_matmul(&matmul_, kCublasSum32F, kCublasFloat), "describe a product"));
  SHOAL_RETURN_IF_ERROR(
      check(api_.set_matmul(matmul_, kCublasTransA, &kCublasTransposed, sizeof kCublasTransposed),
            "describe a product"));
  SHOAL_RETURN_IF_ERROR(check(api_.create_preference(&preference_), "describe a preference"));
  const auto bytes = static_cast<uint64_t>(library_.workspace_bytes);
  SHOAL_RETURN_IF_ERROR(
      check(api_.set_preference(preference_, kCublasMostWorkspace, &bytes, sizeof bytes),
            "bound its workspace"));
  for (const auto which :
       {kCublasAlignmentA, kCublasAlignmentB, kCublasAlignmentC, kCublasAlignmentD}) {
    SHOAL_RETURN_IF_ERROR(
        check(api_.set_preference(preference_, which, &kAlignment, sizeof kAlignment),
              "describe an alignment"));
  }
  SHOAL_ASSIGN_OR_RETURN(workspace_,
                         device_.allocate(static_cast<size_t>(library_.workspace_bytes)));
  return {};
}

Result<CublasLayout> LibraryProducts::layout(int32_t type, int64_t rows, int64_t columns,
                                             int64_t stride) const {
  CublasLayout made = nullptr;
  SHOAL_RETURN_IF_ERROR(check(api_.create_layout(&made, type, static_cast<uint64_t>(rows),
                                                 static_cast<uint64_t>(columns), stride),
                              "describe a matrix"));
  return made;
}

/// The library's matrices are column-major, so a row-major one is its own transpose there. With
/// A = W transposed and B = x, its result [outputs][rows] is y as we have it.
Result<LibraryProducts::Plan> LibraryProducts::make_plan(const Shape& shape, int32_t rows) {
  Plan plan{.rows = rows, .x = nullptr, .y = nullptr, .algorithm = {}};
  SHOAL_ASSIGN_OR_RETURN(plan.x, layout(shape.type, shape.columns, rows, shape.x_stride));
  SHOAL_ASSIGN_OR_RETURN(plan.y, layout(kCublasFloat, shape.outputs, rows, shape.outputs));
  CublasChoice choice{};
  int32_t found = 0;
  const Status status = check(api_.choose(handle_, matmul_, shape.weights, plan.x, plan.y, plan.y,
                                          preference_, 1, &choice, &found),
                              "choose an algorithm");
  const auto what = [&] {
    return cat("a product of ", rows, " rows, ", shape.outputs, " outputs and ", shape.columns,
               " columns");
  };
  if (!status.ok()) return status.while_doing(what());
  if (found < 1 || choice.state != 0) {
    return Status::error(Code::kInternal, cat("cuBLASLt ", cublas_version_text(api_.version),
                                              " has no algorithm for ", what()));
  }
  plan.algorithm = choice.algorithm;
  return plan;
}

Status LibraryProducts::plan(const DeviceMatrix& w, Dtype type, int64_t x_stride,
                             int32_t most_rows) {
  if (type == Dtype::kF16 || w.leaves != 1 || computes(w, x_stride, most_rows)) return {};
  Shape shape{.outputs = w.outputs,
              .columns = w.leaf[0].end - w.leaf[0].begin,
              .weight_stride = w.stride,
              .x_stride = x_stride,
              .type = type == Dtype::kBf16 ? kCublasBf16 : kCublasFloat,
              .weights = nullptr,
              .plans = {}};
  SHOAL_ASSIGN_OR_RETURN(shape.weights,
                         layout(shape.type, shape.columns, shape.outputs, shape.weight_stride));
  for (const int32_t rows : row_buckets(library_.least_rows, most_rows)) {
    SHOAL_ASSIGN_OR_RETURN(shape.plans.emplace_back(), make_plan(shape, rows));
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

Status LibraryProducts::launch_plans(const DeviceMatrix& w, const void* x, int64_t x_stride,
                                     float* y, void* stream) {
  const Shape* const shape = w.leaves == 1 ? shape_of(w, x_stride) : nullptr;
  if (shape == nullptr) return {};
  const CublasAlgorithm* last = nullptr;
  for (const Plan& plan : shape->plans) {
    if (last != nullptr && std::memcmp(last, &plan.algorithm, sizeof plan.algorithm) == 0) continue;
    last = &plan.algorithm;
    SHOAL_RETURN_IF_ERROR(multiply(w, x, x_stride, plan.rows, y, stream));
  }
  return {};
}

Status LibraryProducts::launch_all(const DeviceWeights& weights, const DeviceBuffers& b,
                                   void* stream) {
  const auto& layer = weights.layers.front();
  SHOAL_RETURN_IF_ERROR(launch_plans(layer.qkv, b.input, b.hidden_stride, b.qkv, stream));
  SHOAL_RETURN_IF_ERROR(launch_plans(layer.o, b.attention, b.attention_stride, b.partial, stream));
  SHOAL_RETURN_IF_ERROR(launch_plans(layer.gate_up, b.input, b.hidden_stride, b.gate_up, stream));
  SHOAL_RETURN_IF_ERROR(launch_plans(layer.down, b.mlp, b.mlp_stride, b.partial, stream));
  return launch_plans(weights.lm_head, b.input, b.hidden_stride, b.logits, stream);
}

const LibraryProducts::Shape* LibraryProducts::shape_of(const DeviceMatrix& w,
                                                        int64_t x_stride) const {
  const auto same = [&](const Shape& one) {
    return one.outputs == w.outputs && one.columns == w.leaf[0].end - w.leaf[0].begin &&
           one.weight_stride == w.stride && one.x_stride == x_stride;
  };
  const auto found = std::find_if(shapes_.begin(), shapes_.end(), same);
  return found == shapes_.end() || w.leaves != 1 ? nullptr : &*found;
}

bool LibraryProducts::computes(const DeviceMatrix& w, int64_t x_stride, int32_t rows) const {
  const Shape* const shape = rows < library_.least_rows ? nullptr : shape_of(w, x_stride);
  return shape != nullptr && shape->plan_for(rows) != nullptr;
}

Status LibraryProducts::multiply(const DeviceMatrix& w, const void* x, int64_t x_stride,
                                 int32_t rows, float* y, void* stream) {
  const Shape& shape = *shape_of(w, x_stride);
  const Plan& plan = *shape.plan_for(rows);
  const float alpha = 1, beta = 0;
  return check(api_.matmul(handle_, matmul_, &alpha, w.weights.get(), shape.weights, x, plan.x,
                           &beta, y, plan.y, y, plan.y, &plan.algorithm, workspace_.get(),
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
