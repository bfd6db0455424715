#include "runtime/comm/device/nccl_api.h"

#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>

#ifdef SHOAL_TEST_NCCL_HEADER
#include <nccl.h>
#endif
// Fields that older headers lack cannot be compared.
#if defined(NCCL_VERSION_CODE) && NCCL_VERSION_CODE >= 22700
#define SHOAL_TEST_NCCL_CONFIG 1
#endif

namespace shoal {
namespace {

#ifdef SHOAL_TEST_NCCL_CONFIG

// Compares our declarations with the installed header, whose structs may have more fields at the
// end.
static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId) &&
              alignof(NcclUniqueId) == alignof(ncclUniqueId));
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t) &&
              alignof(NcclConfig) == alignof(ncclConfig_t));
static_assert(sizeof(NcclResult) == sizeof(ncclResult_t) && sizeof(NcclComm) == sizeof(ncclComm_t));
static_assert(sizeof(uint32_t) == sizeof(ncclDataType_t) &&
              sizeof(uint32_t) == sizeof(ncclRedOp_t));
static_assert(NcclConfig::kNotSet == NCCL_CONFIG_UNDEF_INT);
static_assert(uint32_t{kNcclSuccess} == ncclSuccess &&
              uint32_t{kNcclUnhandledCudaError} == ncclUnhandledCudaError);
static_assert(uint32_t{kNcclSystemError} == ncclSystemError &&
              uint32_t{kNcclInternalError} == ncclInternalError);
static_assert(uint32_t{kNcclInvalidArgument} == ncclInvalidArgument);
static_assert(uint32_t{kNcclInvalidUsage} == ncclInvalidUsage &&
              uint32_t{kNcclRemoteError} == ncclRemoteError);
static_assert(uint32_t{kNcclInProgress} == ncclInProgress);
static_assert(kNcclInt8 == ncclInt8 && kNcclFloat32 == ncclFloat32 && kNcclSum == ncclSum);

#define SHOAL_SAME_FIELD(ours, theirs)                                          \
  static_assert(offsetof(NcclConfig, ours) == offsetof(ncclConfig_t, theirs) && \
                sizeof(NcclConfig::ours) == sizeof(ncclConfig_t::theirs))
SHOAL_SAME_FIELD(size, size);
SHOAL_SAME_FIELD(magic, magic);
SHOAL_SAME_FIELD(version, version);
SHOAL_SAME_FIELD(blocking, blocking);
SHOAL_SAME_FIELD(cga_cluster_size, cgaClusterSize);
SHOAL_SAME_FIELD(min_ctas, minCTAs);
SHOAL_SAME_FIELD(max_ctas, maxCTAs);
SHOAL_SAME_FIELD(net_name, netName);
SHOAL_SAME_FIELD(split_share, splitShare);
SHOAL_SAME_FIELD(traffic_class, trafficClass);
SHOAL_SAME_FIELD(comm_name, commName);
SHOAL_SAME_FIELD(collnet_enable, collnetEnable);
SHOAL_SAME_FIELD(cta_policy, CTAPolicy);
SHOAL_SAME_FIELD(shrink_share, shrinkShare);
SHOAL_SAME_FIELD(nvls_ctas, nvlsCTAs);
#undef SHOAL_SAME_FIELD

TEST(NcclApiTest, ConfigHasTheHeadersDefaults) {
  const NcclConfig ours;
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.net_name, theirs.netName);
  // Every field after the version that the header also has must be unset.
  const size_t begin = offsetof(NcclConfig, blocking);
  EXPECT_EQ(std::memcmp(reinterpret_cast<const char*>(&ours) + begin,
                        reinterpret_cast<const char*>(&theirs) + begin, sizeof(ours) - begin),
            0);
}

#else

TEST(NcclApiTest, ConfigHasTheHeadersDefaults) {
  GTEST_SKIP() << "no nccl.h of 2.27 or newer is installed here";
}

#endif

