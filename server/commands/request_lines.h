#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "server/commands/request_json.h"

namespace shoal {

/// A line of --jsonl, or the only request of a command that was given no file.
struct RequestLine {
  int64_t number = 0;              ///< of the line in its file, from 1; 0: there is no file
  std::string id = {};             ///< the line's own, as JSON text; empty: it has none
  OrderedJson messages = nullptr;  ///< that a prompt is made of; null: it has none
  GenerationRequest request = {};  ///< as it was written
  ResolvedRequest resolved = {};   ///< once it has been checked against the model
  bool has_text = false;           ///< then too: its prompt was a text and not token ids
  RequestError wrong = {};         ///< why it cannot run, without its number

  /// The same behind "line N: ", for errors about a whole file. Ok if the line is not wrong.
  Status named() const;
};

/// Reads every line of --jsonl PATH that is not blank, over the defaults. A line that is wrong
/// keeps nobody from reading the others. INVALID_ARGUMENT: the file cannot be read.
Result<std::vector<RequestLine>> read_request_lines(const std::string& path,
                                                    const GenerationRequest& defaults,
                                                    LineKind kind);

/// What the good lines leave to the model's file, and so to chance, for people who compare runs:
/// "sampling from generation_config.json: temperature 0.7, top-p 0.95; seed 0; --temperature 0
/// takes the most likely token". Empty if they set all that the file sets. It reads the requests as
/// they were written. seed: that of lines which have none of their own, and if they come from a
/// file, it says so.
std::string sampling_of_model(const GenerationConfig& model, const std::vector<RequestLine>& lines,
                              uint64_t seed);

/// The same error with the name of the input, such as "--jsonl FILE", in front.
Status in_source(const std::string& source, const Status& status);

/// The error that names every wrong line, or the first ones, how many more there are, and what
/// would name all of them if anything does. Ok if no line is wrong. `source` is the name of the
/// input.
Status wrong_lines(const std::string& source, const std::vector<RequestLine>& lines, LineKind kind);

/// What a command prints instead of the line's answer, without a newline:
/// {"id":...,"line":N,"error":{"code":"INVALID_ARGUMENT","field":"top_p","message":"..."}}. The id
/// and the field are left out if there is none.
std::string error_json(const RequestLine& line, const RequestError& error);

}  // namespace shoal
