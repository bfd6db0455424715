#pragma once
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/cat.h"

namespace shoal {

/// Runs the body in a child process, so that limits, mounts and filters end with it. Returns the
/// body's text, or how the child died. By convention the text is "" if all is well, and "skip: ..."
/// if the machine forbids the test.
inline std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = body();
    ::_exit(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0
                                                                                            : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[1024];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? cat("signal ", WTERMSIG(status)) : text;
}

}  // namespace shoal
