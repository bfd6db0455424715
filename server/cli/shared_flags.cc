#include "server/cli/shared_flags.h"

#include <algorithm>

#include "runtime/device/cublas_api.h"
#include "runtime/transport/rungs/rung.h"
#include "server/cli/flag_setters.h"
#include "server/cli/flag_variables.h"

namespace shoal {

namespace {

std::vector<std::string> both_orders() {
  std::vector<std::string> names;
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    for (const Rung& rung : rungs(device)) {
      if (std::find(names.begin(), names.end(), rung.name) == names.end())
        names.emplace_back(rung.name);
    }
  }
  return names;
}

/// "(libcublasLt.so.13, then libcublasLt.so.12)".
std::string cublas_names() {
  std::string names;
  for (const std::string& name : cublas_library_names())
    names += cat(names.empty() ? "(" : ", then ", name);
  return names + ")";
}

/// The words of --dtype, also as others write them.
FlagParser::Setter dtype_words(std::string* target) {
  FlagParser::Setter known = choice(target, {"auto", "float32", "float16", "bfloat16"});
  return {[set = known.set](std::string_view flag, std::string_view text) {
            constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
                {"float", "float32"}, {"fp32", "float32"},   {"f32", "float32"},
                {"half", "float16"},  {"fp16", "float16"},   {"f16", "float16"},
                {"bf16", "bfloat16"}, {"bfloat", "bfloat16"}};
            for (const auto& [other, ours] : kOthers)
              if (text == other) return set(flag, ours);
            return set(flag, text);
          },
          known.show};
}

}  // namespace

LogOptions wished_log_options(std::span<const std::string> words, const Environment& environment) {
  LogOptions wished;
  FlagParser parser("", "");
  add_log_flags(parser, &wished);
  for (const char* flag : {"--log-format", "--log-level"}) {
    const auto variable = environment.find(variable_of(flag));
    const bool is_serve = !words.empty() && words[0] == "serve";
    std::string value = is_serve && variable != environment.end() ? variable->second : "";
    for (size_t i = 0; i < words.size(); ++i) {
      std::string word = words[i];
      std::replace(word.begin(), word.end(), '_', '-');
      if (word == flag && i + 1 < words.size()) value = words[i + 1];
      if (word.starts_with(cat(flag, "="))) value = word.substr(std::string_view(flag).size() + 1);
    }
    // A value that is none leaves the option as it is.
    if (!value.empty()) (void)parser.parse(std::vector<std::string>{flag, value});
  }
  return wished;
}

FlagParser::StrayHint did_you_mean(const char* flag) {
  return
      [flag](const std::string& word) { return cat("did you mean ", flag, " ", shown(word), "?"); };
}

namespace {

/// At most one, and with `least` also at least one.
Status check_alternatives(const char* command, const Alternatives& alternatives, bool least) {
  std::string names, given;
  int count = 0;
  for (const auto& [name, is_given] : alternatives) {
    names += cat(names.empty() ? "" : ", ", name);
    if (is_given) given += cat(count++ == 0 ? "" : " and ", name);
  }
  if (count == 1 || (count == 0 && !least)) return {};
  return Status::error(Code::kInvalidArgument,
                       count == 0 ? cat(command, " needs one of ", names)
                                  : cat(command, " takes one of ", names, ", not ", given));
}

}  // namespace

Status exactly_one(const char* command, const Alternatives& alternatives) {
  return check_alternatives(command, alternatives, true);
}

Status at_most_one(const char* command, const Alternatives& alternatives) {
  return check_alternatives(command, alternatives, false);
}

void add_log_flags(FlagParser& parser, LogOptions* log) {
  parser.group("Log (on stderr)");
  parser.add_value(
      "--log-format", one_of({"text", "json"}), "How log lines and errors look (text)",
      word_for(&log->format, {{"text", LogFormat::kText}, {"json", LogFormat::kJson}}));
  const FlagParser::Setter level = word_for(&log->level, {{"debug", LogLevel::kDebug},
                                                          {"info", LogLevel::kInfo},
                                                          {"warning", LogLevel::kWarning},
                                                          {"error", LogLevel::kError}});
  parser.add_value("--log-level", one_of({"debug", "info", "warning", "error"}, "LEVEL"),
                   cat("debug, info, warning or error (", level.show().value_or(""), ")"), level);
}

