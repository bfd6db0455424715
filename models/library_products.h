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

/// What devices of these compute capabilities, such as "9.0", are given: that of the lowest.
ProductLibrary product_library_for(const std::vector<std::string>& compute_capabilities,
                                   std::string path, std::string version);

/// Whether the library computes any product of such a model. The library has no products of float16
/// weights with float32 activations.
bool library_computes(const ProductLibrary& library, Dtype type, int32_t most_rows);

/// The rows for which plans are made, ascending: a product of r rows takes the plan of the first
/// that is at least r, and computes that many. They grow by at most a quarter from 64 on, so at
/// most a fifth of a product is wasted; the last is `most`.
std::vector<int32_t> row_buckets(int32_t least, int32_t most);

/// The products that cuBLASLt computes: y = x . W^T for row-major x and W, with float32 sums in the
/// library's order. It gets those matrices whose leaves follow each other without padding and add
/// up to one contribution, and takes all columns as one leaf. Everything that the library chooses
/// is chosen in plan(): a step only calls cublasLtMatmul, which is fit for a recorded graph.
class LibraryProducts {
 public:
  /// FAILED_PRECONDITION: the library is not there any more, is another one, or cannot be used on
  /// this device; the message has its own words.
  static Result<std::unique_ptr<LibraryProducts>> open(const ProductLibrary& library,
                                                       Device& device);
  ~LibraryProducts();

  /// Makes the plans for all products of a model whose steps have this room.
  Status plan_model(const DeviceWeights& weights, const DeviceBuffers& buffers,
                    const StepRoom& room);
  /// Enqueues one product with each algorithm, because CUDA loads a kernel when it is first
  /// launched. What it reads and writes is nobody's.
  Status launch_all(const DeviceWeights& weights, const DeviceBuffers& buffers,
                    const StepRoom& room, void* stream);
  /// Makes the plans for products with this matrix. x has rows of x_stride elements, and room for
  /// most_rows of them; y too. Matrices of one shape share their plans. A number of rows for which
  /// the library has no algorithm gets no plan.
  Status plan(const DeviceMatrix& w, Dtype type, int64_t x_stride, int32_t most_rows);

  /// One call. x: [rows][x_stride]; y: [rows][outputs]; both have room for most_rows, as planned,
  /// and the values in y after `rows` mean nothing.
  struct Call {
    const DeviceMatrix* w;
    const void* x;
    int64_t x_stride;
    int32_t rows;
    int32_t most_rows;
    float* y;
  };
  /// Whether it has a plan.
  bool computes(const Call& call) const;
  /// Enqueues the product. Precondition: computes().
  Status multiply(const Call& call, void* stream);

 private:
  using Object = std::shared_ptr<void>;  // of the library
  struct Plan;                           // of one number of rows
  struct Shape;                          // of matrices, x and y: its plans

  LibraryProducts(const ProductLibrary& library, Device& device);
  Status prepare();
  Status set_preference();
  Status check(CublasStatus status, const char* what) const;
  Result<Object> layout(int32_t type, int64_t rows, int64_t columns, int64_t stride) const;
  Result<bool> add_plan(int32_t rows, Shape& shape) const;
  Status launch_plans(Call call, void* stream);
  const Shape* shape_of(const Call& call) const;

  const ProductLibrary library_;
  Device& device_;
  CublasApi api_;
  Object handle_;
  Object matmul_;  // the same for every plan
  Object preference_;
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
