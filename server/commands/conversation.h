#pragma once
#include <csignal>
#include <functional>
#include <optional>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/ordered_json.h"
#include "runtime/base/status.h"

namespace shoal {

/// SIGINT and SIGTERM as a descriptor, while this object lives, of which there may be one at a
/// time: Ctrl-C must end an answer, and not the conversation. A second signal that comes before
/// the first was taken ends the process. What the program was told to ignore stays ignored. If
/// there is no descriptor left, signals end the process as before.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  int fd() const { return told_.get(); }  ///< can be read once a signal has come
  /// The signal that has come, or 0.
  int take();
  /// Writes this to stdout, whose reader may have stopped, and adds what it has written to
  /// *printed. CANCELLED: a signal came before all of it was written; it can still be taken. Other
  /// errors are those of write_stdout().
  Status print(std::string_view text, std::string* printed) const;

 private:
  static constexpr int kNumbers[] = {SIGINT, SIGTERM};

  Fd told_, tell_;  // a pipe, of which the handler writes to the second end
  struct sigaction before_[2]{};
};

/// Ends the line of an answer on stdout. One that a signal has ended does not wait for its reader.
void end_answer_line(bool interrupted);

/// How a turn of the conversation has ended.
struct Turn {
  std::string text;   ///< what was printed of the answer
  int exit_code = 0;  ///< not 0: it failed, or a signal ended it
  int signal = 0;     ///< the signal that ended the answer, or 0
  bool over = false;  ///< it failed so that no other turn can follow
};

/// The messages in the file of --messages; none without a file. INVALID_ARGUMENT: it is no JSON
/// list, or has none although there must be some.
Result<OrderedJson> read_messages(const std::optional<std::string>& file, bool may_be_empty);

/// What --chat is: a conversation that is read from stdin, a message on each line. If a turn fails,
/// its message is taken back, so that it can be said again.
class Conversation {
 public:
  /// Prints the answer to these messages as it comes, and what was wrong if it fails, but not that
  /// a signal came.
  using Answer = std::function<Turn(const OrderedJson& messages)>;

  /// Begins with these messages, the last of which is answered first if it is the user's.
  Conversation(OrderedJson messages, Interrupts& interrupts, Answer answer);

  /// Talks until stdin ends or a signal does. On a terminal Ctrl-C ends only the answer, and at the
  /// prompt the conversation if it comes twice. Returns main's exit code. Without a terminal it is
  /// that of the last turn that failed.
  int run();

 private:
  bool asks_first() const;
  bool take_turn(int* exit_code);
  bool goes_on_after_signal(int* exit_code);
  void say(const char* role, const std::string& text) {
    messages_.push_back({{"role", role}, {"content", text}});
  }

  OrderedJson messages_;
  Interrupts& interrupts_;
  const Answer answer_;
  const bool terminal_;
  bool interrupted_at_prompt_ = false;
};

}  // namespace shoal