void add_ranks_flag(FlagParser& parser, int* tensor_parallel_size, std::string_view bounds) {
  parser.add_value("--tensor-parallel-size,--tp,--tp-size", "N", cat("Ranks, also -tp; ", bounds),
                   whole(tensor_parallel_size, 1));
}

void add_order_flag(FlagParser& parser, std::optional<std::string>* transport,
                    const std::string& order) {
  parser.add_value("--transport", list_of("LIST"),
                   cat("Transports in the order to try (", order, ")"),
                   words_as_they_are(transport));
}

void add_device_flags(FlagParser& parser, DeviceFlags* device) {
  parser.add_value(
      "--device", one_of({"auto", "cpu", "cuda"}),
      "What ranks compute the model on; auto: GPUs if each rank has one that works. On GPUs there "
      "are at most 8 ranks (auto)",
      word_for(&device->choice, {{"auto", DeviceFlags::Choice::kAuto},
                                 {"cpu", DeviceFlags::Choice::kCpu},
                                 {"cuda", DeviceFlags::Choice::kCuda}}));
  parser.add_value(
      "--cuda-module", path("PATH"), "The CUDA part of this program (libshoal_cuda.so beside it)",
      {[=](std::string_view flag, std::string_view text) -> Status {
         device->cuda_module = text;
         if (text.find('/') != std::string_view::npos) return {};
         return Status::error(Code::kInvalidArgument,
                              cat(flag, " must be a path with a slash, such as ./",
                                  text.substr(0, 80), ": the loader's search is not used"));
       },
       show(&device->cuda_module)});
  parser.add_value("--nccl-library", path("PATH"),
                   "NCCL, a path or a name for the loader's search (libnccl.so.2)",
                   words_as_they_are(&device->nccl_library));
  parser.add_value(
      "--cublas-library", path("PATH"),
      cat("With --reproducible off: cuBLASLt, a path or a name for the loader's search ",
          cublas_names()),
      words_as_they_are(&device->cublas_library));
  parser.add_value("--ranks-per-gpu", "N", "Ranks that share a GPU; above 1 is for tests (1)",
                   whole(&device->ranks_per_gpu, 1, 16));
  parser.add_value(
      "--reproducible", one_of({"on", "off"}),
      "on: the same bits on every transport; off: NCCL may sum in an order of its own, and cuBLASLt "
      "computes large products (on)",
      word_for(&device->reproducible, {{"on", true}, {"off", false}}));
}

void add_transport_flags(FlagParser& parser, TransportFlags* transport) {
  add_order_flag(
      parser, &transport->transport,
      cat(rung_names(DeviceKind::kCpu), "; with --device cuda ", rung_names(DeviceKind::kCuda)));
  parser.add_value(
      "--on-shm-shortage", one_of({"degrade", "fail"}),
      "When shared memory does not suffice: the next transport, or exit 69 (degrade)",
      word_for(&transport->degrade_on_shm_shortage, {{"degrade", true}, {"fail", false}}));
  parser.add_value("--min-transport", one_of(both_orders(), "RUNG"),
                   "The last rung (transport of the order) that may be used; if none up to it "
                   "works, exit 69",
                   choice(&transport->min_transport, both_orders()));
  parser.add_value("--shm-headroom", "SIZE", "Bytes of /dev/shm left free for others (256k)",
                   size(&transport->shm_headroom_bytes));
  parser.add_switch("--clean-stale", "First remove what killed runs of this user left in /dev/shm",
                    &transport->clean_stale);
}

void add_timeout_flags(FlagParser& parser, TransportFlags* transport) {
  parser.group(kFaultGroup);
  parser.add_value("--startup-timeout", "S", "Seconds for a start, all its phases (600)",
                   seconds(&transport->startup_timeout_s));
  parser.add_value(
      "--step-timeout", "S",
      "Seconds without any progress after which a step has hung (10); up to ten times as many "
      "while a rank is busy with one long computation",
      seconds(&transport->step_timeout_s));
}

Status settle_transport(TransportFlags* flags) {
  DeviceFlags& chosen = flags->device;
  chosen.kind = chosen.choice == DeviceFlags::Choice::kCuda ? DeviceKind::kCuda : DeviceKind::kCpu;
  // An order of transports is for one kind of device, which without --device is the CPU.
  chosen.automatic = chosen.choice == DeviceFlags::Choice::kAuto && !flags->transport &&
                     flags->min_transport.empty();
  const DeviceKind device = chosen.kind;
  const std::string text = flags->transport.value_or(rung_names(device));
  Result<std::vector<std::string>> order = parse_transport_order(text, device);
  if (!order.ok())
    return Status::error(Code::kInvalidArgument, cat("--transport: ", order.status().message()));
  flags->order = std::move(order).value();
  if (flags->min_transport.empty() || std::find(flags->order.begin(), flags->order.end(),
                                                flags->min_transport) != flags->order.end()) {
    return {};
  }
  return Status::error(Code::kInvalidArgument, cat("--min-transport ", flags->min_transport,
                                                   " is not in the order of --transport, ", text));
}

