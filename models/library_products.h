#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/device_buffers.h"
#include "models/device_weights.h"
#include "models/layers.h"
#include "runtime/base/dtype.h"
#include "runtime/device/cublas_api.h"
#include "runtime/device/device.h"

namespace shoal {

/// Which products a library computes, and which library. The front decides it for all ranks.
struct ProductLibrary {
  std::string path;        ///< of libcublasLt; "": own kernels compute every product
  std::string version;     ///< as the front has found it; a rank that finds another one is refused
  int32_t least_rows = 0;  ///< products of fewer rows are computed by own kernels
  int64_t workspace_bytes = 0;  ///< of device memory, for the one stream
  bool is_used() const { return !path.empty(); }
  /// What it adds to the name of an arithmetic: its version decides the bits, and from how many
  /// rows on it is used. "" if it is not.
  std::string text() const;
};
template <typename Archive>
void fields(Archive& archive, ProductLibrary& m) {
  archive(m.path, m.version, m.least_rows, m.workspace_bytes);
}

/// What devices of a compute capability, such as "9.0", are given.
ProductLibrary product_library_for(const std::string& compute_capability, std::string path,
                                   std::string version);

/// The rows for which plans are made, ascending: a product of r rows takes the plan of the first
/// that is at least r, and computes that many. They grow by at most a quarter from 64 on, so at
/// most a fifth of a product is wasted; the last is `most`.
std::vector<int32_t> row_buckets(int32_t least, int32_t most);

/// The products that cuBLASLt computes: y = x . W^T for row-major x and W, with float32 sums in the
/// library's order. Everything that the library chooses is chosen in plan(): a step only calls
/// cublasLtMatmul, which is fit for a recorded graph.
class LibraryProducts {
 public:
  /// FAILED_PRECONDITION: the library is not there any more, or is another one. INTERNAL: it cannot
  /// be used on this device; the message has its own words.
  static Result<std::unique_ptr<LibraryProducts>> open(const ProductLibrary& library,
                                                       Device& device);
  ~LibraryProducts();

  /// Makes the plans for all products of a model whose steps have this room.
  Status plan_model(const DeviceWeights& weights, const DeviceBuffers& buffers,
                    const StepRoom& room);
  /// Enqueues one product with each algorithm, because CUDA loads a kernel when it is first
  /// launched. What it reads and writes is nobody's.
  Status launch_all(const DeviceWeights& weights, const DeviceBuffers& buffers, void* stream);
  /// Makes the plans for products with this matrix. x has rows of x_stride elements, and room for
  /// most_rows of them; y too. Matrices of one shape share their plans. Those of float16 get none,
  /// because the library has no product of float16 weights and float32 activations, and neither do
  /// those of more than one leaf.
  Status plan(const DeviceMatrix& w, Dtype type, int64_t x_stride, int32_t most_rows);

  /// Whether a product of so many rows has a plan.
  bool computes(const DeviceMatrix& w, int64_t x_stride, int32_t rows) const;

  /// Enqueues the product. y: [rows][outputs] and room for the rest of the plan's rows, whose
  /// values mean nothing. Precondition: computes().
  Status multiply(const DeviceMatrix& w, const void* x, int64_t x_stride, int32_t rows, float* y,
                  void* stream);

 private:
  struct Plan;   // of one number of rows
  struct Shape;  // of matrices and x: its plans

  LibraryProducts(const ProductLibrary& library, Device& device);
  Status prepare();
  Status check(CublasStatus status, const char* what) const;
  Result<CublasLayout> layout(int32_t type, int64_t rows, int64_t columns, int64_t stride) const;
  Result<Plan> make_plan(const Shape& shape, int32_t rows);
  Status launch_plans(const DeviceMatrix& w, const void* x, int64_t x_stride, float* y,
                      void* stream);
  const Shape* shape_of(const DeviceMatrix& w, int64_t x_stride) const;

  const ProductLibrary library_;
  Device& device_;
  CublasApi api_;
  CublasHandle handle_ = nullptr;
  CublasMatmul matmul_ = nullptr;  // the same for every plan
  CublasPreference preference_ = nullptr;
  Device::Memory workspace_;
  std::vector<Shape> shapes_;
};

/// The library's plans for all products of a model whose steps have this room. nullptr: no library
/// is used.
Result<std::unique_ptr<LibraryProducts>> products_of_library(const ProductLibrary& library,
                                                             Device& device,
                                                             const DeviceWeights& weights,
                                                             const DeviceBuffers& buffers,
                                                             const StepRoom& room);

}  // namespace shoal
