#include "server/commands/request_lines.h"

#include <algorithm>
#include <utility>

#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "server/cli/command_io.h"

namespace shoal {
namespace {

/// An error has at most 1900 bytes, so this many lines of this length fit with what is around them.
constexpr size_t kMostLines = 20;
constexpr size_t kMostBytes = 1600;
constexpr size_t kMostBytesOfALine = 240;

/// Why one line is wrong, indented below the head of the error.
std::string entry(const Status& why) {
  std::string text = "\n  ";
  for (const char c : why.plain_text(kMostBytesOfALine))
    text += c == '\n' ? "\n  " : std::string(1, c);
  return text;
}

/// What --keep-going, which only requests have, makes of such a file. unnamed: the wrong lines that
/// the error leaves out. good: the lines that are not wrong.
std::string instead_of_nothing(int64_t unnamed, int64_t good) {
  std::string text = "\nnothing was run";
  if (unnamed + good > 0) text += "; --keep-going";
  if (unnamed > 0) text += " names all";
  if (good > 0) text += cat(unnamed > 0 ? ", and" : "", " runs the ", counted(good, "other line"));
  return text;
}

Status between(const std::string& before, const Status& status, const std::string& after) {
  std::vector<Cause> causes = status.causes();
  causes.front().what = before + causes.front().what;
  causes.back().what += after;
  return Status(std::move(causes));
}

}  // namespace

Status in_source(const std::string& source, const Status& status) {
  return between(source + " ", status, "");
}

Status RequestLine::named() const {
  if (wrong.ok() || number == 0) return wrong.status;
  return between(cat("line ", number, ": "), wrong.status, "");
}

Result<std::vector<RequestLine>> read_request_lines(const std::string& path,
                                                    const GenerationRequest& defaults,
                                                    LineKind kind) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, read_input("--jsonl", path, kMaxInputBytes));
  std::vector<RequestLine> lines;
  for_each_numbered_line(text, [&](std::string_view line, int64_t number) {
    RequestLine& one = lines.emplace_back();
    one.number = number;
    Result<GenerationRequest, RequestError> request =
        parse_request_json(line, defaults, kind, &one.id, &one.messages);
    if (request.ok())
      one.request = std::move(request).value();
    else
      one.wrong = request.error();
  });
  return lines;
}

std::string sampling_of_model(const GenerationConfig& model, const std::vector<RequestLine>& lines,
                              uint64_t seed) {
  const auto samples = [&](const RequestLine& line) {
    return line.wrong.ok() && line.request.temperature.value_or(model.temperature.value_or(1)) > 0;
  };
  std::string text;
  const auto add = [&](const char* name, const auto& value, auto asked, bool if_sampled) {
    const bool left = std::any_of(lines.begin(), lines.end(), [&](const RequestLine& line) {
      return line.wrong.ok() && !(line.request.*asked) && (!if_sampled || samples(line));
    });
    if (value && left) text += cat(text.empty() ? "" : ", ", name, ' ', *value);
  };
  add("temperature", model.temperature, &GenerationRequest::temperature, false);
  add("top-p", model.top_p, &GenerationRequest::top_p, true);
  add("top-k", model.top_k, &GenerationRequest::top_k, true);
  add("min-p", model.min_p, &GenerationRequest::min_p, true);
  add("repetition penalty", model.repetition_penalty, &GenerationRequest::repetition_penalty,
      false);
  if (text.empty()) return "";
  const bool seeded = std::any_of(lines.begin(), lines.end(), [&](const RequestLine& line) {
    return samples(line) && !line.request.seed;
  });
  // Equal lines have equal answers then.
  const char* whose = lines[0].number > 0 ? " for each line that has no \"seed\" of its own" : "";
  return cat("sampling from generation_config.json: ", text,
             seeded ? cat("; seed ", seed, whose) : "",
             std::any_of(lines.begin(), lines.end(), samples)
                 ? "; --temperature 0 takes the most likely token"
                 : "");
}

Status wrong_lines(const std::string& source, const std::vector<RequestLine>& lines,
                   LineKind kind) {
  const auto wrong = std::count_if(lines.begin(), lines.end(),
                                   [](const RequestLine& line) { return !line.wrong.ok(); });
  const auto what_then = [&](int64_t unnamed) {
    return kind == LineKind::kRequest
               ? instead_of_nothing(unnamed, static_cast<int64_t>(lines.size()) - wrong)
               : "";
  };
  std::string text;
  int64_t named = 0;
  for (const RequestLine& line : lines) {
    if (line.wrong.ok()) continue;
    if (wrong == 1) return between(source + " ", line.named(), what_then(0));
    const std::string next = entry(line.named());
    if (named == kMostLines || text.size() + next.size() > kMostBytes) break;
    text += next;
    ++named;
  }
  if (wrong == 0) return {};
  if (named < wrong) text += cat("\n  and ", counted(wrong - named, "more line", "more lines"));
  text += what_then(wrong - named);
  return Status::error(
      Code::kInvalidArgument,
      cat(source, ": ", wrong, " of ", counted(lines.size(), "line"), " are wrong:", text));
}

std::string error_json(const RequestLine& line, const RequestError& error) {
  // A bug or lost ranks are for those who mend Shoal; anything else is for who wrote the line.
  const bool is_for_us = error.code() == Code::kInternal || error.code() == Code::kAborted;
  const std::string message = is_for_us ? error.status.to_string() : error.status.plain_text();
  const std::string field =
      error.field == RequestField::kNone ? "" : cat("\"field\":\"", field_name(error.field), "\",");
  return cat('{', line_json(line.id, line.number), "\"error\":{\"code\":\"",
             code_name(error.code()), "\",", field, "\"message\":\"", json_escape(message), "\"}}");
}

}  // namespace shoal
