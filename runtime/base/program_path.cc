#include "runtime/base/program_path.h"

#include <cerrno>
#include <cstdlib>
#include <sys/auxv.h>
#include <unistd.h>

namespace shoal {
namespace {

constexpr const char* kSelf = "/proc/self/exe";

/// The kernel loads no interpreter, and so gives no base for one, if what it starts is the loader
/// itself.
bool started_by_the_loader() {
  return ::getauxval(AT_BASE) == 0;
}

/// An absolute path, because the working directory may be another one later. The loader gives us
/// the path of the program as argv[0].
std::string path_at_start() {
  const auto* given = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  if (started_by_the_loader() || given == nullptr) given = program_invocation_name;
  char* const whole = ::realpath(given, nullptr);
  std::string path = whole == nullptr ? given : whole;
  std::free(whole);
  return path;
}

const std::string kPathAtStart = path_at_start();

}  // namespace

const char* program_path() {
  const bool self = !started_by_the_loader() && ::access(kSelf, X_OK) == 0;
  return self ? kSelf : kPathAtStart.c_str();
}

const char* proc_hint() {
  return ::access("/proc/self/stat", F_OK) == 0 ? "" : "; /proc is not mounted";
}

}  // namespace shoal
