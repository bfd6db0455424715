#include "runtime/transport/nccl_log.h"

#include <gtest/gtest.h>

#include "runtime/base/page_size.h"

namespace shoal {
namespace {

using Transports = std::map<std::string, int>;

TEST(NcclLogTest, NothingGivesNothing) {
  EXPECT_EQ(parse_nccl_log(""), NcclLog());
  EXPECT_EQ(parse_nccl_log("\n\nsome other program's line\nNCCL\nNCCL INFO \nNCCL WARN \n"),
            NcclLog());
}

// 2.12 writes bus ids in the brackets, has no NVLS in the line of channels, and no mode after
// P2P/IPC.
TEST(NcclLogTest, Release212) {
  const NcclLog log = parse_nccl_log(
      "NCCL version 2.12.12+cuda11.6\n"
      "node7:412:460 [0] NCCL INFO Channel 00/02 :    0   1\n"
      "node7:412:460 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1\n"
      "node7:412:460 [0] NCCL INFO Channel 00 : 0[1b000] -> 1[1c000] via SHM/direct/direct\n"
      "node7:412:460 [0] NCCL INFO Channel 01 : 0[1b000] -> 1[1c000] via SHM/direct/direct\n"
      "node7:412:460 [0] NCCL INFO Connected all rings\n"
      "node7:412:460 [0] NCCL INFO Connected all trees\n"
      "node7:412:460 [0] NCCL INFO threadThresholds 8/8/64 | 16/8/64 | 8/8/512\n"
      "node7:412:460 [0] NCCL INFO 2 coll channels, 2 p2p channels, 2 p2p channels per peer\n");
  EXPECT_EQ(log.version, "2.12.12+cuda11.6");
  EXPECT_EQ(log.transports, (Transports{{"SHM/direct", 2}}));
  EXPECT_EQ(log.channels, 2);
  EXPECT_TRUE(log.rings);
  EXPECT_TRUE(log.trees);
  EXPECT_EQ(log.last_warning, "");
}

TEST(NcclLogTest, Release218OverPeersAndInfiniband) {
  const NcclLog log = parse_nccl_log(
      "gpu-1:88:97 [3] NCCL INFO NCCL version 2.18.1+cuda12.1\n"
      "gpu-1:88:97 [3] NCCL INFO Channel 00/0 : 3[83000] -> 4[84000] via P2P/IPC/read\n"
      "gpu-1:88:97 [3] NCCL INFO Channel 01/0 : 3[83000] -> 4[84000] via P2P/direct pointer\n"
      "gpu-1:88:97 [3] NCCL INFO Channel 02/0 : 11[83000] -> 3[83000] [receive] via NET/IB/0/GDRDMA\n"
      "gpu-1:88:97 [3] NCCL INFO Channel 02/0 : 3[83000] -> 11[83000] [send] via NET/IB/0(2)/GDRDMA\n"
      "gpu-1:88:97 [3] NCCL INFO 16 coll channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer\n");
  EXPECT_EQ(log.version, "2.18.1+cuda12.1");
  EXPECT_EQ(log.transports, (Transports{{"P2P/IPC", 1}, {"P2P/direct pointer", 1}, {"NET/IB", 1}}));
  EXPECT_EQ(log.channels, 16);
  EXPECT_FALSE(log.rings);
}

// The WARN of 2.12 to 2.21 has no errno. The second line is the one that is kept.
TEST(NcclLogTest, NoSpaceIn219) {
  const NcclLog log = parse_nccl_log(
      "\n"
      "pod:31:52 [1] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-Kb5gVq to 9637892 bytes\n"
      "\n"
      "pod:31:52 [1] misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Kb5gVq "
      "(size 9637888)\n"
      "pod:31:52 [1] NCCL INFO transport/shm.cc:114 -> 2\n");
  EXPECT_EQ(log.last_warning,
            "Error while creating shared memory segment /dev/shm/nccl-Kb5gVq (size 9637888)");
  EXPECT_TRUE(log.transports.empty());
}

TEST(NcclLogTest, Release228) {
  const NcclLog log = parse_nccl_log(
      "vm:70:75 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
      "vm:70:75 [0] NCCL INFO NCCL_CUMEM_HOST_ENABLE set by environment to 1.\n"
      "vm:70:75 [0] NCCL INFO cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based "
      "implementation. This could be due to the container runtime disabling NUMA support. To disable this warning, set "
      "NCCL_CUMEM_HOST_ENABLE=0\n"
      "vm:70:75 [0] NCCL INFO 2 coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per "
      "peer\n"
      "vm:70:77 [0] NCCL INFO Allocated 9637892 bytes of shared memory in /dev/shm/nccl-a1B2c3\n"
      "vm:70:77 [0] NCCL INFO MMAP allocated shareable host buffer /dev/shm/nccl-a1B2c3 size 9637888 ptr 0x7f00\n"
      "vm:70:77 [0] NCCL INFO Allocated 4100 bytes of shared memory in /dev/shm/nccl-d4E5f6\n"
      "vm:70:77 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"
      "vm:70:77 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1\n"
      "\n"
      "[2026-11-21 10:43:14] vm:70:78 [0] misc/shmutils.cc:131 NCCL WARN Error while creating shared memory segment "
      "/dev/shm/nccl-g7H8i9 (size 34210176), error: No space left on device (28)");  // cut short
  EXPECT_EQ(log.version, "2.28.9+cuda13.0");
  EXPECT_TRUE(log.cumem_fallback);
  EXPECT_EQ(log.channels, 2);
  EXPECT_EQ(log.dev_shm_bytes, 9637892 + 4100);
  EXPECT_EQ(log.dev_shm_charged, static_cast<int64_t>(whole_pages(9637892) + whole_pages(4100)));
  EXPECT_EQ(log.dev_shm_files, 2);
  EXPECT_EQ(log.transports, (Transports{{"SHM/direct", 1}}));
  EXPECT_TRUE(log.rings);
  EXPECT_FALSE(log.trees);
  EXPECT_EQ(
      log.last_warning,
      "Error while creating shared memory segment /dev/shm/nccl-g7H8i9 (size 34210176), error: No space left on "
      "device (28)");
}

// 2.30.7 logs the mode of the transport only once, and the place of an allocation before it.
TEST(NcclLogTest, Release230) {
  const NcclLog log = parse_nccl_log(
      "vm:70:75 [0] NCCL INFO NCCL version 2.30.7 compiled with CUDA 13.0\r\n"
      "vm:70:77 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct\r\n"
      "vm:70:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[2] via P2P/CUMEM/read\r\n"
      "vm:70:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 3[3] [send] via NET/Socket/0/Shared\r\n"
      "vm:70:77 [0] NCCL INFO os/linux.cc:799 (ncclOsShmOpen) Allocated 34210180 bytes of shared memory in "
      "/dev/shm/nccl-a1B2c3\r\n");
  EXPECT_EQ(log.dev_shm_charged, static_cast<int64_t>(whole_pages(34210180)));
  EXPECT_EQ(log.version, "2.30.7");
  EXPECT_EQ(log.transports, (Transports{{"SHM/direct", 1}, {"P2P/CUMEM", 1}, {"NET/Socket", 1}}));
}

}  // namespace
}  // namespace shoal
