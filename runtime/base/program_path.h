#pragma once
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

/// The path by which this process can start its own program once more: "/proc/self/fd/16", which is
/// a descriptor that it has kept since its start, so that it is right even after the file was
/// replaced or removed. Without /proc it is program_name(). UNAVAILABLE: there is no /proc, and
/// another file has that name by now. RESOURCE_EXHAUSTED, with errno: there was no descriptor.
Result<std::string> program_path();

/// The absolute path of the program's file at the start of this process, for messages and for what
/// lies beside it.
const std::string& program_name();

/// The build of this program: the id that the linker has made from its contents (NT_GNU_BUILD_ID),
/// in hexadecimal. Empty if it was linked without one.
const std::string& program_build();

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
Result<SelfCommand> self_command(std::vector<std::string> words);

/// "; /proc is not mounted", or "" if it is. For the messages of whatever needs it.
const char* proc_hint();

}  // namespace shoal