namespace {

void add_memory_flags(FlagParser& parser, EngineFlags* engine) {
  parser.group(kMemoryGroup);
  parser.add_value(
      "--kv-cache-memory", "SIZE",
      "KV cache of all ranks, e.g. 2g (the largest of 1g, the weights and one longest request; at "
      "most a quarter of free memory and what --max-num-seqs can use; on GPUs by "
      "--gpu-memory-utilization)",
      size(&engine->kv_cache_memory));
  parser.add_value(
      "--gpu-memory-utilization", "SHARE",
      "On GPUs: how much of the memory of each may be in use, by its ranks and by others; the KV "
      "cache gets what is left of that (0.9)",
      share(&engine->gpu_memory_utilization));
}

}  // namespace

void add_engine_flags(FlagParser& parser, EngineFlags* engine) {
  parser.add_positional("MODEL", "Directory with config.json, tokenizer.json and safetensors",
                        &engine->model);
  parser.group(kModelGroup);
  parser.add_value("--dtype", one_of({"auto", "float32", "float16", "bfloat16"}, "TYPE"),
                   "float32, float16, bfloat16, or auto: as stored (auto)",
                   dtype_words(&engine->dtype));
  parser.add_value("--max-model-len", "TOKENS",
                   "Prompt and output of one request (default: the model's "
                   "max_position_embeddings); a model whose config.json makes the context longer "
                   "by rope scaling can take up to that longer one",
                   whole(&engine->max_model_len, 2));
  parser.group(kTransportGroup);
  add_ranks_flag(parser, &engine->tensor_parallel_size,
                 "at most 16, and at most one for each attention head (1)");
  parser.add_value("--threads-per-rank", "N", "Compute threads of each rank (usable CPUs / ranks)",
                   whole(&engine->threads_per_rank, 1, 1024));
  parser.add_value(
      "--cpu-kernels",
      one_of({"auto", "avx512-bf16", "avx512", "avx2", "neon-bf16", "neon", "reference"}, "SET"),
      "auto, avx512-bf16, avx512, avx2 (x86), neon-bf16, neon (Arm) or reference: "
      "changes the speed; all CPUs give the same bits (auto)",
      words_as_they_are(&engine->cpu_kernels));
  add_transport_flags(parser, &engine->transport);
  add_device_flags(parser, &engine->transport.device);
  add_memory_flags(parser, engine);
  parser.group(kSchedulingGroup);
  parser.add_value("--max-num-seqs", "N", "Requests in one running batch (64)",
                   whole(&engine->max_num_seqs, 1, 65536));
  parser.add_value("--max-num-batched-tokens", "N", "Tokens in one step (512)",
                   whole(&engine->max_num_batched_tokens, 1, 65536));
  add_timeout_flags(parser, &engine->transport);
}

void add_scheduling_flags(FlagParser& parser, SchedulingFlags* scheduling) {
  parser.group(kSchedulingGroup);
  parser.add_value(
      "--decode-stretch", "X",
      cat("How many times as long a step may take if it also computes prompts: at 2, running ",
          "answers keep half of their speed; above 1, or 0: only --max-step-ms limits it (",
          scheduling->decode_stretch, ")"),
      {[scheduling](std::string_view flag, std::string_view text) -> Status {
         SHOAL_ASSIGN_OR_RETURN(const double value, parse_number_flag(flag, text));
         if (value != 0 && !(value > 1 && value <= 1000))
           return Status::error(Code::kInvalidArgument,
                                cat(flag, " must be 0, or above 1 and at most 1000, not ", text));
         scheduling->decode_stretch = value;
         return {};
       },
       show(&scheduling->decode_stretch)});
  parser.add_value(
      "--max-step-ms", "N",
      "Plan steps of at most this many milliseconds; a step with a single token of a prompt may take longer (500)",
      whole(&scheduling->max_step_ms, 1, 3'600'000));
  parser.add_value("--scheduling-policy", one_of({"fcfs", "priority"}, "POLICY"),
                   "fcfs (in order of arrival, but short prompts may pass long ones) or priority "
                   "(fcfs)",
                   word_for(&scheduling->policy, {{"fcfs", SchedulingPolicy::kFcfs},
                                                  {"priority", SchedulingPolicy::kPriority}}));
}

