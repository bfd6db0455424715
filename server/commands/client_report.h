#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/counted.h"
#include "runtime/base/deadline.h"
#include "runtime/base/log.h"
#include "runtime/base/number_text.h"
#include "server/cli/client_flags.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/serving/refused_request.h"

namespace shoal {

// What `shoal client` says on stderr, and its exit codes.

/// How long after a refusal a client that waits for its server asks again, in milliseconds.
inline constexpr int kAskAgainMs = 200;

inline constexpr int kExitOk = 0;
inline constexpr int kExitUsage = 64;
inline constexpr int kExitUnavailable = 69;
inline constexpr int kExitInternal = 70;

/// Prints the error, and returns exit_code, so that a command can end with `return fail(...)`.
inline int fail(int exit_code, const std::string& text) {
  say_error(std::string_view(text).substr(0, 1900), exit_code);
  return exit_code;
}

/// Ends a command whose output cannot be written.
inline int fail_to_write(const Status& why) {
  return report_failure(at(Stage::kRequest, why));
}

/// When an answer that is asked for now must be whole.
inline Deadline answer_deadline(const ClientFlags& flags) {
  return flags.timeout_s > 0 ? Deadline::after_s(flags.timeout_s) : Deadline::infinite();
}

/// Reports that the answer was not complete when --timeout had passed. `come` says how much of it
/// had come.
inline int fail_late(const ClientFlags& flags, const std::string& come) {
  return fail(kExitUnavailable,
              cat("the answer is not whole after the ", with_digits(flags.timeout_s, 6),
                  " s of --timeout; ", come, " of it came"));
}

/// What to add to a refusal that ends by itself, unless the user knows it.
inline const char* wait_hint(const ClientFlags& flags, std::optional<NotTaken> why) {
  const bool passes = why == NotTaken::kLoading || why == NotTaken::kRestarting;
  return passes && flags.wait_s <= 0 ? "; with --wait SECONDS the client waits for it" : "";
}

/// Below an answer that the model ended before any text. The client cannot see whether the model is
/// one for chats.
inline constexpr const char* kEmptyAnswerHint =
    "shoal client: the answer is empty: the model gave its end-of-sequence token before any text, as "
    "models for chats often do after a bare prompt. Ask its HTTP port with --chat or --messages\n";

/// Below an answer whose request left the seed to the server. The client does not know whether the
/// server sampled, nor with which seed. Empty if the request itself makes its answer repeat.
inline const char* seed_hint(const GenerationRequest& request) {
  if (request.seed || request.temperature == 0.0) return "";
  return "shoal client: the request has no seed, so if the server samples, the next answer may be "
         "another; --seed N or --temperature 0 avoids that\n";
}

/// Fewer tokens after the first say nothing about the speed: a few may have come together.
inline constexpr int64_t kLeastForSpeed = 16;

/// What follows the reason in the line of figures if --max-tokens is what has ended the answer,
/// else nothing.
inline std::string length_note(bool is_length, std::optional<int64_t> max_tokens, int64_t tokens) {
  return is_length && max_tokens == tokens ? cat(" (stopped at --max-tokens ", tokens, ")") : "";
}

/// The line of figures below an answer. Times are in seconds since the request.
inline std::string figures(int64_t tokens, int64_t prompt_tokens, const std::string& finish_reason,
                           double first_s, double last_s) {
  std::string line = cat("shoal client: ", counted(tokens, "token"), " after a prompt of ",
                         prompt_tokens, ", finish reason ", finish_reason, ", first token after ",
                         with_decimals(first_s, 3), " s");
  if (tokens - 1 >= kLeastForSpeed && last_s > first_s)
    line += cat(", then ", with_decimals(static_cast<double>(tokens - 1) / (last_s - first_s), 1),
                " tokens/s");
  return line + "\n";
}

}  // namespace shoal
