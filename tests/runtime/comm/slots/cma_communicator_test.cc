#include "runtime/comm/slots/cma_communicator.h"

#include <cerrno>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/comm/slots/cma_peers.h"
#include "runtime/memory/shm_segment.h"

namespace shoal {
namespace {

Result<std::vector<std::string>> alone(std::string mine) {
  return std::vector<std::string>{std::move(mine)};
}

TEST(CmaCommunicatorTest, BytesFollowTheFormula) {
  EXPECT_EQ(cma_rank_bytes(2, 262144), 4096u + 3 * 262144);
  EXPECT_EQ(cma_rank_bytes(4, 4160), 24896u);  // 4096 + 5 * 4160
  EXPECT_EQ(cma_page_bytes(16), 4096u);
  EXPECT_EQ(cma_page_bytes(17), 4352u);
}

TEST(CmaCommunicatorTest, WrongArgumentsAreRefused) {
  auto page = ShmSegment::create_memfd(4096);
  ASSERT_TRUE(page.ok());
  const auto code = [&](World world, size_t page_bytes, size_t slot_bytes) {
    return open_cma_communicator(world, page->fd(), page_bytes, slot_bytes, 1000, alone)
        .status()
        .code();
  };
  EXPECT_EQ(code({0, 1}, 4096, 4096), Code::kOk);
  EXPECT_EQ(code({0, 1}, 0, 4096), Code::kOk);
  EXPECT_EQ(code({1, 1}, 4096, 4096), Code::kInvalidArgument);
  EXPECT_EQ(code({0, 0}, 4096, 4096), Code::kInvalidArgument);
  EXPECT_EQ(code({0, 17}, 4096, 4096), Code::kInvalidArgument);
  EXPECT_EQ(code({0, 1}, 4096, 100), Code::kInvalidArgument);
  EXPECT_EQ(code({0, 2}, 4096, 4096), Code::kInternal);  // the exchange brings one rank's alone
}

TEST(CmaCommunicatorTest, ExchangesErrorsComeThrough) {
  const Exchange gone = [](std::string) -> Result<std::vector<std::string>> {
    return Status::error(Code::kUnavailable, "the front is gone");
  };
  EXPECT_EQ(open_cma_communicator({0, 2}, -1, 0, 4096, 1000, gone).status().message(),
            "the front is gone");
  const Exchange other = [](std::string mine) -> Result<std::vector<std::string>> {
    return std::vector<std::string>{mine, "something else"};
  };
  EXPECT_EQ(open_cma_communicator({0, 2}, -1, 0, 4096, 1000, other).status().code(),
            Code::kInvalidArgument);
}

TEST(CmaPeersTest, GoneAndForeignMemoryIsToldApart) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  auto memory = PrivateMemory::create(4096);
  ASSERT_TRUE(memory.ok());
  CmaHello own;
  own.pid = ::getpid();
  own.address = reinterpret_cast<uint64_t>(memory->data());
  CmaHello dead = own;
  dead.pid = child;
  CmaHello foreign = own;
  foreign.nonce = 99;
  const CmaPeers peers({own, dead, foreign});
  EXPECT_EQ(peers.check(0), 0);
  EXPECT_EQ(peers.check(1), ESRCH);
  EXPECT_EQ(peers.check(2), ESRCH);
  char buffer[8192];
  EXPECT_EQ(peers.read(0, 0, buffer, 4096), 0);
  memory = PrivateMemory::create(8192);  // the first one is unmapped
  EXPECT_NE(peers.read(0, 1 << 30, buffer, 4096), 0);
}

}  // namespace
}  // namespace shoal
