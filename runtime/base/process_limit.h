#pragma once
#include <cstdint>
#include <string>

#include "runtime/base/status.h"

namespace shoal {

/// Whether the kernel refuses memory for the stack of a thread right now. It allocates nothing, so
/// that a signal handler may call it.
bool stack_is_refused();

/// Whether a seccomp filter answers EPERM to clone3, by which the C library starts threads and
/// processes. It allocates nothing.
bool clone3_is_denied();

/// "; a seccomp filter denies clone3 ...", for an error that a process or thread is not permitted
/// (EPERM). It allocates nothing.
const char* process_denial();

/// The smallest stack with which the program runs, in bytes. Most of it is what a product of many
/// rows widens into (kernels/cpu/many_rows.h).
inline constexpr uint64_t kLeastStackBytes = uint64_t{1} << 20;

/// "; its user may have 16 processes and threads (ulimit -u), and a container may limit them too
/// (pids)", for an error that a process or thread could not be started (EAGAIN). If its stack is
/// refused, which is the same error, the limit of memory instead.
std::string process_limit();

/// "; a process may have 60.0 MiB (ulimit -v)", for an error that address space was refused; empty:
/// there is no such limit.
std::string address_space_limit();

/// Takes this much address space, and no memory, for as long as the process lives.
/// RESOURCE_EXHAUSTED, with the limit: it may not have as much.
Status reserve_address_space(int64_t bytes);

/// The code of an error that a descriptor could not be made: RESOURCE_EXHAUSTED if something ran
/// out, otherwise UNAVAILABLE.
Code descriptor_code(int error);

/// What is known of the cause of such an error, to be put behind it: "; a process may have only 16
/// open files (ulimit -n)". Empty if nothing is known.
std::string descriptor_hint(int error);

}  // namespace shoal
