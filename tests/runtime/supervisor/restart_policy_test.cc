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
  EXPECT_EQ(policy.failed(own(), "shm", 1), Next::kSameRung);
  policy.started(1);
  EXPECT_EQ(policy.failed(own(), "shm", 2), Next::kNextRung);
  policy.started(2);
  EXPECT_EQ(policy.failed(own(), "tcp", 3), Next::kSameRung) << "the next rung has its own chance";
}

TEST(RestartPolicy, EachRungCountsOnlyItsOwnFailures) {
  RestartPolicy policy(10);
  policy.started(0);
  EXPECT_EQ(policy.failed(own(), "shm", 1), Next::kSameRung);
  policy.started(1);  // shm no longer fitted, so the group runs over shm-lean now
  EXPECT_EQ(policy.failed(own(), "shm-lean", 2), Next::kSameRung) << "its first failure";
  EXPECT_EQ(policy.failed(from_outside(), "shm-lean", 3), Next::kSameRung);
  EXPECT_EQ(policy.failed(own(), "shm-lean", 4), Next::kNextRung);
}

TEST(RestartPolicy, KillsFromOutsideDoNotCountAgainstTheRung) {
  RestartPolicy policy(10);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(policy.failed(from_outside(), "shm", i), Next::kSameRung);
  EXPECT_EQ(policy.failed(own(), "shm", 6), Next::kSameRung);
  EXPECT_EQ(policy.failed(from_outside(), "shm", 7), Next::kSameRung);
  EXPECT_EQ(policy.failed(own(), "shm", 8), Next::kNextRung);
}

TEST(RestartPolicy, ARankThatIsHeldUpOrSpinsIsNoFaultOfTheRung) {
  RestartPolicy policy(10);
  for (const Fault fault : {Fault::kHeldUp, Fault::kSpinning}) {
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(policy.failed(failure(fault, Phase::kStep), "shm", i), Next::kSameRung);
  }
}

TEST(RestartPolicy, AShortageDoesNotCountAgainstTheRung) {
  RestartPolicy policy(10);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(policy.failed(failure(Fault::kShortage, Phase::kSelfTest), "shm", i),
              Next::kSameRung);
  EXPECT_EQ(policy.failed(own(), "shm", 6), Next::kSameRung);
}

TEST(RestartPolicy, AProcessThatDoesNotStartOrLoadIsNoFaultOfTheRung) {
  RestartPolicy policy(10);
  for (const Phase phase : {Phase::kLoad, Phase::kSpawn, Phase::kTouch}) {
    EXPECT_EQ(policy.failed(failure(Fault::kDeath, phase), "shm", 1), Next::kSameRung)
        << phase_name(phase);
  }
  EXPECT_EQ(policy.failed(own(), "shm", 2), Next::kSameRung);
  EXPECT_EQ(policy.failed(own(), "shm", 3), Next::kNextRung);
}

TEST(RestartPolicy, GivesUpWhenAllAreUsed) {
  RestartPolicy policy(3);
  for (int i = 0; i < 3; ++i) EXPECT_NE(policy.failed(from_outside(), "shm", i), Next::kGiveUp);
  EXPECT_EQ(policy.failed(from_outside(), "shm", 3), Next::kGiveUp);
  EXPECT_EQ(RestartPolicy(0).failed(own(), "shm", 0), Next::kGiveUp);
}

TEST(RestartPolicy, AMinuteOfHealthIsForgiveness) {
  RestartPolicy policy(1, 60);
  policy.started(0);
  EXPECT_EQ(policy.failed(own(), "shm", 10), Next::kSameRung);
  policy.started(11);
  EXPECT_EQ(policy.failed(own(), "shm", 71), Next::kSameRung)
      << "60 s of health: the rung's fault is forgotten too";
  policy.started(72);
  EXPECT_EQ(policy.failed(own(), "shm", 131.9), Next::kGiveUp);
}

TEST(RestartPolicy, TimeThatAGroupDidNotRunIsNoHealth) {
  RestartPolicy policy(1, 60);
  policy.started(0);
  EXPECT_EQ(policy.failed(own(), "shm", 1), Next::kSameRung);
  EXPECT_EQ(policy.failed(own(), "shm", 100), Next::kGiveUp) << "it never came up";
}

}  // namespace
}  // namespace shoal
