#pragma once
#include <string>
#include <vector>

namespace shoal {

/// The path by which this process can start its own program once more: "/proc/self/exe", which is
/// right even after the file was replaced or removed, or else the path that the kernel was given at
/// the start (without /proc, or if the program was started through the dynamic loader, whose file
/// /proc/self/exe then is).
const char* program_path();

/// What starts this program once more: the file to execute, and its arguments with argv[0]. That is
/// program_path() with "shoal" and `words`. If SHOAL_TEST_EMULATOR names an emulator (qemu-user),
/// that is started on this program, because the kernel cannot start a program of another processor
/// by itself.
struct SelfCommand {
  std::string file;
  std::vector<std::string> words;

  /// Pointers into `words`, and nullptr last.
  std::vector<char*> argv();
};
SelfCommand self_command(std::vector<std::string> words);

/// "; /proc is not mounted", or "" if it is. For the messages of whatever needs it.
const char* proc_hint();

}  // namespace shoal
