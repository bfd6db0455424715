// Real ranks: like the server, this program is its own worker (see main below).
#include "runtime/supervisor/worker_group.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/args.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/weights.h"
#include "runtime/engine/step_plan.h"
#include "runtime/supervisor/process_end.h"
#include "runtime/worker/model_work.h"
#include "runtime/worker/worker_main.h"
#include "tests/guard.h"
#include "tests/in_child.h"
#include "tests/runtime/supervisor/held_process.h"
#include "tests/runtime/worker/model_start.h"

namespace shoal {
namespace {

constexpr const char* kNineHeads = SHOAL_TEST_DATA "/oracle/llama-nine-heads";

struct GroupOptions : WorkerGroupOptions {
  std::string transport;
};

GroupOptions options_for(const std::string& model, int world_size, const std::string& transport) {
  GroupOptions options;
  options.world_size = world_size;
  options.transport = transport;
  options.startup_timeout_s = kGuardSeconds;
  options.step_timeout_s = kGuardSeconds;
  options.evidence_ms = options.explain_ms = kGuardMs;
  ModelStart start = model_start(model);
  start.kernels = "auto";
  start.limits = {
      .max_num_seqs = 4, .max_num_batched_tokens = 64, .kv_blocks = 16, .max_model_len = 256};
  start.all_logits = true;
  options.start.work = encode(start);
  options.work_fds = work_fds(start);
  options.start.collective_timeout_ms = kGuardMs;
  return options;
}

Attempt<std::unique_ptr<WorkerGroup>> start_group(const GroupOptions& options,
                                                  const StartControl& control = {}) {
  TransportSetup setup;
  setup.rung = kNoTransport;
  if (options.world_size > 1) {
    Result<TransportSetup> prepared = find_rung(options.transport)->prepare(options.world_size);
    if (!prepared.ok()) return Failure{prepared.status(), Phase::kReserve};
    setup = std::move(prepared).value();
  }
  return WorkerGroup::start(options, setup, control);
}

/// The reason why the group has ended; ok if it has not ended.
Status why_of(const std::optional<Failure>& failure) {
  return failure ? failure->why : Status();
}

StepPlan one_step(uint64_t step, std::vector<int32_t> ids, int32_t first_position,
                  bool all_logits) {
  SequenceStep sequence;
  sequence.id = 1;
  sequence.token_ids = std::move(ids);
  sequence.first_position = first_position;
  for (int i = 0; i * kBlockTokens < first_position + static_cast<int>(sequence.token_ids.size());
       ++i) {
    sequence.block_table.push_back(i);
  }
  sequence.sample = true;
  sequence.all_logits = all_logits;
  sequence.sampling.temperature = 0;
  return {step, {sequence}};
}

Attempt<StepResult> run(WorkerGroup& group, const StepPlan& plan) {
  const Attempt<std::string> bytes = group.step(plan.step, encode(plan));
  if (!bytes.ok()) return bytes.failure();
  Result<StepResult> result = decode<StepResult>(*bytes, "step result");
  if (!result.ok()) return Failure{result.status()};
  return std::move(result).value();
}

std::vector<float> logits_of(int world_size, const std::string& transport) {
  auto group = start_group(options_for(kNineHeads, world_size, transport));
  EXPECT_TRUE(group.ok()) << group.status().to_string();
  if (!group.ok()) return {};
  EXPECT_EQ((*group)->ready().size(), static_cast<size_t>(world_size));
  for (const std::string& about : (*group)->ready()) {
    const Result<ModelReady> ready = decode<ModelReady>(about, "report of a rank");
    EXPECT_TRUE(ready.ok() && ready->weight_bytes > 0 && ready->kv_bytes > 0)
        << ready.status().to_string();
  }
  auto result = run(**group, one_step(1, {1, 2, 3, 40, 500, 600, 7, 8}, 0, true));
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? result->logits : std::vector<float>();
}

TEST(WorkerGroup, EveryWorldSizeAndTransportGivesTheSameBits) {
  const std::vector<float> alone = logits_of(1, "shm");
  ASSERT_EQ(alone.size(), 8u * 886);
  for (const int world_size : {2, 3, 5, 9}) {
    for (const char* transport : {"shm", "tcp"})
      EXPECT_TRUE(logits_of(world_size, transport) == alone) << world_size << transport;
  }
}

TEST(WorkerGroup, ALoadShowsItsEnd) {
  LoadProgress last;
  StartControl control;
  control.on_progress = [&last](const LoadProgress& progress) { last = progress; };
  auto group = start_group(options_for(kNineHeads, 2, "shm"), control);
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  EXPECT_GT(last.bytes_total, 0);
  EXPECT_EQ(last.bytes_done, last.bytes_total);
}

TEST(WorkerGroup, AKilledRankIsNamedWhileIdleAndTheOthersAreReaped) {
  auto group = start_group(options_for(kNineHeads, 3, "shm"));
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  const std::vector<int> pids = (*group)->pids();
  ASSERT_FALSE((*group)->watch(Deadline::after_ms(0)));
  ::kill(pids[1], SIGKILL);
  const Status status = why_of((*group)->watch(Deadline::after_ms(kGuardMs)));
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.to_string();
  EXPECT_NE(status.message().find("signal 9"), std::string::npos) << status.to_string();
  for (const int pid : pids) EXPECT_EQ(::kill(pid, 0), -1) << "still there: " << pid;
  EXPECT_EQ(run(**group, one_step(1, {1}, 0, false)).status().to_string(), status.to_string());
}

TEST(WorkerGroup, OnlyWhatTheKernelKillsAfterTheStartExplainsALaterDeath) {
  const std::filesystem::path root = testing::TempDir() + cat("/shoal-oom-counts-", ::getpid());
  std::filesystem::create_directories(root / "proc");
  const auto count = [&root](int kills) {
    std::ofstream(root / "proc/vmstat") << "oom_kill " << kills << "\n";
  };
  for (const bool again : {false, true}) {
    GroupOptions options = options_for(kNineHeads, 2, "shm");
    options.system.root = root;
    StartControl control;
    control.on_phase_done = [&count](Phase, double) { count(4); };
    count(3);
    auto group = start_group(options, control);
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    if (again) count(5);
    ::kill((*group)->pids()[1], SIGKILL);
    const std::optional<Failure> failure = (*group)->watch(Deadline::after_ms(kGuardMs));
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->fault, again ? Fault::kOutOfMemory : Fault::kOutside)
        << failure->why.to_string();
  }
  std::filesystem::remove_all(root);
}

// This happens if a rank hangs in a driver or in an unreachable file server.
TEST(WorkerGroup, ARankThatNoKillEndsIsLeftBehind) {
  auto group = start_group(options_for(kNineHeads, 2, "shm"));
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  const std::vector<int> pids = (*group)->pids();
  HeldProcess held(pids[1]);
  if (!held.holds()) GTEST_SKIP() << "this kernel lets nobody trace a sibling here";
  ::kill(pids[0], SIGKILL);
  testing::internal::CaptureStderr();
  const Status status = why_of((*group)->watch(Deadline::after_ms(kGuardMs)));
  EXPECT_NE(testing::internal::GetCapturedStderr().find(cat("rank 1 (pid ", pids[1])),
            std::string::npos);
  EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status.to_string();
  EXPECT_EQ(::kill(pids[1], 0), 0) << "it is still there";
  group = Failure{Status::error(Code::kAborted, "ended")};  // nothing waits for it again
  held.release();
  EXPECT_TRUE(await_end(pids[1], Fd(), Deadline::after_ms(kGuardMs)));
}

TEST(WorkerGroup, ADeathIsNoticedWhereSigchldIsIgnored) {
  EXPECT_EQ(
      in_child([]() -> std::string {
        ::signal(SIGCHLD, SIG_IGN);  // as a shell's trap '' CHLD leaves it
        auto group = start_group(options_for(kNineHeads, 2, "shm"));
        if (!group.ok()) return group.status().to_string();
        ::kill((*group)->pids()[1], SIGKILL);
        const std::string told(why_of((*group)->watch(Deadline::after_ms(kGuardMs))).message());
        return told.find("rank 1") != std::string::npos && told.find("SIGCHLD") != std::string::npos
                   ? ""
                   : told;
      }),
      "");
}

TEST(WorkerGroup, ARankKilledBetweenStepsEndsTheNextStep) {
  for (const char* transport : {"shm", "tcp"}) {
    for (const int rank : {0, 1}) {
      auto group = start_group(options_for(kNineHeads, 2, transport));
      ASSERT_TRUE(group.ok()) << group.status().to_string();
      ASSERT_TRUE(run(**group, one_step(1, {1, 2}, 0, false)).ok());
      ::kill((*group)->pids()[rank], SIGKILL);
      const auto result = run(**group, one_step(2, {3}, 2, false));
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.status().code(), Code::kAborted) << result.status().to_string();
      EXPECT_NE(result.status().message().find(cat("rank ", rank)), std::string::npos)
          << result.status().to_string();
    }
  }
}

