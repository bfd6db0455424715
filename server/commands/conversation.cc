#include "server/commands/conversation.h"

#include <atomic>
#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <iterator>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"

namespace shoal {

namespace {

constexpr size_t kMostMessage = size_t{16} << 20;  // bytes of one line

/// Where the handler of Interrupts writes.
std::atomic<int> g_tell{-1};
/// A signal has been told that nobody has taken.
std::atomic<bool> g_told{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void tell_signal(int number) {
  if (g_told.exchange(true)) {
    clear_progress_line();
    ::_exit(128 + number);
  }
  const int error = errno;
  const char byte = static_cast<char>(number);
  (void)!::write(g_tell, &byte, 1);  // a full pipe tells enough
  errno = error;
}

/// Lines of stdin, of which each is a message.
class Lines {
 public:
  enum class Next { kLine, kEnd, kSignal };

  /// Waits for the next line. It is the last one also without a newline.
  Next read(int signals, std::string* line) {
    for (;;) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos || (over_ && any())) {
        *line = buffer_.substr(0, end);
        buffer_.erase(0, end == std::string::npos ? end : end + 1);
        if (line->ends_with('\r')) line->pop_back();
        return Next::kLine;
      }
      if (over_) return Next::kEnd;
      pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {signals, POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0) continue;
      if (fds[1].revents != 0) return Next::kSignal;
      char bytes[4096];
      const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
      over_ =
          n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN) || buffer_.size() > kMostMessage;
    }
  }
  /// What was typed before a Ctrl-C counts no more.
  void forget() { buffer_.clear(); }

 private:
  bool any() const { return !buffer_.empty(); }

  std::string buffer_;
  bool over_ = false;
};

}  // namespace

Interrupts::Interrupts() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return;
  told_.reset(ends[0]);
  tell_.reset(ends[1]);
  g_tell = tell_.get();
  for (size_t i = 0; i < std::size(kNumbers); ++i) {
    ::sigaction(kNumbers[i], nullptr, &before_[i]);
    if (before_[i].sa_handler == SIG_IGN) continue;
    struct sigaction action = before_[i];
    action.sa_handler = tell_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(kNumbers[i], &action, nullptr);
  }
}

Interrupts::~Interrupts() {
  if (!told_.valid()) return;
  for (size_t i = 0; i < std::size(kNumbers); ++i) ::sigaction(kNumbers[i], &before_[i], nullptr);
  g_tell = -1;
  g_told = false;
}

int Interrupts::take() {
  char byte = 0;
  if (::read(fd(), &byte, 1) != 1) return 0;
  g_told = false;
  return byte;
}

Status Interrupts::print(std::string_view text, std::string* printed) const {
  while (!text.empty()) {
    pollfd fds[] = {{STDOUT_FILENO, POLLOUT, 0}, {fd(), POLLIN, 0}};
    while (::poll(fds, 2, -1) < 0) {
    }
    if (fds[1].revents != 0) return Status::error(Code::kCancelled, "a signal came");
    // A pipe that can be written to takes as much without waiting.
    const std::string_view part = text.substr(0, PIPE_BUF);
    SHOAL_RETURN_IF_ERROR(write_stdout(part));
    *printed += part;
    text.remove_prefix(part.size());
  }
  return {};
}

void end_answer_line(bool interrupted) {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  if (!interrupted || ::poll(&out, 1, 0) > 0) (void)write_stdout("\n");
}

Result<OrderedJson> read_messages(const std::optional<std::string>& file, bool may_be_empty) {
  if (!file) return OrderedJson::array();
  SHOAL_ASSIGN_OR_RETURN(const std::string text, read_input("--messages", *file, kMaxInputBytes));
  SHOAL_ASSIGN_OR_RETURN(OrderedJson messages, parse_ordered_json(text, "--messages " + *file));
  if (!messages.is_array() || (messages.empty() && !may_be_empty))
    return Status::error(Code::kInvalidArgument,
                         cat("--messages ", *file,
                             " must be a JSON list of messages, such as "
                             "[{\"role\": \"user\", \"content\": \"Hello\"}]"));
  return messages;
}

Conversation::Conversation(OrderedJson messages, Interrupts& interrupts, Answer answer)
    : messages_(std::move(messages)),
      interrupts_(interrupts),
      answer_(std::move(answer)),
      terminal_(::isatty(STDIN_FILENO) == 1) {}

/// The last message of the user is answered, or, if that fails, taken back so that it can be said
/// again. False: the conversation is over.
bool Conversation::take_turn(int* exit_code) {
  const Turn turn = answer_(messages_);
  const bool stopped = turn.signal == SIGINT && terminal_;
  if (turn.over || (turn.signal != 0 && !stopped)) {
    if (turn.signal != 0) say_interrupted(turn.text.size(), "byte");
    *exit_code = turn.exit_code;
    return false;
  }
  if (turn.exit_code == 0 || (stopped && !turn.text.empty())) {
    say("assistant", turn.text);
  } else {
    messages_.erase(messages_.size() - 1);
  }
  if (turn.exit_code != 0 && !stopped && !terminal_) *exit_code = turn.exit_code;
  return true;
}

/// Ctrl-C at the prompt ends the conversation only if it comes twice.
bool Conversation::goes_on_after_signal(int* exit_code) {
  const int signal = interrupts_.take();
  if (signal == 0) return true;
  if (signal == SIGINT && terminal_ && !interrupted_at_prompt_) {
    interrupted_at_prompt_ = true;
    (void)write_all(STDERR_FILENO, "\n(Ctrl-D, or Ctrl-C once more, ends)\n", "a hint to stderr");
    return true;
  }
  *exit_code = 128 + signal;
  return false;
}

/// Whether --messages ends with a message of the user.
bool Conversation::asks_first() const {
  if (messages_.empty() || !messages_.back().is_object()) return false;
  const auto role = messages_.back().find("role");
  return role != messages_.back().end() && *role == "user";
}

int Conversation::run() {
  int exit_code = 0;
  Lines lines;
  if (asks_first() && !take_turn(&exit_code)) return exit_code;
  for (std::string line;;) {
    if (terminal_) (void)write_all(STDERR_FILENO, "> ", "the prompt to stderr");
    const Lines::Next next = lines.read(interrupts_.fd(), &line);
    if (next == Lines::Next::kEnd) {
      if (terminal_) (void)write_all(STDERR_FILENO, "\n", "the end to stderr");
      return exit_code;
    }
    if (next == Lines::Next::kSignal) {
      lines.forget();
      if (!goes_on_after_signal(&exit_code)) return exit_code;
      continue;
    }
    interrupted_at_prompt_ = false;
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    say("user", line);
    if (!take_turn(&exit_code)) return exit_code;
  }
}

}  // namespace shoal
