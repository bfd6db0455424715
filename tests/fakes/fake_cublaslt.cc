// A FAKE of libcublasLt 13.1.1 for tests without a GPU. It offers what Shoal uses: products
// D = A^T . B of column-major matrices of bf16 or float32 into float32, with float32 sums in
// ascending order, which are not the bits of the real library. A product runs on the stream of the
// emulated device. What the real one would refuse is a status too: a stride below the rows, an
// algorithm that was made for another product, too little workspace, an address that is not aligned
// as promised. These variables set what it pretends to be:
//   FAKE_CUBLAS_VERSION=N   cublasLtGetVersion() (130101)
//   FAKE_CUBLAS_REFUSES=N   has no algorithm for products of N columns of B (none)
//   FAKE_CUBLAS_FAIL=FILE   the next product fails once there is this file, and takes it away
//   FAKE_CUBLAS_HANG=1      cublasLtCreate() never returns
//   FAKE_CUBLAS_OLD_DRIVER=NAME  cublasLtCreate() fails in a copy of this name, as with a driver
//                           that is older than the library wants (none)
//   FAKE_CUBLAS_TELL=FILE   gets a line for every algorithm that is chosen and every product
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <string>
#include <string_view>
#include <unistd.h>

namespace {

using Status = int32_t;
constexpr Status kSuccess = 0, kNotInitialized = 1, kInvalidValue = 7, kExecutionFailed = 13,
                 kNotSupported = 15;
constexpr int32_t kFloat = 0, kBf16 = 14, kSum32F = 68;

struct Matmul {
  int32_t sum = 0, transposed_a = 0;
};
struct Layout {
  int32_t type;
  uint64_t rows, columns;
  int64_t stride;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};
};
struct Algorithm {
  uint64_t rows, columns, depth, type, workspace, alignment[2], unused;
};
struct Choice {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int32_t reserved[4];
};
static_assert(sizeof(Algorithm) == 64);

const char* setting(const char* name) {
  return std::getenv(name);
}

void tell(const std::string& line) {
  const char* const path = setting("FAKE_CUBLAS_TELL");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return;
  std::fprintf(file, "%s\n", line.c_str());
  std::fclose(file);
}

/// The product that is to run on the stream.
struct Product {
  Layout a, b, d;
  const void *a_data, *b_data;
  float* d_data;
};

float element(const void* data, int32_t type, uint64_t at) {
  if (type == kFloat) return static_cast<const float*>(data)[at];
  return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(data)[at]} << 16);
}

void compute(void* work) {
  const std::unique_ptr<Product> p(static_cast<Product*>(work));
  for (uint64_t column = 0; column < p->d.columns; ++column) {
    for (uint64_t row = 0; row < p->d.rows; ++row) {
      float sum = 0;
      for (uint64_t k = 0; k < p->a.rows; ++k)
        sum += element(p->a_data, p->a.type, row * static_cast<uint64_t>(p->a.stride) + k) *
               element(p->b_data, p->b.type, column * static_cast<uint64_t>(p->b.stride) + k);
      p->d_data[column * static_cast<uint64_t>(p->d.stride) + row] = sum;
    }
  }
}

/// Enqueues on the emulated device's stream. False: no emulated module is loaded.
bool enqueue(void* stream, void* written, size_t bytes, Product* product) {
  void* const module = ::dlopen("libemulated_cuda_module.so", RTLD_NOW | RTLD_NOLOAD);
  if (module == nullptr) return false;
  auto* const call = reinterpret_cast<void (*)(void*, void*, size_t, void (*)(void*), void*)>(
      ::dlsym(module, "emulated_enqueue"));
  ::dlclose(module);
  if (call == nullptr) return false;
  call(stream, written, bytes, compute, product);
  return true;
}

/// Whether these matrices are a product that this fake computes.
bool is_product(const Matmul& matmul, const Layout& a, const Layout& b, const Layout& d) {
  const auto whole = [](const Layout& one) {
    return one.stride >= static_cast<int64_t>(one.rows) && one.rows > 0 && one.columns > 0;
  };
  return matmul.sum == kSum32F && matmul.transposed_a == 1 && a.type == b.type &&
         (a.type == kBf16 || a.type == kFloat) && d.type == kFloat && whole(a) && whole(b) &&
         whole(d) && a.rows == b.rows && a.columns == d.rows && b.columns == d.columns;
}

bool is_aligned(const void* data, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

}  // namespace

#define FAKE_API extern "C" __attribute__((visibility("default")))

FAKE_API Status cublasLtCreate(void** handle) {
  while (setting("FAKE_CUBLAS_HANG") != nullptr) ::pause();
  static int one;
  const char* const old = setting("FAKE_CUBLAS_OLD_DRIVER");
  Dl_info file = {};
  if (old != nullptr && ::dladdr(&one, &file) != 0 &&
      std::string_view(file.dli_fname).ends_with(old))
    return kNotInitialized;
  *handle = &one;
  return kSuccess;
}