void add_queue_flags(FlagParser& parser, QueueFlags* queue) {
  parser.group(kSchedulingGroup);
  parser.add_value("--max-num-queued-reqs", "N",
                   cat("Requests that run or wait, together; more are refused (--max-num-seqs + ",
                       kDefaultWaiting, ")"),
                   whole(&queue->max_requests, 1, 65'536));
  parser.add_value(
      "--max-num-queued-tokens", "N",
      "Tokens of prompts still to be computed; more are refused, except of a request that "
      "is the only one (no limit)",
      whole(&queue->max_tokens, 1, INT64_MAX));
  parser.add_value("--max-queued-bytes", "SIZE", "Memory of the requests that wait (128m)",
                   size(&queue->max_bytes));
  parser.add_value(
      "--max-queue-time", "SECONDS",
      "How long a request may wait for its first step; 0: as long as its client waits (0)",
      {[queue](std::string_view flag, std::string_view text) -> Status {
         SHOAL_ASSIGN_OR_RETURN(const double value, parse_number_flag(flag, text));
         if (value != 0 && !(value >= 0.1 && value <= 1e6))
           return Status::error(Code::kInvalidArgument,
                                cat(flag, " must be 0, or in [0.1, 1000000] seconds, not ", text));
         queue->max_seconds = value;
         return {};
       },
       show(&queue->max_seconds)});
}

void add_restart_flag(FlagParser& parser, EngineFlags* engine) {
  parser.group(kFaultGroup);
  parser.add_value("--max-restarts", "N",
                   "Restarts of lost ranks before exit 75; forgotten after 60 s of health (3). A "
                   "SIGKILL from outside after 16 good steps costs none",
                   whole(&engine->max_restarts, 0, 1'000'000));
}

void add_sampling_flags(FlagParser& parser, GenerationRequest* request) {
  parser.group("Sampling (default: generation_config.json, else temperature 1, top-p 1)");
  parser.add_value("--max-tokens", "N", "Tokens to generate at most (up to the model length)",
                   whole(&request->max_tokens, 1, INT64_MAX));
  parser.add_value("--temperature", "X", "0: always the most likely token",
                   number(&request->temperature));
  parser.add_value("--top-p", "X", "Keep the most likely tokens up to this probability",
                   number(&request->top_p));
  parser.add_value("--top-k", "N", "Keep the N most likely tokens; 0: all",
                   whole(&request->top_k, -1, INT64_MAX));
  parser.add_value("--min-p", "X", "Keep tokens at least this likely, relative to the best",
                   number(&request->min_p));
  parser.add_value("--repetition-penalty", "X", "Above 1: fewer tokens that were there before",
                   number(&request->repetition_penalty));
  parser.add_value("--presence-penalty", "X", "Subtracted from tokens already generated",
                   number(&request->presence_penalty));
  parser.add_value("--frequency-penalty", "X", "The same, per occurrence",
                   number(&request->frequency_penalty));
  parser.add_value("--stop", "TEXT", "End before this text; may be given several times",
                   [=](std::string_view, std::string_view text) -> Status {
                     request->stop.emplace_back(text);
                     return {};
                   });
  parser.add_value("--stop-token-ids", "IDS", "End after one of these ids, e.g. 2,5",
                   ids(&request->stop_token_ids));
  parser.add_value(
      "--logprobs", "K",
      "Natural log probabilities of each token and the K most likely, before temperature "
      "and penalties",
      whole(&request->logprobs, INT64_MIN, INT64_MAX));
  parser.add_switch("--ignore-eos", "Go on past end-of-text tokens", &request->ignore_eos);
}

void add_prompt_flags(FlagParser& parser, GenerationRequest* request) {
  parser.add_value(
      "--prompt", "TEXT",
      "The prompt, as it is: no chat template; the tokens that the tokenizer adds (BOS) are added, "
      "and special tokens are recognised; - is stdin, which is read too if there is no other input",
      words_as_they_are(&request->prompt));
  parser.add_value("--prompt-ids", "IDS", "The prompt as token ids, e.g. 1,2,3; nothing is added",
                   ids(&request->prompt_ids));
}

}  // namespace shoal
