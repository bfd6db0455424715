#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace shoal {

/// Reads one answer of an HTTP/1.1 server as its bytes come in, for `shoal client`. What it reads
/// may be anything, because --server may name any port.
class HttpAnswer {
 public:
  /// Takes the next bytes, and appends what they hold of the body to *body. FAILED_PRECONDITION:
  /// the bytes are not an HTTP/1 answer, so the server at this address is of another kind.
  Status take(std::string_view bytes, std::string* body);
  /// The connection has ended. ABORTED: the answer has not; the message says what may have happened
  /// to the server.
  Status end();

  bool has_head() const { return state_ > State::kHead; }
  bool done() const { return state_ == State::kDone; }
  int status() const { return code_; }  ///< 200, 404, ...; 0 before the head has come

 private:
  enum class State { kHead, kToEnd, kLength, kChunkSize, kChunk, kChunkEnd, kTrailer, kDone };

  Status read_head();
  Status read_head_lines(std::string_view lines);
  Status read_chunk_size(std::string_view line);
  bool next_line(std::string* line);
  bool step(std::string* body, Status* status);

  State state_ = State::kHead;
  std::string buffer_;  // bytes that are not read yet
  int code_ = 0;
  uint64_t left_ = 0;  // of the body or of a chunk, in bytes
};

}  // namespace shoal
