#include "server/commands/http_answer.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

namespace shoal {

namespace {

constexpr std::string_view kProtocol = "HTTP/1.";
constexpr size_t kMostHead = size_t{64} << 10;  // bytes; also of one line between chunks
constexpr std::string_view kHint =
    "; name the server's HTTP port, which is http= in its READY line";

Status no_http(std::string_view why) {
  return Status::error(Code::kFailedPrecondition, cat("the answer is not HTTP/1.1: ", why, kHint));
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

template <typename Number>
std::optional<Number> number_of(std::string_view text, int base) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

Status HttpAnswer::read_head_lines(std::string_view lines) {
  // "HTTP/1.1 200 OK"
  const std::optional<int> code = number_of<int>(lines.substr(9, 3), 10);
  if (lines.size() < 12 || lines[8] != ' ' || !code || *code < 100)
    return no_http("it has no status");
  code_ = *code;
  state_ = State::kToEnd;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find("\r\n"), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 2, lines.size()));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;  // the first line
    const std::string name = lower(line.substr(0, colon));
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (name == "transfer-encoding" && lower(value) == "chunked") {
      state_ = State::kChunkSize;
    } else if (name == "content-length" && state_ != State::kChunkSize) {
      const auto length = number_of<uint64_t>(value, 10);
      if (!length) return no_http("its length is no number");
      left_ = *length;
      state_ = left_ == 0 ? State::kDone : State::kLength;
    }
  }
  if (code_ == 204 || code_ == 304) state_ = State::kDone;
  return {};
}

/// Stays in kHead while the head is not whole. An interim answer (100) is passed over.
Status HttpAnswer::read_head() {
  if (buffer_.substr(0, kProtocol.size()) != kProtocol.substr(0, buffer_.size()))
    return no_http("it begins with other bytes");
  const size_t end = buffer_.find("\r\n\r\n");
  if (end == std::string::npos)
    return buffer_.size() > kMostHead ? no_http("its head has no end") : Status();
  if (end < 12) return no_http("it has no status");
  SHOAL_RETURN_IF_ERROR(read_head_lines(std::string_view(buffer_).substr(0, end)));
  buffer_.erase(0, end + 4);
  if (code_ >= 200) return {};
  code_ = 0;
  state_ = State::kHead;
  return buffer_.empty() ? Status() : read_head();
}

bool HttpAnswer::next_line(std::string* line) {
  const size_t end = buffer_.find("\r\n");
  if (end == std::string::npos) return false;
  *line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return true;
}

Status HttpAnswer::read_chunk_size(std::string_view line) {
  const auto size = number_of<uint64_t>(trimmed(line.substr(0, line.find(';'))), 16);
  if (!size) return no_http("a chunk has no size");
  left_ = *size;
  state_ = left_ == 0 ? State::kTrailer : State::kChunk;
  return {};
}

/// Reads the next part of the body. False: more bytes are needed first, or nothing is left.
bool HttpAnswer::step(std::string* body, Status* status) {
  if (state_ == State::kDone || buffer_.empty()) return false;
  if (state_ == State::kToEnd || state_ == State::kLength || state_ == State::kChunk) {
    const size_t size = state_ == State::kToEnd
                            ? buffer_.size()
                            : static_cast<size_t>(std::min<uint64_t>(left_, buffer_.size()));
    body->append(buffer_, 0, size);
    buffer_.erase(0, size);
    if (state_ == State::kToEnd) return false;
    left_ -= size;
    if (left_ == 0) state_ = state_ == State::kLength ? State::kDone : State::kChunkEnd;
    return true;
  }
  std::string line;
  if (!next_line(&line)) {
    if (buffer_.size() > kMostHead) *status = no_http("a line between its chunks has no end");
    return false;
  }
  if (state_ == State::kChunkSize) {
    *status = read_chunk_size(line);
  } else if (state_ == State::kTrailer) {
    if (line.empty()) state_ = State::kDone;
  } else {  // kChunkEnd
    if (!line.empty()) *status = no_http("a chunk is longer than its size");
    state_ = State::kChunkSize;
  }
  return status->ok();
}

Status HttpAnswer::take(std::string_view bytes, std::string* body) {
  buffer_ += bytes;
  if (state_ == State::kHead) SHOAL_RETURN_IF_ERROR(read_head());
  Status status;
  while (has_head() && step(body, &status)) {
  }
  return status;
}

Status HttpAnswer::end() {
  if (state_ == State::kToEnd) state_ = State::kDone;
  if (state_ == State::kDone) return {};
  // A port of another protocol may end the connection too.
  if (state_ == State::kHead && buffer_.empty())
    return Status::error(Code::kAborted,
                         "it has died, the connection has broken, or this is not its HTTP port, "
                         "which is http= in its READY line");
  return Status::error(Code::kAborted, "it has died, or the connection has broken");
}

}  // namespace shoal