// Checks the layout of 2.27 by itself, whatever header is installed.
TEST(NcclApiTest, ConfigIsThatOf227) {
  EXPECT_EQ(sizeof(NcclConfig), 72U);
  EXPECT_EQ(offsetof(NcclConfig, net_name), 32U);
  EXPECT_EQ(offsetof(NcclConfig, comm_name), 48U);
  EXPECT_EQ(offsetof(NcclConfig, nvls_ctas), 68U);
  EXPECT_EQ(NcclConfig().size, 72U);
}

TEST(NcclApiTest, VersionText) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(22705), "2.27.5");
}

TEST(NcclApiTest, AMissingLibraryIsRefusedInTheLoadersWords) {
  const auto api = load_nccl("/nonexistent/libnccl.so.2");
  ASSERT_FALSE(api.ok());
  EXPECT_EQ(api.status().code(), Code::kFailedPrecondition);
  const std::string text(api.status().message());
  EXPECT_NE(text.find("/nonexistent/libnccl.so.2: cannot open shared object file"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("--nccl-library"), std::string::npos) << text;
  EXPECT_EQ(text.find("looked in"), std::string::npos) << text;
}

TEST(NcclApiTest, ANameThatIsNotFoundIsRefusedWithTheFoldersThatWereSearched) {
  const auto api = load_nccl("libnosuchnccl.so.2");
  ASSERT_FALSE(api.ok());
  const std::string text(api.status().message());
  EXPECT_NE(text.find("libnosuchnccl.so.2: cannot open shared object file"), std::string::npos)
      << text;
  EXPECT_NE(text.find(" (looked in /"), std::string::npos) << text;
  EXPECT_NE(text.find(", and what ldconfig lists)"), std::string::npos) << text;
}

TEST(NcclApiTest, AFileThatIsNoLibraryIsRefused) {
  char path[] = "/tmp/shoal-not-nccl-XXXXXX";
  const int fd = ::mkstemp(path);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::write(fd, std::string(4096, 'x').data(), 4096), 4096);
  ::close(fd);
  const auto api = load_nccl(path);
  ::unlink(path);
  ASSERT_FALSE(api.ok());
  EXPECT_NE(api.status().message().find("invalid ELF header"), std::string::npos)
      << api.status().to_string();
}

TEST(NcclApiTest, ALibraryThatIsNotNcclIsRefused) {
  const auto api = load_nccl("libm.so.6");
  ASSERT_FALSE(api.ok());
  EXPECT_NE(api.status().message().find("ncclGetVersion"), std::string::npos)
      << api.status().to_string();
}

/// The path of the real library, which can be loaded without a driver. Empty if it is not here.
std::string real_library() {
#ifdef SHOAL_TEST_NCCL_LIBRARY
  return SHOAL_TEST_NCCL_LIBRARY;
#else
  return "";
#endif
}

TEST(NcclApiTest, TheRealLibraryGivesItsVersionAndAUniqueId) {
  if (real_library().empty()) GTEST_SKIP() << "libnccl.so.2 is not installed here";
  ::setenv("NCCL_SOCKET_IFNAME", "lo",
           1);  // a unique id contains an address, and a sandbox may have no other interface
  const auto api = load_nccl(real_library());
  if (!api.ok() && api.status().message().find("cannot be used") != std::string::npos)
    GTEST_SKIP() << api.status().to_string();
  ASSERT_TRUE(api.ok()) << api.status().to_string();
  EXPECT_GE(api->version, kNcclFloor);
  EXPECT_EQ(api->path, std::filesystem::canonical(real_library()).string());
  EXPECT_STREQ(api->get_error_string(kNcclSystemError),
               "unhandled system error (run with NCCL_DEBUG=INFO for details)");
  NcclUniqueId id, other;
  ASSERT_EQ(api->get_unique_id(&id), kNcclSuccess) << api->get_last_error(nullptr);
  ASSERT_EQ(api->get_unique_id(&other), kNcclSuccess);
  EXPECT_NE(std::memcmp(&id, &other, sizeof(id)), 0);
}

}  // namespace
}  // namespace shoal
