#include "runtime/supervisor/restart_policy.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

using Next = RestartPolicy::Next;

Failure failure(Fault fault, Phase phase) {
  return {Status::error(Code::kAborted, "a rank ended"), phase, 0, fault};
}
Failure own() {
  return failure(Fault::kDeath, Phase::kStep);
}
Failure from_outside() {
  return failure(Fault::kOutside, Phase::kStep);
}

TEST(RestartPolicy, TheSameRungOnceThenTheNext) {
  RestartPolicy policy(10);
  policy.started(0);
  EXPECT_EQ(policy.failed(own(), "shm", 1, 0), Next::kSameRung);
  policy.started(1);
  EXPECT_EQ(policy.failed(own(), "shm", 2, 0), Next::kNextRung);
  policy.started(2);
  EXPECT_EQ(policy.failed(own(), "tcp", 3, 0), Next::kSameRung)
      << "the next rung has its own chance";
}

TEST(RestartPolicy, EachRungCountsOnlyItsOwnFailures) {
  RestartPolicy policy(10);
  policy.started(0);
  EXPECT_EQ(policy.failed(own(), "shm", 1, 0), Next::kSameRung);
  policy.started(1);  // shm no longer fitted, so the group runs over shm-lean now
  EXPECT_EQ(policy.failed(own(), "shm-lean", 2, 0), Next::kSameRung) << "its first failure";
  EXPECT_EQ(policy.failed(from_outside(), "shm-lean", 3, 0), Next::kSameRung);
  EXPECT_EQ(policy.failed(own(), "shm-lean", 4, 0), Next::kNextRung);
}

TEST(RestartPolicy, KillsFromOutsideDoNotCountAgainstTheRung) {
  RestartPolicy policy(10);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(policy.failed(from_outside(), "shm", i, 0), Next::kSameRung);
  EXPECT_EQ(policy.failed(own(), "shm", 6, 0), Next::kSameRung);
  EXPECT_EQ(policy.failed(from_outside(), "shm", 7, 0), Next::kSameRung);
  EXPECT_EQ(policy.failed(own(), "shm", 8, 0), Next::kNextRung);
}

TEST(RestartPolicy, ARankThatIsHeldUpOrSpinsIsNoFaultOfTheRung) {
  RestartPolicy policy(10);
  for (const Fault fault : {Fault::kHeldUp, Fault::kSpinning}) {
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(policy.failed(failure(fault, Phase::kStep), "shm", i, 0), Next::kSameRung);
  }
}

TEST(RestartPolicy, AShortageDoesNotCountAgainstTheRung) {
  RestartPolicy policy(10);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(policy.failed(failure(Fault::kShortage, Phase::kSelfTest), "shm", i, 0),
              Next::kSameRung);
  EXPECT_EQ(policy.failed(own(), "shm", 6, 0), Next::kSameRung);
}

TEST(RestartPolicy, AProcessThatDoesNotStartOrLoadIsNoFaultOfTheRung) {
  RestartPolicy policy(10);
  for (const Phase phase : {Phase::kLoad, Phase::kSpawn, Phase::kTouch}) {
    EXPECT_EQ(policy.failed(failure(Fault::kDeath, phase), "shm", 1, 0), Next::kSameRung)
        << phase_name(phase);
  }
  EXPECT_EQ(policy.failed(own(), "shm", 2, 0), Next::kSameRung);
  EXPECT_EQ(policy.failed(own(), "shm", 3, 0), Next::kNextRung);
}

TEST(RestartPolicy, GivesUpWhenAllAreUsed) {
  RestartPolicy policy(3);
  for (int i = 0; i < 3; ++i) EXPECT_NE(policy.failed(from_outside(), "shm", i, 0), Next::kGiveUp);
  EXPECT_EQ(policy.failed(from_outside(), "shm", 3, 0), Next::kGiveUp);
  EXPECT_EQ(RestartPolicy(0).failed(own(), "shm", 0, 0), Next::kGiveUp);
}

TEST(RestartPolicy, AMinuteOfHealthIsForgiveness) {
  RestartPolicy policy(1, 60);
  policy.started(0);
  EXPECT_EQ(policy.failed(own(), "shm", 10, 0), Next::kSameRung);
  policy.started(11);
  EXPECT_EQ(policy.failed(own(), "shm", 71, 0), Next::kSameRung)
      << "60 s of health: the rung's fault is forgotten too";
  EXPECT_TRUE(policy.last_counts()) << "although the number is what it was";
  EXPECT_EQ(policy.restarts(), 1);
  policy.started(72);
  EXPECT_EQ(policy.failed(own(), "shm", 131.9, 0), Next::kGiveUp);
}

TEST(RestartPolicy, TimeThatAGroupDidNotRunIsNoHealth) {
  RestartPolicy policy(1, 60);
  policy.started(0);
  EXPECT_EQ(policy.failed(own(), "shm", 1, 0), Next::kSameRung);
  EXPECT_EQ(policy.failed(own(), "shm", 100, 0), Next::kGiveUp) << "it never came up";
}

TEST(RestartPolicy, AKillFromOutsideIsFreeAfterEnoughGoodSteps) {
  RestartPolicy policy(1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(policy.failed(from_outside(), "shm", i, RestartPolicy::kStepsThatEarn),
              Next::kSameRung);
    EXPECT_EQ(policy.restarts(), 0);
    EXPECT_FALSE(policy.last_counts());
  }
  EXPECT_EQ(policy.failed(from_outside(), "shm", 6, RestartPolicy::kStepsThatEarn - 1),
            Next::kSameRung);
  EXPECT_EQ(policy.restarts(), 1);
  EXPECT_EQ(policy.failed(from_outside(), "shm", 7, RestartPolicy::kStepsThatEarn), Next::kSameRung)
      << "it costs none of those that are used up";
  EXPECT_EQ(policy.failed(from_outside(), "shm", 8, 0), Next::kGiveUp);
}

TEST(RestartPolicy, OtherFailuresCountHoweverMuchWasDone) {
  for (const Fault fault : {Fault::kDeath, Fault::kOutOfMemory, Fault::kHeldUp, Fault::kSpinning}) {
    RestartPolicy policy(1);
    EXPECT_EQ(policy.failed(failure(fault, Phase::kStep), "shm", 1, 1000), Next::kSameRung);
    EXPECT_EQ(policy.failed(failure(fault, Phase::kStep), "shm", 2, 1000), Next::kGiveUp);
  }
}

TEST(RestartPolicy, AWantOfMemoryDoesNotCountAgainstTheRung) {
  RestartPolicy policy(10);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(policy.failed(failure(Fault::kOutOfMemory, Phase::kStep), "shm", i, 0),
              Next::kSameRung);
  }
}

}  // namespace
}  // namespace shoal
