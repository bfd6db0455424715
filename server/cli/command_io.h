#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace shoal {

/// Writes the whole text. Error: DATA_LOSS "write NAME" with errno if the reader is gone or the
/// disk is full.
Status write_all(int fd, std::string_view text, std::string_view name);

/// write_all to stdout, for results that people or programs read. Nothing is buffered, so the
/// output is visible at once.
Status write_stdout(std::string_view text);

/// Tells the user on stderr what the command has done: as a line of the log if that has such lines
/// (--log-level info), else as "shoal COMMAND: TEXT", or "shoal: TEXT" if it does not matter which
/// command it was. A log in JSON that has no such lines stays as it is, because this would be none
/// of its objects.
void say_done(std::string_view command, std::string_view text);

/// The same of what a person would like to know at a terminal. Anything else than a terminal gets
/// it only as a line of the log.
void say_aside(std::string_view command, std::string_view text);

/// Whether that error is a reader that wanted no more of the output, as `head` does.
bool reader_left(const Status& status);

/// Reads a whole file, pipe or "-" (stdin), for the inputs of commands. Error: INVALID_ARGUMENT,
/// naming flag and path, if it cannot be opened or read, is a directory, or has more than
/// max_bytes.
Result<std::string> read_input(std::string_view flag, const std::string& path, size_t max_bytes);

/// The largest input that --file and --jsonl read, in bytes.
inline constexpr size_t kMaxInputBytes = size_t{1} << 30;

/// Calls handle(line, N) for each line of text that is not blank, where N counts all lines from 1.
/// The last line may lack its newline.
void for_each_numbered_line(
    std::string_view text,
    const std::function<void(std::string_view line, int64_t number)>& handle);

/// The same with handle(line, "FLAG PATH line N"), up to the first error.
Status for_each_line(
    std::string_view text, std::string_view source,
    const std::function<Status(std::string_view line, const std::string& where)>& handle);

}  // namespace shoal
