#include "server/cli/text_flags.h"

#include "server/cli/flag_setters.h"
#include "server/cli/shared_flags.h"

namespace shoal {
namespace {

/// The last value counts, as with every flag.
FlagParser::Setter ids_or_stdin(DetokenizeFlags* flags) {
  return {[flags, read = ids(&flags->ids)](std::string_view flag, std::string_view text) -> Status {
            flags->ids_from_stdin = text == "-";
            if (!flags->ids_from_stdin) return read.set(flag, text);
            flags->ids.reset();
            return {};
          },
          [flags] { return flags->ids_from_stdin ? std::string("-") : flag_text(flags->ids); }};
}

}  // namespace

void add_tokenize_flags(FlagParser& parser, TokenizeFlags* flags) {
  parser.add_positional("MODEL", "Model directory, or a tokenizer.json", &flags->model);
  parser.add_value("--text", "TEXT", "The text", words_as_they_are(&flags->text));
  parser.add_value("--file", path("FILE"), "The whole file is the text; - is stdin",
                   words_as_they_are(&flags->file));
  parser.add_value("--jsonl", path("FILE"), "A JSON string a line; gives {\"ids\":[...]} a line",
                   words_as_they_are(&flags->jsonl));
  parser.add_switch("--no-special", "Without the tokens that the post-processor adds (BOS)",
                    &flags->no_special);
  parser.add_switch("--json", "Print {\"ids\":[...]}", &flags->json);
  parser.explain_stray_words(did_you_mean("--text"));
}

Status check_tokenize_flags(const TokenizeFlags& flags) {
  return exactly_one("tokenize", {{"--text", flags.text.has_value()},
                                  {"--file", flags.file.has_value()},
                                  {"--jsonl", flags.jsonl.has_value()}});
}

void add_detokenize_flags(FlagParser& parser, DetokenizeFlags* flags) {
  parser.add_positional("MODEL", "Model directory, or a tokenizer.json", &flags->model);
  parser.add_value("--ids", "IDS", "The ids, e.g. 1,2,3; - reads them from stdin",
                   ids_or_stdin(flags));
  parser.add_value("--jsonl", path("FILE"),
                   "An array of ids a line; gives {\"text\":\"...\"} a line",
                   words_as_they_are(&flags->jsonl));
  parser.add_switch("--skip-special", "Leave special tokens out", &flags->skip_special);
  parser.explain_stray_words(did_you_mean("--ids"));
}

Status check_detokenize_flags(const DetokenizeFlags& flags) {
  return exactly_one("detokenize", {{"--ids", flags.ids || flags.ids_from_stdin},
                                    {"--jsonl", flags.jsonl.has_value()}});
}

void add_render_flags(FlagParser& parser, RenderFlags* flags) {
  parser.add_positional("MODEL", "Model directory; only its tokenizer's files are read",
                        &flags->model);
  add_chat_flags(parser, &flags->chat);
  parser.add_switch("--ids", "Print token ids instead of the text", &flags->ids);
  parser.explain_stray_words(did_you_mean("--messages"));
}

Status check_render_flags(const RenderFlags& flags) {
  if (flags.chat.messages) return {};
  return Status::error(Code::kInvalidArgument, "render needs --messages FILE");
}

}  // namespace shoal
