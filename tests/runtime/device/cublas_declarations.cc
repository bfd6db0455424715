// Compares the declarations of runtime/device/cublas_api.h with the header of a cuBLASLt, when this
// is compiled. scripts/check-cublas does so with the headers of several releases.
#include <array>
#include <cstddef>
#include <cublasLt.h>
#include <type_traits>

#include "runtime/device/cublas_api.h"

namespace shoal {
namespace {

static_assert(sizeof(CublasStatus) == sizeof(cublasStatus_t));
static_assert(kCublasSuccess == CUBLAS_STATUS_SUCCESS &&
              kCublasAllocFailed == CUBLAS_STATUS_ALLOC_FAILED &&
              kCublasInvalidValue == CUBLAS_STATUS_INVALID_VALUE &&
              kCublasArchMismatch == CUBLAS_STATUS_ARCH_MISMATCH &&
              kCublasNotSupported == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(kCublasFloat == CUDA_R_32F && kCublasBf16 == CUDA_R_16BF);
static_assert(kCublasSum32F == CUBLAS_COMPUTE_32F && kCublasTransposed == CUBLAS_OP_T);
static_assert(int{kCublasTransA} == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(int{kCublasMostWorkspace} == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(int{kCublasAlignmentA} == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
              int{kCublasAlignmentB} == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES &&
              int{kCublasAlignmentC} == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES &&
              int{kCublasAlignmentD} == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(sizeof(CublasAlgorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(CublasChoice) == sizeof(cublasLtMatmulHeuristicResult_t) &&
              alignof(CublasChoice) == alignof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(CublasChoice, workspace_bytes) ==
                  offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) &&
              offsetof(CublasChoice, state) == offsetof(cublasLtMatmulHeuristicResult_t, state) &&
              offsetof(CublasChoice, waves) ==
                  offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));
static_assert(CUBLAS_VERSION ==
              CUBLAS_VER_MAJOR * kCublasMajor + CUBLAS_VER_MINOR * 100 + CUBLAS_VER_PATCH);

/// What a call passes: the sizes of the result and of each argument, negative if it is a pointer.
/// The types themselves differ, because pointers to the library's structs are void* here.
template <typename Function>
struct Passed;
template <typename Result, typename... Arguments>
struct Passed<Result (*)(Arguments...)> {
  template <typename T>
  static constexpr int of = std::is_pointer_v<T> ? -int{sizeof(T)} : int{sizeof(T)};
  static constexpr std::array<int, 1 + sizeof...(Arguments)> value = {of<Result>, of<Arguments>...};
};
template <typename Ours, typename Its>
constexpr bool kSameCall = Passed<Ours>::value == Passed<Its>::value;

static_assert(kSameCall<decltype(CublasApi::create), decltype(&cublasLtCreate)>);
static_assert(kSameCall<decltype(CublasApi::destroy), decltype(&cublasLtDestroy)>);
static_assert(kSameCall<decltype(CublasApi::get_version), decltype(&cublasLtGetVersion)>);
static_assert(kSameCall<decltype(CublasApi::status_text), decltype(&cublasLtGetStatusString)>);
static_assert(kSameCall<decltype(CublasApi::create_matmul), decltype(&cublasLtMatmulDescCreate)>);
static_assert(kSameCall<decltype(CublasApi::destroy_matmul), decltype(&cublasLtMatmulDescDestroy)>);
static_assert(
    kSameCall<decltype(CublasApi::set_matmul), decltype(&cublasLtMatmulDescSetAttribute)>);
static_assert(kSameCall<decltype(CublasApi::create_layout), decltype(&cublasLtMatrixLayoutCreate)>);
static_assert(
    kSameCall<decltype(CublasApi::destroy_layout), decltype(&cublasLtMatrixLayoutDestroy)>);
static_assert(
    kSameCall<decltype(CublasApi::create_preference), decltype(&cublasLtMatmulPreferenceCreate)>);
static_assert(
    kSameCall<decltype(CublasApi::destroy_preference), decltype(&cublasLtMatmulPreferenceDestroy)>);
static_assert(kSameCall<decltype(CublasApi::set_preference),
                        decltype(&cublasLtMatmulPreferenceSetAttribute)>);
static_assert(kSameCall<decltype(CublasApi::choose), decltype(&cublasLtMatmulAlgoGetHeuristic)>);
static_assert(kSameCall<decltype(CublasApi::matmul), decltype(&cublasLtMatmul)>);

}  // namespace
}  // namespace shoal
