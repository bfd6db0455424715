#include "models/tokenizer.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/text_values.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/commands.h"

namespace shoal {
namespace {

std::string joined(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

std::string ids_json(const std::vector<int32_t>& ids) {
  return cat("{\"ids\":[", joined(ids), "]}\n");
}

Result<std::vector<int32_t>> ids_of(const Json& array, const std::string& where) {
  std::vector<int32_t> ids;
  if (array.is_array()) {
    for (const Json& id : array) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) break;
      ids.push_back(id.get<int32_t>());
    }
    if (ids.size() == array.size()) return ids;
  }
  return Status::error(
      Code::kInvalidArgument,
      where + ": must be an array of token ids, each a whole number in [0, 2^31 - 1]");
}

Status tokenize_lines(const TokenizeFlags& flags, const Tokenizer& tokenizer,
                      const std::string& input) {
  std::string output;
  SHOAL_RETURN_IF_ERROR(for_each_line(
      input, "--jsonl " + *flags.jsonl,
      [&](std::string_view line, const std::string& where) -> Status {
        SHOAL_ASSIGN_OR_RETURN(const Json text, parse_json(line, where));
        if (!text.is_string())
          return Status::error(Code::kInvalidArgument, where + ": must be a JSON string");
        Result<std::vector<int32_t>> ids =
            tokenizer.encode(text.get_ref<const std::string&>(), !flags.no_special);
        if (!ids.ok()) return ids.status().while_doing(where);
        output += ids_json(*ids);
        return {};
      }));
  return write_stdout(output);
}

Ending tokenize(const TokenizeFlags& flags) {
  std::string input = flags.text.value_or("");
  if (flags.file) {
    SHOAL_ASSIGN_OR_RETURN(input,
                           at(Stage::kRequest, read_input("--file", *flags.file, kMaxInputBytes)));
  }
  if (flags.jsonl) {
    SHOAL_ASSIGN_OR_RETURN(
        input, at(Stage::kRequest, read_input("--jsonl", *flags.jsonl, kMaxInputBytes)));
  }
  SHOAL_ASSIGN_OR_RETURN(const Tokenizer tokenizer,
                         at(Stage::kModel, Tokenizer::load(flags.model)));
  if (flags.jsonl) return at(Stage::kRequest, tokenize_lines(flags, tokenizer, input));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                         at(Stage::kRequest, tokenizer.encode(input, !flags.no_special)));
  return at(Stage::kRequest, write_stdout(flags.json ? ids_json(ids) : joined(ids) + "\n"));
}

/// INVALID_ARGUMENT: an id is not in the vocabulary. Decoding would leave it out without a word.
template <typename Id>
Status check_ids(const std::vector<Id>& ids, const Tokenizer& tokenizer) {
  for (const Id id : ids) {
    if (id >= 0 && id < tokenizer.vocab_size()) continue;
    return Status::error(Code::kInvalidArgument, cat("token ids must be in [0, ",
                                                     tokenizer.vocab_size() - 1, "], not ", id));
  }
  return {};
}

/// Prints one line of text for each line of ids.
Status detokenize_lines(const DetokenizeFlags& flags, const Tokenizer& tokenizer,
                        const std::string& input) {
  std::string output;
  SHOAL_RETURN_IF_ERROR(for_each_line(
      input, "--jsonl " + *flags.jsonl,
      [&](std::string_view line, const std::string& where) -> Status {
        SHOAL_ASSIGN_OR_RETURN(const Json array, parse_json(line, where));
        SHOAL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ids_of(array, where));
        if (const Status known = check_ids(ids, tokenizer); !known.ok())
          return known.while_doing(where);
        output +=
            cat("{\"text\":\"", json_escape(tokenizer.decode(ids, flags.skip_special)), "\"}\n");
        return {};
      }));
  return write_stdout(output);
}

/// The ids of --ids, or one line of them from stdin, as tokenize prints it.
Result<std::vector<int64_t>> read_ids(const DetokenizeFlags& flags) {
  if (!flags.ids_from_stdin) return flags.ids.value_or(std::vector<int64_t>());
  SHOAL_ASSIGN_OR_RETURN(const std::string text, read_input("--ids", "-", kMaxInputBytes));
  const size_t end = text.find_last_not_of(" \t\r\n");
  // tokenize prints an empty line for a text without tokens.
  if (end == std::string::npos && !text.empty()) return std::vector<int64_t>();
  return parse_ids_flag("the ids on stdin", std::string_view(text).substr(0, end + 1));
}

Ending detokenize(const DetokenizeFlags& flags) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<int64_t> given, at(Stage::kRequest, read_ids(flags)));
  std::string input;
  if (flags.jsonl) {
    SHOAL_ASSIGN_OR_RETURN(
        input, at(Stage::kRequest, read_input("--jsonl", *flags.jsonl, kMaxInputBytes)));
  }
  SHOAL_ASSIGN_OR_RETURN(const Tokenizer tokenizer,
                         at(Stage::kModel, Tokenizer::load(flags.model)));
  if (flags.jsonl) return at(Stage::kRequest, detokenize_lines(flags, tokenizer, input));
  SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, check_ids(given, tokenizer)));
  const std::vector<int32_t> ids(given.begin(), given.end());
  return at(Stage::kRequest, write_stdout(tokenizer.decode(ids, flags.skip_special) + "\n"));
}

}  // namespace

int run_tokenize(const TokenizeFlags& flags) {
  return report_failure(tokenize(flags));
}

int run_detokenize(const DetokenizeFlags& flags) {
  return report_failure(detokenize(flags));
}

}  // namespace shoal