FAKE_API Status cublasLtDestroy(void*) {
  return kSuccess;
}
FAKE_API Status cublasLtMatmulDescDestroy(Matmul* matmul) {
  delete matmul;
  return kSuccess;
}
FAKE_API Status cublasLtMatrixLayoutDestroy(Layout* layout) {
  delete layout;
  return kSuccess;
}
FAKE_API Status cublasLtMatmulPreferenceDestroy(Preference* preference) {
  delete preference;
  return kSuccess;
}

FAKE_API size_t cublasLtGetVersion() {
  const char* const version = setting("FAKE_CUBLAS_VERSION");
  return version == nullptr ? 130101 : std::strtoull(version, nullptr, 10);
}

FAKE_API const char* cublasLtGetStatusString(Status status) {
  return status == kInvalidValue      ? "an unsupported value or parameter was passed"
         : status == kNotInitialized  ? "the library was not initialized"
         : status == kNotSupported    ? "the requested functionality is not supported"
         : status == kExecutionFailed ? "the function failed to launch on the GPU"
                                      : "success";
}

FAKE_API Status cublasLtMatmulDescCreate(Matmul** matmul, int32_t sum, int32_t scale) {
  if (scale != kFloat) return kNotSupported;
  *matmul = new Matmul{.sum = sum};
  return kSuccess;
}

FAKE_API Status cublasLtMatmulDescSetAttribute(Matmul* matmul, int32_t attribute, const void* value,
                                               size_t bytes) {
  constexpr int32_t kTransA = 3;
  if (attribute != kTransA || bytes != sizeof matmul->transposed_a) return kInvalidValue;
  std::memcpy(&matmul->transposed_a, value, bytes);
  return kSuccess;
}

FAKE_API Status cublasLtMatrixLayoutCreate(Layout** layout, int32_t type, uint64_t rows,
                                           uint64_t columns, int64_t stride) {
  *layout = new Layout{type, rows, columns, stride};
  return kSuccess;
}

FAKE_API Status cublasLtMatmulPreferenceCreate(Preference** preference) {
  *preference = new Preference;
  return kSuccess;
}

FAKE_API Status cublasLtMatmulPreferenceSetAttribute(Preference* preference, int32_t attribute,
                                                     const void* value, size_t bytes) {
  if (attribute == 1 && bytes == sizeof preference->workspace) {
    std::memcpy(&preference->workspace, value, bytes);
  } else if (attribute >= 5 && attribute <= 8 && bytes == sizeof(uint32_t)) {
    std::memcpy(&preference->alignment[attribute - 5], value, bytes);
  } else {
    return kInvalidValue;
  }
  return kSuccess;
}

FAKE_API Status cublasLtMatmulAlgoGetHeuristic(void*, Matmul* matmul, Layout* a, Layout* b, Layout*,
                                               Layout* d, Preference* preference, int32_t,
                                               Choice* choices, int32_t* found) {
  *found = 0;
  if (!is_product(*matmul, *a, *b, *d)) return kInvalidValue;
  const char* const refuses = setting("FAKE_CUBLAS_REFUSES");
  if (refuses != nullptr && std::strtoull(refuses, nullptr, 10) == b->columns) return kNotSupported;
  tell("chooses for " + std::to_string(b->columns) + " rows");
  *choices = {};
  choices->algorithm = {a->columns,
                        b->columns,
                        a->rows,
                        static_cast<uint64_t>(a->type),
                        preference->workspace / 2,
                        {preference->alignment[0], preference->alignment[3]},
                        0};
  choices->workspace_bytes = preference->workspace / 2;
  *found = 1;
  return kSuccess;
}

FAKE_API Status cublasLtMatmul(void*, Matmul* matmul, const float* alpha, const void* a,
                               Layout* a_layout, const void* b, Layout* b_layout, const float* beta,
                               const void*, Layout*, float* d, Layout* d_layout,
                               const Algorithm* algorithm, void* workspace, size_t workspace_bytes,
                               void* stream) {
  const bool planned = algorithm != nullptr && algorithm->rows == a_layout->columns &&
                       algorithm->columns == b_layout->columns &&
                       algorithm->depth == a_layout->rows &&
                       algorithm->type == static_cast<uint64_t>(a_layout->type);
  if (!planned || *alpha != 1 || *beta != 0 || workspace == nullptr ||
      workspace_bytes < algorithm->workspace || !is_aligned(a, algorithm->alignment[0]) ||
      !is_aligned(b, algorithm->alignment[0]) || !is_aligned(d, algorithm->alignment[1]) ||
      !is_product(*matmul, *a_layout, *b_layout, *d_layout))
    return kInvalidValue;
  const char* const fails = setting("FAKE_CUBLAS_FAIL");
  if (fails != nullptr && ::unlink(fails) == 0) return kExecutionFailed;
  tell("computes " + std::to_string(b_layout->columns) + " rows");
  auto* const product = new Product{*a_layout, *b_layout, *d_layout, a, b, d};
  const size_t bytes = static_cast<size_t>(d_layout->stride) * d_layout->columns * sizeof(float);
  if (!enqueue(stream, d, bytes, product)) compute(product);
  return kSuccess;
}
