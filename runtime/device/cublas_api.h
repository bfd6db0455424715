#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

/// The part of cuBLASLt's C interface that is used here. It is declared again because the base
/// program is built without cublasLt.h and finds the library when it runs. A test compares these
/// declarations with the header if that is installed.

using CublasStatus = int32_t;             ///< cublasStatus_t; 0 is success
using CublasHandle = void*;               ///< cublasLtHandle_t
using CublasMatmul = void*;               ///< cublasLtMatmulDesc_t
using CublasLayout = void*;               ///< cublasLtMatrixLayout_t, column-major
using CublasPreference = void*;           ///< cublasLtMatmulPreference_t
constexpr int32_t kCublasFloat = 0;       ///< CUDA_R_32F
constexpr int32_t kCublasBf16 = 14;       ///< CUDA_R_16BF
constexpr int32_t kCublasSum32F = 68;     ///< CUBLAS_COMPUTE_32F
constexpr int32_t kCublasTransposed = 1;  ///< CUBLAS_OP_T

/// cublasStatus_t: the values that decide something here.
constexpr CublasStatus kCublasSuccess = 0, kCublasAllocFailed = 3, kCublasInvalidValue = 7,
                       kCublasArchMismatch = 8, kCublasNotSupported = 15;

/// cublasLtMatmulDescAttributes_t
enum CublasMatmulAttribute : int32_t { kCublasTransA = 3 };
/// cublasLtMatmulPreferenceAttributes_t
enum CublasPreferenceAttribute : int32_t {
  kCublasMostWorkspace = 1,
  kCublasAlignmentA = 5,
  kCublasAlignmentB = 6,
  kCublasAlignmentC = 7,
  kCublasAlignmentD = 8,
};

/// cublasLtMatmulAlgo_t
struct CublasAlgorithm {
  uint64_t data[8];
};
/// cublasLtMatmulHeuristicResult_t
struct CublasChoice {
  CublasAlgorithm algorithm;
  size_t workspace_bytes;
  CublasStatus state;
  float waves;
  int32_t reserved[4];
};

/// A loaded library's functions. stream is a cudaStream_t.
struct CublasApi {
  CublasStatus (*create)(CublasHandle* handle) = nullptr;
  CublasStatus (*destroy)(CublasHandle handle) = nullptr;
  size_t (*get_version)() = nullptr;
  const char* (*status_text)(CublasStatus status) = nullptr;
  CublasStatus (*create_matmul)(CublasMatmul* matmul, int32_t sum, int32_t scale) = nullptr;
  CublasStatus (*destroy_matmul)(CublasMatmul matmul) = nullptr;
  CublasStatus (*set_matmul)(CublasMatmul matmul, int32_t attribute, const void* value,
                             size_t bytes) = nullptr;
  CublasStatus (*create_layout)(CublasLayout* layout, int32_t type, uint64_t rows, uint64_t columns,
                                int64_t stride) = nullptr;
  CublasStatus (*destroy_layout)(CublasLayout layout) = nullptr;
  CublasStatus (*create_preference)(CublasPreference* preference) = nullptr;
  CublasStatus (*destroy_preference)(CublasPreference preference) = nullptr;
  CublasStatus (*set_preference)(CublasPreference preference, int32_t attribute, const void* value,
                                 size_t bytes) = nullptr;
  CublasStatus (*choose)(CublasHandle handle, CublasMatmul matmul, CublasLayout a, CublasLayout b,
                         CublasLayout c, CublasLayout d, CublasPreference preference,
                         int32_t wanted, CublasChoice* choices, int32_t* found) = nullptr;
  CublasStatus (*matmul)(CublasHandle handle, CublasMatmul matmul, const void* alpha, const void* a,
                         CublasLayout a_layout, const void* b, CublasLayout b_layout,
                         const void* beta, const void* c, CublasLayout c_layout, void* d,
                         CublasLayout d_layout, const CublasAlgorithm* algorithm, void* workspace,
                         size_t workspace_bytes, void* stream) = nullptr;

  int64_t version = 0;  ///< cublasLtGetVersion(), such as 130101
  std::string path;     ///< of the file that the loader has opened
};

/// The supported major versions, the newest first, and the names under which they are installed.
/// scripts/check-cublas compares the declarations above with their newest releases.
struct CublasRelease {
  int64_t major;
  const char* library;
};
constexpr CublasRelease kCublasReleases[] = {{13, "libcublasLt.so.13"}, {12, "libcublasLt.so.12"}};
constexpr int64_t kCublasMajor = 10'000;  ///< in cublasLtGetVersion(), for one major version

/// What to try if no library is named: kCublasReleases' names.
std::vector<std::string> cublas_library_names();

/// What a user can do if no library works: which one to install, or how to name one.
std::string cublas_remedy();

/// "13.1.1" of 130101.
std::string cublas_version_text(int64_t version);

/// Opens `library` (a path, or a name like "libcublasLt.so.13" for the loader's search) for the
/// rest of the process. Needs no driver and makes no context.
/// FAILED_PRECONDITION: it cannot be loaded (with the loader's message, and where a name was looked
/// for), a function is missing, or its major version is not one of kCublasReleases.
Result<CublasApi> open_cublas(const std::string& library);

}  // namespace shoal
