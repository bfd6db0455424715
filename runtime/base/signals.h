#pragma once
#include <csignal>
#include <initializer_list>

namespace shoal {

/// The signals that are for the front, which acts on the first four and ignores the others. They
/// may reach the whole process group, so a rank ignores all of them.
inline constexpr int kFrontSignals[] = {SIGTERM, SIGINT,  SIGQUIT, SIGHUP,
                                        SIGUSR1, SIGUSR2, SIGALRM};

/// The set of those of these signals that were not ignored when the program started, as `nohup` or
/// a shell's `&` asks for: what is ignored must stay so. Call it before a disposition is changed.
inline sigset_t not_ignored(std::initializer_list<int> numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : numbers) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, number);
  }
  return set;
}

}  // namespace shoal
