#include "server/cli/doctor_flags.h"

#include <gtest/gtest.h>

#include "server/cli/flags.h"

namespace shoal {
namespace {

DoctorFlags doctor_of(const std::vector<std::string>& words, const Environment& variables = {}) {
  const Result<CommandLine> line = parse_command_line(words, variables);
  EXPECT_TRUE(line.ok()) << line.status().to_string();
  return line.ok() ? std::get<DoctorFlags>(line->command) : DoctorFlags();
}

TEST(DoctorFlagsTest, AModelHasTheFlagsOfServe) {
  EXPECT_EQ(doctor_of({"doctor"}).serve.engine.tensor_parallel_size, 2);
  const DoctorFlags flags =
      doctor_of({"doctor", "m", "--max-num-seqs", "8", "--kv-cache-memory", "16m", "--json"});
  EXPECT_EQ(flags.serve.engine.model, "m");
  EXPECT_EQ(flags.serve.engine.tensor_parallel_size, 1) << "as serve";
  EXPECT_EQ(flags.serve.engine.max_num_seqs, 8);
  EXPECT_EQ(flags.serve.http.port, kHttpPort) << "settled as for serve";
  EXPECT_TRUE(flags.json);
  EXPECT_EQ(doctor_of({"doctor", "--model", "m"}).serve.engine.model, "m");
}

TEST(DoctorFlagsTest, VariablesOfAServerCountForAModelAlone) {
  const Environment variables = {{"SHOAL_MAX_NUM_SEQS", "9"}, {"SHOAL_TENSOR_PARALLEL_SIZE", "3"}};
  const EngineFlags served = doctor_of({"doctor", "m"}, variables).serve.engine;
  EXPECT_EQ(served.max_num_seqs, 9);
  EXPECT_EQ(served.tensor_parallel_size, 3);
  EXPECT_EQ(doctor_of({"doctor"}, variables).serve.engine.tensor_parallel_size, 2);
}

TEST(DoctorFlagsTest, TheStaticDoctorSaysWhichOneTakesAModel) {
  const std::vector<std::string> words = {"models/demo", "-tp", "2"};
  const std::string error = parse_static_doctor(words, {}, {}).status().plain_text();
  EXPECT_NE(error.find("unexpected argument \"models/demo\""), std::string::npos) << error;
  EXPECT_NE(error.find("takes no MODEL: whether shoal serve would start says shoal doctor MODEL"),
            std::string::npos)
      << error;
}

// NO ends a start with 69, and --nccl-version starts nothing.
TEST(DoctorFlagsTest, HelpSaysThatNoOfAPlanEndsWithOne) {
  const std::vector<std::string> words = {"doctor", "--help"};
  const Result<CommandLine> line = parse_command_line(words);
  ASSERT_TRUE(line.ok()) << line.status().to_string();
  const std::string& text = std::get<PrintHelp>(line->command).commands[0].description;
  EXPECT_NE(text.find("69 none; "), std::string::npos) << text;
  EXPECT_NE(text.find("if nccl-shm fits, else 1, also after NO: "), std::string::npos) << text;
}

}  // namespace
}  // namespace shoal
