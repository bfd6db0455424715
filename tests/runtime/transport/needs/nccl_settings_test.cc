#include "runtime/transport/needs/nccl_settings.h"

#include <gtest/gtest.h>

#include "runtime/base/cat.h"
#include "runtime/transport/needs/nccl_budget.h"

namespace shoal {
namespace {

TEST(NcclSettings, ReadsTheEnvironment) {
  const auto settings = nccl_settings({{"NCCL_BUFFSIZE", "0x100000"},
                                       {"NCCL_LL128_BUFFSIZE", "65536"},
                                       {"NCCL_MAX_CTAS", "2"},
                                       {"NCCL_MIN_NRINGS", "4"},
                                       {"NCCL_MIN_NCHANNELS", "1"},
                                       {"NCCL_CUMEM_ENABLE", "-2"},
                                       {"NCCL_CUMEM_HOST_ENABLE", "0"},
                                       {"NCCL_NVLS_ENABLE", "0"},
                                       {"NCCL_SHM_DISABLE", "1"},
                                       {"NCCL_P2P_LEVEL", "LOC"},
                                       {"NCCL_ALGO", "Ring"},
                                       {"NCCL_NET", "Socket"},
                                       {"NCCL_DEBUG", "INFO"}});
  ASSERT_TRUE(settings.ok()) << settings.status().to_string();
  EXPECT_EQ(nccl_connection_bytes(settings->buffers), 1654784);
  EXPECT_EQ(settings->max_ctas, 2);
  EXPECT_EQ(settings->min_channels, 1);
  EXPECT_TRUE(settings->cumem);
  EXPECT_FALSE(settings->cumem_host || settings->nvls || settings->tree);
  EXPECT_TRUE(settings->shm_disabled && settings->p2p_disabled && settings->runtime_connect);
  EXPECT_EQ(settings->net, "Socket");
}

TEST(NcclSettings, AlgorithmLists) {
  const std::pair<const char*, bool> lists[] = {{"Ring", false},
                                                {"ring,tree", true},
                                                {"^tree", false},
                                                {"^ring", true},
                                                {"", true},
                                                {"nvls,PAT", false},
                                                {"ring;allreduce:tree", true},
                                                {"allreduce:^tree;ring", false}};
  for (const auto& [list, tree] : lists)
    EXPECT_EQ(nccl_settings({{"NCCL_ALGO", list}})->tree, tree) << list;
}

TEST(NcclSettings, NamesBadValues) {
  const std::pair<const char*, const char*> bad[] = {
      {"NCCL_BUFFSIZE", "4M"},     {"NCCL_BUFFSIZE", ""},
      {"NCCL_BUFFSIZE", "-1"},     {"NCCL_SHM_DISABLE", "yes"},
      {"NCCL_SHM_DISABLE", "2"},   {"NCCL_MAX_CTAS", "65"},
      {"NCCL_ALGO", "Rings"},      {"NCCL_P2P_LEVEL", "NVLINK"},
      {"NCCL_MAX_NCHANNELS", "0"}, {"NCCL_NVLS_ENABLE", "3"},
      {"NCCL_ALGO", "ring,"},      {"NCCL_BUFFSIZE", "99999999999999999999"}};
  for (const auto& [name, value] : bad) {
    const Status status = nccl_settings({{name, value}}).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << name << "=" << value;
    EXPECT_NE(status.message().find(cat(name, "=\"", value, "\"")), std::string::npos)
        << status.message();
  }
}

}  // namespace
}  // namespace shoal