TEST(WorkerGroup, AStoppedRankEndsTheStepAtItsDeadline) {
  GroupOptions options = options_for(kNineHeads, 2, "shm");
  options.step_timeout_s = 0.5;
  auto group = start_group(options);
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  ::kill((*group)->pids()[1], SIGSTOP);
  const auto result = run(**group, one_step(1, {1, 2}, 0, false));
  EXPECT_EQ(result.status().code(), Code::kDeadlineExceeded) << result.status().to_string();
  const std::string told(result.status().message());
  EXPECT_NE(told.find("step 1"), std::string::npos) << told;
  EXPECT_NE(told.find("rank 1 (step 1) is stopped by a signal"), std::string::npos) << told;
  EXPECT_NE(told.find("waits for rank 1"), std::string::npos) << told;
  EXPECT_EQ(result.failure().rank, 1);
  EXPECT_EQ(result.failure().fault, Fault::kHeldUp);
  EXPECT_TRUE((*group)->ended());
}

TEST(WorkerGroup, SignalsToTheGroupMeanNothingToWorkers) {
  auto group = start_group(options_for(kNineHeads, 2, "shm"));
  ASSERT_TRUE(group.ok());
  for (const int pid : (*group)->pids()) {
    ::kill(pid, SIGTERM);
    ::kill(pid, SIGINT);
  }
  EXPECT_TRUE(run(**group, one_step(1, {1, 2}, 0, false)).ok());
}

