#pragma once
#include <string>
#include <sys/types.h>
#include <vector>

namespace shoal::shmtest {

struct Process {
  pid_t pid = 0;
  std::string name;
};

/// The living processes that are not pid 1, as /proc shows them.
std::vector<Process> living_processes();

/// The living processes that descend from this one. If this process is a subreaper
/// (PR_SET_CHILD_SUBREAPER), no descendant is missed.
std::vector<Process> living_descendants();

/// Kills all descendants and waits for their ends. This process must be their subreaper, and lets
/// no child of its own live.
void end_descendants();

}  // namespace shoal::shmtest
