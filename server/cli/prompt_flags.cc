#include "server/cli/prompt_flags.h"

#include "server/cli/flag_setters.h"
#include "server/cli/shared_flags.h"

namespace shoal {

void add_generate_io_flags(FlagParser& parser, GenerateFlags* flags) {
  add_prompt_flags(parser, &flags->request);
  add_conversation_flag(parser, &flags->converses);
  add_chat_flags(parser, &flags->chat);
  parser.add_value(
      "--jsonl", path("FILE"),
      "One request a line, all in one batch: "
      "{\"id\":\"a\",\"prompt\":\"...\",\"max_tokens\":8,...}. Its fields are named as the flags, "
      "with underscores, and the flags given here count for lines without them. A line may have "
      "\"messages\" instead of a prompt, a list as in the file of --messages. Gives an answer a "
      "line, in the same order and with the same id. Nothing runs if a line is wrong. If a signal ends "
      "the batch, or the ranks are lost, the answers that are done are written, and an error for "
      "each other line. A terminal shows how far it is, and at the end stderr says how fast it "
      "was. - is stdin",
      words_as_they_are(&flags->jsonl));
  parser.add_switch("--keep-going",
                    "With --jsonl: run the good lines although others are wrong. A line that fails "
                    "gives {\"id\":...,\"line\":N,\"error\":{...}}, and the exit code is 1",
                    &flags->keep_going);
  parser.add_switch("--json",
                    "Print one JSON object instead of the text (always with --jsonl). Its "
                    "\"sampling\" is what the answer was drawn with",
                    &flags->json);
  parser.explain_stray_words(did_you_mean("--prompt"));
}

Status check_generate_flags(const GenerateFlags& flags) {
  if (flags.converses)
    SHOAL_RETURN_IF_ERROR(check_conversation(flags.json, flags.chat.messages));
  else if (!flags.jsonl)  // whose lines may have messages
    SHOAL_RETURN_IF_ERROR(check_chat_flags(flags.chat));
  if (flags.keep_going && !flags.jsonl)
    return Status::error(Code::kInvalidArgument, "--keep-going is only for --jsonl FILE");
  return at_most_one("generate", {{"--prompt", flags.request.prompt.has_value()},
                                  {"--prompt-ids", flags.request.prompt_ids.has_value()},
                                  {flags.converses ? "--chat" : "--messages",
                                   flags.converses || flags.chat.messages.has_value()},
                                  {"--jsonl", flags.jsonl.has_value()}});
}

void add_logits_io_flags(FlagParser& parser, LogitsFlags* flags) {
  add_prompt_flags(parser, &flags->request);
  parser.add_value(
      "--jsonl", path("FILE"),
      "A prompt a line, all in one start of the ranks: {\"id\":\"a\",\"prompt\":\"...\"} or "
      "{\"prompt_ids\":[1,2]}; prints {\"id\":...,\"file\":...,\"shape\":[T,V],...} a line, with "
      "the prompt's tokens (prompt_token_ids). - is stdin",
      words_as_they_are(&flags->jsonl));
  parser.add_value("--out", path("FILE"), "The .npy file to write", words_as_they_are(&flags->out));
  parser.add_value("--out-dir", path("DIR"),
                   "With --jsonl: the folder for N.npy, where N is the number of the line; made if "
                   "it does not exist",
                   words_as_they_are(&flags->out_dir));
  parser.explain_stray_words(did_you_mean("--prompt"));
}

Status check_logits_flags(const LogitsFlags& flags) {
  SHOAL_RETURN_IF_ERROR(
      at_most_one("logits", {{"--prompt", flags.request.prompt.has_value()},
                             {"--prompt-ids", flags.request.prompt_ids.has_value()},
                             {"--jsonl", flags.jsonl.has_value()}}));
  if (flags.jsonl ? !flags.out.empty() : !flags.out_dir.empty())
    return Status::error(Code::kInvalidArgument,
                         "--out is for one prompt, and --out-dir is for --jsonl");
  if (flags.jsonl && flags.out_dir.empty())
    return Status::error(Code::kInvalidArgument, "logits needs --out-dir DIR with --jsonl");
  if (!flags.jsonl && flags.out.empty())
    return Status::error(Code::kInvalidArgument, "logits needs --out FILE.npy");
  if (flags.out == "-" || flags.out_dir == "-")
    return Status::error(Code::kInvalidArgument,
                         flags.jsonl ? "--out-dir - is not stdout; name a folder"
                                     : "--out - is not stdout; name a file, such as logits.npy");
  return {};
}

}  // namespace shoal
