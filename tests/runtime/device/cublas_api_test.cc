#include "runtime/device/cublas_api.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <string>

#ifdef SHOAL_TEST_CUBLAS_HEADER
#include <cublasLt.h>
#endif

namespace shoal {
namespace {

#ifdef SHOAL_TEST_CUBLAS_HEADER

// Compares our declarations with the installed header.
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
static_assert(sizeof(CublasHandle) == sizeof(cublasLtHandle_t) &&
              sizeof(CublasLayout) == sizeof(cublasLtMatrixLayout_t));

#endif

// The layout of 12 and 13 by itself, whether a header is installed or not.
TEST(CublasApiTest, ChoiceIsThatOf13) {
  EXPECT_EQ(sizeof(CublasAlgorithm), 64U);
  EXPECT_EQ(sizeof(CublasChoice), 96U);
  EXPECT_EQ(offsetof(CublasChoice, state), 72U);
}

TEST(CublasApiTest, VersionText) {
  EXPECT_EQ(cublas_version_text(130101), "13.1.1");
  EXPECT_EQ(cublas_version_text(120803), "12.8.3");
}

TEST(CublasApiTest, WhatIsThereIsOpened) {
  const Result<CublasApi> api = open_cublas(SHOAL_FAKE_CUBLAS);
  ASSERT_TRUE(api.ok()) << api.status().to_string();
  EXPECT_EQ(api->version, 130101);
  EXPECT_EQ(api->path, SHOAL_FAKE_CUBLAS);
}

TEST(CublasApiTest, OtherInterfacesAreRefused) {
  for (const char* version : {"110900", "140000"}) {
    ::setenv("FAKE_CUBLAS_VERSION", version, 1);
    const Result<CublasApi> api = open_cublas(SHOAL_FAKE_CUBLAS);
    ::unsetenv("FAKE_CUBLAS_VERSION");
    ASSERT_FALSE(api.ok());
    EXPECT_EQ(api.status().code(), Code::kFailedPrecondition);
    EXPECT_NE(api.status().message().find("has another interface"), std::string::npos);
  }
}

TEST(CublasApiTest, AMissingLibraryIsRefusedInTheLoadersWords) {
  const Result<CublasApi> api = open_cublas("/nonexistent/libcublasLt.so.13");
  ASSERT_FALSE(api.ok());
  const std::string text(api.status().message());
  EXPECT_NE(text.find("/nonexistent/libcublasLt.so.13: cannot open shared object file"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("--cublas-library"), std::string::npos) << text;
}

TEST(CublasApiTest, ALibraryThatIsAnotherIsRefused) {
  const Result<CublasApi> api = open_cublas("libm.so.6");
  ASSERT_FALSE(api.ok());
  EXPECT_NE(api.status().message().find("is no usable cuBLASLt"), std::string::npos);
}

#ifdef SHOAL_TEST_CUBLAS_LIBRARY

// Without a driver the real library can be opened, and says itself that it cannot work.
TEST(CublasApiTest, TheRealLibraryIsOpened) {
  const Result<CublasApi> api = open_cublas(SHOAL_TEST_CUBLAS_LIBRARY);
  ASSERT_TRUE(api.ok()) << api.status().to_string();
  EXPECT_GE(api->version, 120000);
  EXPECT_STRNE(api->status_text(1), "");
}

#endif

}  // namespace
}  // namespace shoal
