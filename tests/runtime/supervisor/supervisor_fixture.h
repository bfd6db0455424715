#pragma once
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <utility>
#include <vector>

#include "runtime/rank/rank.h"
#include "runtime/supervisor/supervisor.h"
#include "tests/guard.h"
#include "tests/runtime/supervisor/echo_work.h"

namespace shoal {

inline SupervisorOptions options_for(int max_restarts) {
  SupervisorOptions options;
  options.ladder.order = {"memfd", "tcp"};
  options.group.world_size = 2;
  options.group.startup_timeout_s = kGuardSeconds;
  options.group.step_timeout_s = kGuardSeconds;
  options.group.evidence_ms = options.group.explain_ms = kGuardMs;
  options.group.start.collective_timeout_ms = kGuardMs;
  options.max_restarts = max_restarts;
  options.answer_s = kGuardSeconds;  // a step that loses the ranks returns when they run again
  return options;
}

/// What the hooks received.
struct Told {
  std::vector<Failure> restarts;
  std::vector<std::string> rungs;
  std::vector<double> pauses;  // in seconds, after each try that met a shortage
};

inline SupervisorHooks hooks_into(Told* told) {
  SupervisorHooks hooks;
  hooks.on_restart = [told](const Failure& why, const RestartCount&) {
    told->restarts.push_back(why);
  };
  hooks.on_restarted = [told](const std::string& rung, double) { told->rungs.push_back(rung); };
  return hooks;
}

inline std::unique_ptr<Supervisor> started(SupervisorOptions options) {
  Attempt<std::unique_ptr<Supervisor>> supervisor =
      Supervisor::start(std::move(options), gather_host_facts({}));
  EXPECT_TRUE(supervisor.ok()) << supervisor.status().to_string();
  return supervisor.ok() ? std::move(supervisor).value() : nullptr;
}

/// Sets the soft limit of this process, as far as the hard one allows.
inline void set_soft_limit(int resource, rlim_t value) {
  struct rlimit limit = {};
  ::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
  limit.rlim_cur = std::min(value, limit.rlim_max);
  ::setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
}

/// The main function of these tests, which are their own workers.
inline int supervisor_test_main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "worker") {
    EchoWork work;
    return Rank(3, work).run();
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace shoal