TEST(WorkerGroup, ADamagedModelIsTheRanksOwnReason) {
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() / cat("shoal-damaged-", ::getpid());
  std::filesystem::create_directories(dir);
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(std::filesystem::path(kNineHeads) / file, dir / file,
                               std::filesystem::copy_options::overwrite_existing);
  }
  const GroupOptions options = options_for(dir.string(), 2, "shm");
  std::filesystem::resize_file(dir / "model.safetensors", 100'000);
  const auto group = start_group(options);
  std::filesystem::remove_all(dir);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().code(), Code::kDataLoss) << group.status().to_string();
  EXPECT_NE(group.status().to_string().find("[rank "), std::string::npos)
      << group.status().to_string();
  EXPECT_NE(group.status().to_string().find("model.safetensors"), std::string::npos)
      << group.status().to_string();
}

// The files of a model are replaced by renaming others over them, or the folder is removed.
TEST(WorkerGroup, RanksLoadFromInheritedDescriptors) {
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() / cat("shoal-removed-", ::getpid());
  std::filesystem::create_directories(dir);
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(std::filesystem::path(kNineHeads) / file, dir / file);
  const GroupOptions options = options_for(dir.string(), 2, "shm");
  std::filesystem::remove_all(dir);
  auto group = start_group(options);
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  const auto result = run(**group, one_step(1, {1, 2, 3, 40, 500, 600, 7, 8}, 0, true));
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_TRUE(result->logits == logits_of(2, "shm"));
  // Once the weights are mapped, a rank has none of these descriptors any more.
  for (const int pid : (*group)->pids()) {
    for (const auto& entry : std::filesystem::directory_iterator(cat("/proc/", pid, "/fd"))) {
      const std::string target = std::filesystem::read_symlink(entry.path()).string();
      EXPECT_EQ(target.find("safetensors"), std::string::npos) << target;
    }
  }
}

TEST(WorkerGroup, APlanBeyondTheLimitsIsAnErrorNotACrash) {
  StepPlan plan = one_step(1, {1, 2}, 0, false);
  plan.sequences[0].block_table = {16};  // the group has 16 blocks: 0..15
  auto group = start_group(options_for(kNineHeads, 2, "shm"));
  ASSERT_TRUE(group.ok());
  EXPECT_EQ(run(**group, plan).status().code(), Code::kInternal);
  auto another = start_group(options_for(kNineHeads, 2, "shm"));
  EXPECT_EQ(run(**another, one_step(1, {886}, 0, false)).status().code(), Code::kInternal);
}

TEST(WorkerGroup, TheDeathOfTheFrontEndsItsWorkers) {
  int report[2];
  ASSERT_EQ(::pipe(report), 0);
  const pid_t front = ::fork();
  if (front == 0) {
    auto group = start_group(options_for(kNineHeads, 2, "shm"));
    const std::vector<int> pids = group.ok() ? (*group)->pids() : std::vector<int>{0, 0};
    (void)!::write(report[1], pids.data(), 2 * sizeof(int));
    ::pause();
    ::_exit(0);
  }
  int pids[2] = {0, 0};
  ASSERT_EQ(::read(report[0], pids, sizeof pids), static_cast<ssize_t>(sizeof pids));
  ASSERT_GT(pids[0], 0);
  ::kill(front, SIGKILL);
  ::waitpid(front, nullptr, 0);
  const auto gone = [](int pid) {
    // An orphan's new parent may be slow to reap it, so a zombie counts as gone.
    std::ifstream stat(cat("/proc/", pid, "/stat"));
    std::string word;
    for (int i = 0; i < 3 && stat >> word; ++i) continue;
    return !stat || word == "Z";
  };
  EXPECT_TRUE(eventually([&] { return gone(pids[0]) && gone(pids[1]); }));
  ::close(report[0]);
  ::close(report[1]);
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "worker") return shoal::worker_main(3);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
