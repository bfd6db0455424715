#pragma once
#include "runtime/base/status.h"

namespace shoal {

/// Tries, in a child, the system calls that the front and its ranks make and that a filter may not
/// know. UNAVAILABLE, with its name: a filter kills whoever makes one of them, so that a start
/// would end without a word. One that answers with an errno is no error here, because whoever makes
/// the call copes with it or says so. It forks, so call it while this process has one thread.
Status check_call_filter();

}  // namespace shoal
