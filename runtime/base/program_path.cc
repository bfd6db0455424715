#include "runtime/base/program_path.h"

#include <cerrno>
#include <cstdlib>
#include <sys/auxv.h>
#include <unistd.h>
#include <utility>

// The linker defines it in every program that is not linked statically.
extern "C" const char kDynamicSection[] __asm__("_DYNAMIC") __attribute__((weak));

namespace shoal {
namespace {

constexpr const char* kSelf = "/proc/self/exe";

/// The kernel loads no interpreter, and so gives no base for one, if what it starts is the loader
/// itself, or a program that is linked statically and has no dynamic section.
bool started_by_the_loader() {
  return ::getauxval(AT_BASE) == 0 && kDynamicSection != nullptr;
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

std::vector<char*> SelfCommand::argv() {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

SelfCommand self_command(std::vector<std::string> words) {
  const char* const emulator = std::getenv("SHOAL_TEST_EMULATOR");
  if (emulator == nullptr || *emulator == 0) {
    words.insert(words.begin(), "shoal");
    return {program_path(), std::move(words)};
  }
  // For the emulator /proc/self/exe would be itself.
  char* const whole = ::realpath(program_path(), nullptr);
  const std::string program = whole == nullptr ? program_path() : whole;
  std::free(whole);
  words.insert(words.begin(), {emulator, "-0", "shoal", program});
  return {emulator, std::move(words)};
}

const char* proc_hint() {
  return ::access("/proc/self/stat", F_OK) == 0 ? "" : "; /proc is not mounted";
}

}  // namespace shoal
