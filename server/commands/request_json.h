#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/ordered_json.h"
#include "runtime/base/sampling.h"
#include "server/serving/generation_request.h"
#include "server/serving/inference_loop.h"

namespace shoal {

/// What a line may ask for.
enum class LineKind {
  kRequest,  ///< of generate: a prompt or chat messages, and how to go on from it
  kPrompt,   ///< of logits: only a prompt
};

/// Reads one line of --jsonl over the defaults. The fields are the flags' names with underscores;
/// lists may be arrays, and `stop` may also be a single string. *id becomes the line's `id` as JSON
/// text, even if the rest of the line is wrong. If the line has no `id`, *id stays as it is.
/// *messages becomes its `messages`, which are checked when a prompt is made of them, or null. Both
/// pointers may be null. Error: INVALID_ARGUMENT, without the number of the line, for bad syntax, a
/// name that stands twice, an unknown field (with the nearest known one), a wrong type, or if not
/// exactly one of prompt, prompt_ids and messages is given. The error holds the field if it is
/// about one of RequestField.
Result<GenerationRequest, RequestError> parse_request_json(std::string_view line,
                                                           const GenerationRequest& defaults,
                                                           LineKind kind = LineKind::kRequest,
                                                           std::string* id = nullptr,
                                                           OrderedJson* messages = nullptr);

/// The whole result of a finished request.
struct Completion {
  std::vector<int32_t> prompt_token_ids;
  std::vector<SampledToken> tokens;
  std::string text;
  SamplingParams sampling;  ///< that it was drawn with, all defaults filled in
  OutputEnd end;
};

/// `"id":ID,"line":N,` for the beginning of an answer's object. The id, which is JSON text, is left
/// out if it is empty, and the number of the line if it is 0.
std::string line_json(const std::string& id, int64_t number);

/// `"prompt_token_ids":[...]`, a member of an answer's object.
std::string prompt_token_ids_json(const std::vector<int32_t>& ids);

/// The completion as JSON, without a newline, after line_json(id, number):
/// {"id":...,"line":...,"prompt_token_ids":[...],"token_ids":[...],"text":"...",
/// "finish_reason":"stop|length",
/// "logprobs":[{"token_id":...,"logprob":...,"top":[[id,logprob],...]},...] or null,
/// "usage":{"prompt_tokens":...,"completion_tokens":...},"sampling":{"temperature":...,"top_p":...,
/// "top_k":...,"min_p":...,"repetition_penalty":...,"presence_penalty":...,
/// "frequency_penalty":...,"seed":...},"transport":"shm"}. The members of "sampling" are fields of
/// a line: with the same prompt, length and stops they give the same answer again. Floats are
/// written with the fewest digits that read back as the same float32.
std::string completion_json(const Completion& completion, std::string_view transport,
                            const std::string& id = "", int64_t number = 0);

}  // namespace shoal
