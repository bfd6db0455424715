#include "server/commands/needs_table.h"

#include <gtest/gtest.h>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

const Json& named(const Json& rows, const char* key, const std::string& name) {
  for (const Json& row : rows) {
    if (row.at(key) == name) return row;
  }
  static const Json none;
  return none;
}

TEST(NeedsTable, IsInPagesOfTheMachine) {
  const struct {
    int64_t page_bytes, shm, lean, nccl, sockets;  // for two ranks, of NCCL 2.28.9
  } machines[] = {{4096, 1052672, 20480, 19300352, 68427776},
                  {65536, 17 * 65536, 65536, 2 * 149 * 65536, 2 * 523 * 65536}};
  for (const auto& machine : machines) {
    const Json needs = needs_json(machine.page_bytes);
    EXPECT_EQ(needs.at("page_bytes"), machine.page_bytes);
    const Json& rungs = needs.at("rungs");
    EXPECT_EQ(named(rungs, "rung", "shm").at("dev_shm_bytes").at("2"), machine.shm);
    EXPECT_EQ(named(rungs, "rung", "memfd").at("memory_bytes").at("2"), machine.shm);
    EXPECT_EQ(named(rungs, "rung", "shm-lean").at("dev_shm_bytes").at("2"), machine.lean);
    const Json& nccl = named(needs.at("nccl"), "version", "2.28.9");
    EXPECT_EQ(nccl.at("shm_bytes").at("2"), machine.nccl);
    EXPECT_EQ(nccl.at("socket_bytes").at("2"), machine.sockets);
    const std::string table = needs_table(machine.page_bytes);
    EXPECT_EQ(table.find(cat("Bytes in /dev/shm, in pages of ", machine.page_bytes, " B:")), 0u);
    for (const int64_t bytes : {machine.shm, machine.lean, machine.nccl, machine.sockets})
      EXPECT_NE(table.find(cat("| ", bytes, " |")), std::string::npos) << bytes;
  }
}

TEST(NeedsTable, HasMebibytesBelowTheBytes) {
  const std::string table = needs_table(4096);
  EXPECT_NE(table.find("| shm | 1052672 | 1576960 | 2101248 | 4198400 | 8392704 |\n"
                       "| | 1.0 MiB | 1.5 MiB | 2.0 MiB | 4.0 MiB | 8.0 MiB |\n"
                       "| memfd | 0 | 0 | 0 | 0 | 0 |\n| shm-lean |"),
            std::string::npos)
      << table;
  for (size_t at = 0; at < table.size(); at = table.find('\n', at) + 1)
    EXPECT_LE(table.find('\n', at) - at, 100u) << table.substr(at, 120);
}

}  // namespace
}  // namespace shoal
