#pragma once
#include <string_view>

namespace shoal {

/// The exit code of a process that ended because memory, threads or descriptors ran out (sysexits'
/// EX_UNAVAILABLE). The front takes it for that when a rank ends with it.
inline constexpr int kShortageExitCode = 69;

/// Makes an end that no code expected say its reason, even if there is no memory left to say it
/// with: an exception that nobody catches (std::bad_alloc, std::system_error of a thread) and
/// abort(), by which libraries end the process when they are refused memory or a thread. The reason
/// goes to stderr as one line that names the resource and its limit. Then the process exits with
/// kShortageExitCode. Other exceptions exit with 70, an internal error.
///
/// From an abort() alone nothing is concluded, because a library's own fault ends like that too:
/// unless a resource is refused at that moment, the process dies of SIGABRT.
void install_last_words();

/// Makes SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGSYS leave a line before they end the process as
/// they would without it. A signal that has another handler (a sanitizer's) or is ignored is left
/// alone. Call it in the front's main thread, which gets a stack for the handler, so that an
/// overflow of its own is told too.
void install_fault_words();

/// Ends the process with its last words if its stack may have less than kLeastStackBytes
/// (runtime/base/process_limit.h): it would die of SIGSEGV without a word. Call it first of all.
void refuse_small_stack();

/// From here on an abort() counts as a shortage even if nothing is refused at that moment. For the
/// front, whose libraries abort if they are refused something for an instant, and not otherwise.
void take_aborts_for_shortages();

/// Keeps the beginning of what a library has said last. If it aborts, the last words repeat it. Any
/// thread may call it.
void remember_library_error(std::string_view text);

}  // namespace shoal
