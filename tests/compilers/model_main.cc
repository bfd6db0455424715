// A whole model on one rank, without the program around it:
// model MODEL_DIR KERNEL_SET LOGITS_FILE < WANTED
//
// WANTED is {"logits_of": [ids], "requests": [{"prompt_ids", "max_tokens", ...}]}, where a request
// has the fields of `shoal generate --jsonl`, of which this knows those of SamplingParams. It
// writes the logits of the prompt, float32 [tokens, vocab], and prints [{"token_ids", "logprobs"}],
// as `shoal generate` has them. Exit code 1: an error, which is on stderr.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "models/model_config.h"
#include "models/weights.h"
#include "runtime/base/json.h"
#include "runtime/base/kv_block.h"
#include "runtime/comm/single_communicator.h"
#include "runtime/worker/model_runner.h"

namespace shoal {
namespace {

constexpr int32_t kBlocks = 8;  // of KV cache, which one sequence uses at a time

Result<std::unique_ptr<ModelRunner>> load(const std::string& folder, const std::string& kernels,
                                          Communicator& communicator) {
  SHOAL_ASSIGN_OR_RETURN(const KernelTable* table, find_kernels(kernels));
  SHOAL_ASSIGN_OR_RETURN(const Checkpoint files, Checkpoint::open(folder));
  ModelStart start;
  start.config_path = folder + "/config.json";
  SHOAL_ASSIGN_OR_RETURN(start.config_json, read_model_config(folder));
  start.checkpoint = files.layout();
  SHOAL_ASSIGN_OR_RETURN(start.dtype, resolve_dtype(files, std::nullopt));
  start.limits = {.max_num_seqs = 1,
                  .max_num_batched_tokens = kBlocks * kBlockTokens,
                  .kv_blocks = kBlocks,
                  .max_model_len = kBlocks * kBlockTokens};
  start.all_logits = true;
  set_float_environment();
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<ModelRunner> runner,
      ModelRunner::load(start, *table, {.world = {0, 1}}, [](const LoadProgress&) {}));
  SHOAL_RETURN_IF_ERROR(runner->take_memory(communicator));
  return runner;
}

/// A step of these tokens, the first of which is at `position`.
SequenceStep step_of(std::vector<int32_t> ids, int32_t position) {
  SequenceStep step;
  step.token_ids = std::move(ids);
  step.first_position = position;
  for (int32_t block = 0; block < kBlocks; ++block) step.block_table.push_back(block);
  return step;
}

Status write_logits(ModelRunner& model, const Json& ids, const char* path) {
  SequenceStep step = step_of(ids.get<std::vector<int32_t>>(), 0);
  step.all_logits = true;
  SHOAL_ASSIGN_OR_RETURN(const StepResult result, model.run({1, {step}}));
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(result.logits.data()),
             static_cast<std::streamsize>(result.logits.size() * sizeof(float)));
  return file.flush() ? Status() : Status::error(Code::kDataLoss, cat("write ", path));
}

SamplingParams sampling_of(const Json& request) {
  SamplingParams s;
  s.temperature = request.value("temperature", s.temperature);
  s.top_p = request.value("top_p", s.top_p);
  s.top_k = request.value("top_k", s.top_k);
  s.min_p = request.value("min_p", s.min_p);
  s.repetition_penalty = request.value("repetition_penalty", s.repetition_penalty);
  s.presence_penalty = request.value("presence_penalty", s.presence_penalty);
  s.frequency_penalty = request.value("frequency_penalty", s.frequency_penalty);
  s.seed = request.value("seed", s.seed);
  s.logprobs = request.value("logprobs", s.logprobs);
  return s;
}

/// The prompt in one step, and then a token in each.
Result<Json> answer(ModelRunner& model, const Json& request) {
  auto tokens = request.at("prompt_ids").get<std::vector<int32_t>>();
  const size_t prompt = tokens.size(), end = prompt + request.at("max_tokens").get<size_t>();
  Json logprobs = Json::array();
  for (size_t done = 0; tokens.size() < end;) {
    SequenceStep step = step_of({tokens.begin() + static_cast<int64_t>(done), tokens.end()},
                                static_cast<int32_t>(done));
    step.sample = true;
    step.sampling = sampling_of(request);
    if (step.sampling.has_penalty()) step.history = tokens;
    step.history_prompt_tokens = static_cast<int32_t>(prompt);
    done = tokens.size();
    SHOAL_ASSIGN_OR_RETURN(const StepResult result, model.run({done, {step}}));
    const SampledToken& token = result.tokens.at(0);
    tokens.push_back(token.token_id);
    if (step.sampling.logprobs < 0) continue;
    Json top = Json::array();
    for (const TokenLogprob& other : token.top) top.push_back({other.token_id, other.logprob});
    logprobs.push_back(
        {{"token_id", token.token_id}, {"logprob", token.logprob}, {"top", std::move(top)}});
  }
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<int64_t>(prompt));
  return Json{{"token_ids", tokens}, {"logprobs", logprobs}};
}

Status run(const char* folder, const char* kernels, const char* logits) {
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  SHOAL_ASSIGN_OR_RETURN(const Json wanted, parse_json(text, "stdin"));
  const std::unique_ptr<Communicator> communicator = make_single_communicator();
  SHOAL_ASSIGN_OR_RETURN(const auto model, load(folder, kernels, *communicator));
  SHOAL_RETURN_IF_ERROR(write_logits(*model, wanted.at("logits_of"), logits));
  Json answers = Json::array();
  for (const Json& request : wanted.at("requests")) {
    SHOAL_ASSIGN_OR_RETURN(Json one, answer(*model, request));
    answers.push_back(std::move(one));
  }
  std::printf("%s\n", json_text(answers).c_str());
  return {};
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  const shoal::Status status = shoal::run(argv[1], argv[2], argv[3]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
