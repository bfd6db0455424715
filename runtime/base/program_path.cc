#include "runtime/base/program_path.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <link.h>
#include <string_view>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/process_limit.h"

// The linker defines it in every program that is not linked statically.
extern "C" const char kDynamicSection[] __asm__("_DYNAMIC") __attribute__((weak));

namespace shoal {
namespace {

constexpr const char* kSelf = "/proc/self/exe";
/// Above the numbers under which a child gets descriptors (runtime/control/descriptors.h), which
/// are put in place before the program is executed.
constexpr int kLeastFd = 16;

/// The kernel loads no interpreter, and so gives no base for one, if what it starts is the loader
/// itself, or a program that is linked statically and has no dynamic section.
bool started_by_the_loader() {
  return ::getauxval(AT_BASE) == 0 && kDynamicSection != nullptr;
}

/// "" if there is no such file.
std::string real_path(const char* path) {
  char* const whole = ::realpath(path, nullptr);
  const std::string text = whole == nullptr ? "" : whole;
  std::free(whole);
  return text;
}

/// An absolute path, because the working directory may be another one later. The loader gives us
/// the path of the program as argv[0]. A path in /proc is one of our parent's, which says nothing
/// here.
std::string path_at_start() {
  const bool by_loader = started_by_the_loader();
  if (const std::string self = by_loader ? "" : real_path(kSelf); !self.empty()) return self;
  const auto* given = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  if (by_loader || given == nullptr) given = program_invocation_name;
  const std::string whole = std::string_view(given).starts_with("/proc/") ? "" : real_path(given);
  return whole.empty() ? given : whole;
}

const std::string kPathAtStart = path_at_start();

/// The program's file. The process has no use for its bytes, so that it may be unreadable.
struct ProgramFile {
  Fd fd;
  int error = 0;
};

ProgramFile open_program() {
  Fd low(started_by_the_loader() ? -1 : ::open(kSelf, O_PATH | O_CLOEXEC));
  if (!low.valid()) low.reset(::open(kPathAtStart.c_str(), O_PATH | O_CLOEXEC));
  ProgramFile file;
  file.fd.reset(low.valid() ? ::fcntl(low.get(), F_DUPFD_CLOEXEC, kLeastFd) : -1);
  if (!file.fd.valid()) file.error = errno == EINVAL ? EMFILE : errno;  // the limit is below it
  return file;
}

const ProgramFile kProgram = open_program();

/// Whether the path leads to the program's file.
bool is_the_program(const std::string& path) {
  struct stat there {
  }, own{};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(kProgram.fd.get(), &own) == 0 &&
         there.st_dev == own.st_dev && there.st_ino == own.st_ino;
}

/// Called with the program first. Finds the note among those of one segment.
int find_build(dl_phdr_info* program, size_t, void* to) {
  constexpr size_t kAlign = 4;
  const auto padded = [](size_t size) { return (size + kAlign - 1) / kAlign * kAlign; };
  for (int i = 0; i < program->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = program->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE || segment.p_align != kAlign) continue;
    const auto* note = reinterpret_cast<const char*>(program->dlpi_addr + segment.p_vaddr);
    const char* const end = note + segment.p_memsz;
    ElfW(Nhdr) header;
    for (; note + sizeof header < end; note += padded(header.n_namesz) + padded(header.n_descsz)) {
      std::memcpy(&header, note, sizeof header);
      note += sizeof header;
      if (header.n_type != NT_GNU_BUILD_ID || std::string_view(note) != ELF_NOTE_GNU) continue;
      static_cast<std::string*>(to)->assign(note + padded(header.n_namesz), header.n_descsz);
    }
  }
  return 1;  // the others are libraries
}

std::string build_of_program() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id, text;
  ::dl_iterate_phdr(find_build, &id);
  for (const char byte : id) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

Result<std::string> program_path() {
  if (!kProgram.fd.valid()) {
    return Status::error(descriptor_code(kProgram.error),
                         cat("the program ", kPathAtStart, " could not be kept open",
                             descriptor_hint(kProgram.error)),
                         kProgram.error);
  }
  const std::string open = cat("/proc/self/fd/", kProgram.fd.get());
  if (::access(open.c_str(), F_OK) == 0) return open;
  if (is_the_program(kPathAtStart)) return kPathAtStart;
  return Status::error(Code::kUnavailable,
                       cat("without /proc the program is started by its path, and ", kPathAtStart,
                           " is another file by now, or gone; start the server again"));
}

const std::string& program_name() {
  return kPathAtStart;
}

const std::string& program_build() {
  static const std::string build = build_of_program();
  return build;
}

std::vector<char*> SelfCommand::argv() {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

Result<SelfCommand> self_command(std::vector<std::string> words) {
  const char* const emulator = std::getenv("SHOAL_TEST_EMULATOR");
  if (emulator == nullptr || *emulator == 0) {
    words.insert(words.begin(), "shoal");
    SHOAL_ASSIGN_OR_RETURN(std::string path, program_path());
    return SelfCommand{std::move(path), std::move(words)};
  }
  // For the emulator a path in /proc/self would be its own.
  words.insert(words.begin(), {emulator, "-0", "shoal", program_name()});
  return SelfCommand{emulator, std::move(words)};
}

const char* proc_hint() {
  return ::access("/proc/self/stat", F_OK) == 0 ? "" : "; /proc is not mounted";
}

}  // namespace shoal
