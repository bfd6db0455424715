#include "runtime/device/cublas_api.h"

#include <cstdio>
#include <cstdlib>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/base/split.h"

namespace shoal {
namespace {

/// The paths in a variable, which scripts/check-cublas sets.
std::vector<std::string> paths_in(const char* variable) {
  const char* const text = std::getenv(variable);
  std::vector<std::string> paths;
  for (const std::string_view path : split(text == nullptr ? "" : text, ':'))
    if (!path.empty()) paths.emplace_back(path);
  return paths;
}

std::vector<std::string> real_libraries() {
  std::vector<std::string> paths = paths_in("SHOAL_CUBLAS_LIBRARIES");
#ifdef SHOAL_TEST_CUBLAS_LIBRARY
  if (paths.empty()) paths.emplace_back(SHOAL_TEST_CUBLAS_LIBRARY);
#endif
  return paths;
}

/// Expects that an attribute has exactly this number of bytes.
template <typename Object, typename Value>
void expect_attribute(CublasStatus (*set)(Object, int32_t, const void*, size_t), Object object,
                      int32_t attribute, Value value) {
  const Value values[2] = {value, value};
  EXPECT_EQ(set(object, attribute, values, sizeof value), kCublasSuccess) << attribute;
  EXPECT_EQ(set(object, attribute, values, 2 * sizeof value), kCublasInvalidValue) << attribute;
  EXPECT_EQ(set(object, attribute, values, sizeof value / 2), kCublasInvalidValue) << attribute;
}

/// Calls everything that needs no device, with what library_products.cc passes.
void expect_as_declared(const CublasApi& api) {
  EXPECT_STRNE(api.status_text(kCublasNotSupported), api.status_text(kCublasSuccess));
  CublasMatmul matmul = nullptr;
  ASSERT_EQ(api.create_matmul(&matmul, kCublasSum32F, kCublasFloat), kCublasSuccess);
  expect_attribute(api.set_matmul, matmul, kCublasTransA, kCublasTransposed);
  EXPECT_EQ(api.destroy_matmul(matmul), kCublasSuccess);
  CublasLayout layout = nullptr;
  for (const int32_t type : {kCublasFloat, kCublasBf16}) {
    ASSERT_EQ(api.create_layout(&layout, type, 64, 32, 64), kCublasSuccess);
    EXPECT_EQ(api.destroy_layout(layout), kCublasSuccess);
  }
  CublasPreference preference = nullptr;
  ASSERT_EQ(api.create_preference(&preference), kCublasSuccess);
  expect_attribute(api.set_preference, preference, kCublasMostWorkspace, uint64_t{4} << 20);
  for (const int32_t alignment :
       {kCublasAlignmentA, kCublasAlignmentB, kCublasAlignmentC, kCublasAlignmentD})
    expect_attribute(api.set_preference, preference, alignment, uint32_t{16});
  EXPECT_EQ(api.destroy_preference(preference), kCublasSuccess);
}

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

TEST(CublasApiTest, OtherVersionsAreRefused) {
  for (const char* version : {"110900", "140000"}) {
    ::setenv("FAKE_CUBLAS_VERSION", version, 1);
    const Result<CublasApi> api = open_cublas(SHOAL_FAKE_CUBLAS);
    ::unsetenv("FAKE_CUBLAS_VERSION");
    ASSERT_FALSE(api.ok());
    EXPECT_EQ(api.status().code(), Code::kFailedPrecondition);
    EXPECT_NE(api.status().message().find("is of no supported version"), std::string::npos);
  }
}

TEST(CublasApiTest, AMissingLibraryIsRefusedInTheLoadersWords) {
  const Result<CublasApi> api = open_cublas("/nonexistent/libcublasLt.so.13");
  ASSERT_FALSE(api.ok());
  const std::string text(api.status().message());
  EXPECT_NE(text.find("/nonexistent/libcublasLt.so.13: cannot open shared object file"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("looked in"), std::string::npos) << text;
}

TEST(CublasApiTest, AMissingNameIsRefusedWithThePlaces) {
  const Result<CublasApi> api = open_cublas("libcublasLt.so.nosuch");
  ASSERT_FALSE(api.ok());
  const std::string text(api.status().message());
  EXPECT_NE(text.find("libcublasLt.so.nosuch: cannot open shared object file"), std::string::npos)
      << text;
  EXPECT_NE(text.find(" (looked in /"), std::string::npos) << text;
  EXPECT_NE(text.find(", and what ldconfig lists)"), std::string::npos) << text;
}

TEST(CublasApiTest, NamesAndRemedyAreThoseOfTheReleases) {
  EXPECT_EQ(cublas_library_names(),
            (std::vector<std::string>{"libcublasLt.so.13", "libcublasLt.so.12"}));
  EXPECT_TRUE(cublas_remedy().starts_with("install cuBLAS of CUDA 13 or 12 ("));
}

TEST(CublasApiTest, ALibraryThatIsAnotherIsRefused) {
  const Result<CublasApi> api = open_cublas("libm.so.6");
  ASSERT_FALSE(api.ok());
  EXPECT_NE(api.status().message().find("is no usable cuBLASLt"), std::string::npos);
}

// What is seen of the real library below holds for the stand-in too, over which the rest is tested.
TEST(CublasApiTest, TheStandInIsAsDeclared) {
  const Result<CublasApi> api = open_cublas(SHOAL_FAKE_CUBLAS);
  ASSERT_TRUE(api.ok()) << api.status().to_string();
  expect_as_declared(*api);
}

// Without a driver the real library can be opened, and describes products.
TEST(CublasRealTest, WhatIsSupportedIsAsDeclared) {
  const std::vector<std::string> paths = real_libraries();
  if (paths.empty()) GTEST_SKIP() << "no libcublasLt here; scripts/check-cublas downloads some";
  for (const std::string& path : paths) {
    const Result<CublasApi> api = open_cublas(path);
    ASSERT_TRUE(api.ok()) << api.status().to_string();
    std::printf("%s: cuBLASLt %s\n", path.c_str(), cublas_version_text(api->version).c_str());
    expect_as_declared(*api);
  }
}

TEST(CublasRealTest, WhatIsNotIsRefusedByItsVersion) {
  const std::vector<std::string> paths = paths_in("SHOAL_CUBLAS_REFUSED");
  if (paths.empty()) GTEST_SKIP() << "no such libcublasLt here; scripts/check-cublas downloads one";
  for (const std::string& path : paths) {
    const Result<CublasApi> api = open_cublas(path);
    ASSERT_FALSE(api.ok()) << path;
    const std::string text(api.status().message());
    std::printf("%s\n", text.c_str());
    EXPECT_EQ(api.status().code(), Code::kFailedPrecondition);
    EXPECT_TRUE(text.starts_with("cuBLASLt 1")) << text;
    EXPECT_NE(text.find(cat(" at ", path, " is of no supported version")), std::string::npos);
  }
}

}  // namespace
}  // namespace shoal
