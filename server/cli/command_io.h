#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace shoal {

/// Writes all of it. DATA_LOSS "write NAME" with errno when the reader is gone or the disk is full.
Status write_all(int fd, std::string_view text, std::string_view name);

/// write_all to stdout: results for people and programs. Nothing is buffered, so what was written
/// is seen.
Status write_stdout(std::string_view text);

/// The whole of a file, pipe or "-" (stdin), for commands' inputs. INVALID_ARGUMENT naming flag and
/// path where it cannot be opened or read, is a directory, or has more than max_bytes.
Result<std::string> read_input(std::string_view flag, const std::string& path, size_t max_bytes);

/// The most that --file and --jsonl read.
inline constexpr size_t kMaxInputBytes = size_t{1} << 30;

/// Calls handle(line, "FLAG PATH line N") for each line of text that is not blank; stops at the
/// first error. A missing newline at the end is as good as one.
Status for_each_line(
    std::string_view text, std::string_view source,
    const std::function<Status(std::string_view line, const std::string& where)>& handle);

}  // namespace shoal
