#include "server/cli/foreign_flags.h"

#include <algorithm>
#include <iterator>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

constexpr std::string_view kNoGraphs = "leave it out: steps are not captured in graphs";
constexpr std::string_view kWholeModel = "the whole model is computed on CPUs, or on GPUs";
constexpr std::string_view kOneAttention =
    "leave it out: each device has one way to compute attention";
constexpr std::string_view kOneHost = "leave it out: all ranks are processes of one host";
constexpr std::string_view kReplicas =
    "start a server for each replica, with a load balancer before them";
constexpr std::string_view kNoPipeline = "each layer is shared by all ranks";
constexpr std::string_view kCacheBytes =
    "the KV cache is bounded in bytes of this machine's memory, for example 4g";
constexpr std::string_view kCacheShare =
    "the KV cache is bounded in bytes of this machine's memory, for example 4g, or by "
    "--gpu-memory-utilization on GPUs";
constexpr std::string_view kTotalTokens =
    "SGLang's flag bounds the KV cache in tokens, and this one in bytes; TGI's bounds one request, "
    "as --max-model-len does";
constexpr std::string_view kPromptAndOutput = "it bounds prompt and output of a request together";
constexpr std::string_view kNotQuantized =
    "quantised weights are not supported: give a checkpoint of float32, float16 or bfloat16";
constexpr std::string_view kNoAdapters = "adapters (LoRA) are not supported";
constexpr std::string_view kNoPrefixCache = "leave it out: prompts share no KV cache";
constexpr std::string_view kOwnTokenizer = "leave it out: MODEL's own tokenizer.json is used";
constexpr std::string_view kDownload =
    "nothing is downloaded: hf download OWNER/NAME --exclude \"*/*\" --local-dir DIR, then name "
    "DIR as MODEL";
constexpr std::string_view kNoDraft = "speculative decoding is not supported";
constexpr std::string_view kNoExperts = "mixtures of experts are not supported";
constexpr std::string_view kNoTools = "calls of tools are not read out of answers";
constexpr std::string_view kNoGrammar = "answers cannot be bound to a grammar";
constexpr std::string_view kRequestLines = "a line for each request is of level info";
constexpr std::string_view kProxyPath = "let the proxy before the server cut off the path";
constexpr std::string_view kMapped = "leave it out: each rank reads its part of the weights";
constexpr std::string_view kChunks = "prompts are always computed in chunks";
constexpr std::string_view kModelDtype = "the KV cache has the type of the model";
constexpr std::string_view kNoSwap = "the KV cache is not swapped";
constexpr std::string_view kGenerates = "leave it out: models generate text";
constexpr std::string_view kCopyOfConfig = "change config.json in a copy of MODEL";
constexpr std::string_view kOwnConfig = "leave it out: MODEL's config.json is read";
constexpr std::string_view kNoReasoning = "reasoning is not told apart from the answer";
constexpr std::string_view kNoPlugins = "leave it out: code of others is not loaded";
constexpr std::string_view kNoTransfer = "leave it out: servers share no KV cache";
constexpr std::string_view kNoTraces = "there are no traces: figures are at /metrics";
constexpr std::string_view kAllMetrics = "leave it out: all figures are at /metrics";
constexpr std::string_view kOneFront = "leave it out: one process answers all clients";
constexpr std::string_view kOneSchedule = "leave it out: steps are scheduled in one way";
constexpr std::string_view kPages = "pages of these origins may use all methods and headers";
constexpr std::string_view kShared = "leave it out: requests always share steps";

constexpr std::string_view kRanks = "--tensor-parallel-size", kCache = "--kv-cache-memory",
                           kLength = "--max-model-len", kSeqs = "--max-num-seqs",
                           kBatch = "--max-num-batched-tokens", kLog = "--log-level",
                           kName = "--served-model-name", kThreads = "--threads-per-rank",
                           kTransport = "--transport", kDtype = "--dtype", kDevice = "--device";

constexpr ForeignFlag kForeign[] = {
    // vLLM
    {"--kv-cache-memory-bytes", kCache, ""},
    {"--pipeline-parallel-size", kRanks, kNoPipeline},
    {"-pp", kRanks, kNoPipeline},
    {"-dp", "", kReplicas},
    {"--nnodes", "", kOneHost},
    {"--node-rank", "", kOneHost},
    {"--enforce-eager", "", kNoGraphs},
    {"--compilation-config", "", kNoGraphs},
    {"--max-seq-len-to-capture", "", kNoGraphs},
    {"--disable-log-requests", kLog, kRequestLines},
    {"--no-enable-log-requests", kLog, kRequestLines},
    {"--enable-log-requests", kLog, kRequestLines},
    {"--disable-log-stats", "", "leave it out: figures are at /metrics and not in the log"},
    {"--uvicorn-log-level", kLog, ""},
    {"--trust-remote-code", "", "leave it out: code of a checkpoint is never run"},
    {"--quantization", "", kNotQuantized},
    {"-q", "", kNotQuantized},
    {"--kv-cache-dtype", kDtype, kModelDtype},
    {"--swap-space", kCache, kNoSwap},
    {"--cpu-offload-gb", kDevice, kWholeModel},
    {"--block-size", "", "leave it out: a block of the KV cache has 16 tokens"},
    {"--enable-prefix-caching", "", kNoPrefixCache},
    {"--no-enable-prefix-caching", "", kNoPrefixCache},
    {"--enable-chunked-prefill", kBatch, kChunks},
    {"--no-enable-chunked-prefill", kBatch, kChunks},
    {"--distributed-executor-backend", "", kOneHost},
    {"--tokenizer", "", kOwnTokenizer},
    {"--tokenizer-mode", "", kOwnTokenizer},
    {"--skip-tokenizer-init", "", kOwnTokenizer},
    {"--disable-custom-all-reduce", kTransport, "it says how ranks may sum"},
    {"--root-path", "", kProxyPath},
    {"--load-format", "", "leave it out: safetensors are read, and nothing else"},
    {"--revision", "", kDownload},
    {"--tokenizer-revision", "", kDownload},
    {"--download-dir", "", kDownload},
    {"--hf-token", "", kDownload},
    {"--hf-overrides", "", kCopyOfConfig},
    {"--generation-config", "", "leave it out: MODEL's generation_config.json is used"},
    {"--enable-auto-tool-choice", "", kNoTools},
    {"--tool-call-parser", "", kNoTools},
    {"--reasoning-parser", "", kNoReasoning},
    {"--guided-decoding-backend", "", kNoGrammar},
    {"--task", "", kGenerates},
    {"--runner", "", kGenerates},
    {"--convert", "", kGenerates},
    {"--pooler-config", "", kGenerates},
    {"--override-pooler-config", "", kGenerates},
    {"--max-logprobs", "", "leave it out: a request may ask for 64 logprobs of a token"},
    {"--return-tokens-as-token-ids", "", "a request's return_token_ids gives the ids"},
    {"--enable-force-include-usage", "", "a request's stream_options ask for usage"},
    {"--enable-prompt-tokens-details", "", kNoPrefixCache},
    {"--prefix-caching-hash-algo", "", kNoPrefixCache},
    {"--enable-prompt-embeds", "", "prompts are text or token ids"},
    {"--num-gpu-blocks-override", kCache, kCacheBytes},
    {"--kv-offloading-size", kCache, kNoSwap},
    {"--calculate-kv-scales", kDtype, kModelDtype},
    {"--kv-transfer-config", "", kNoTransfer},
    {"--kv-events-config", "", kNoTransfer},
    {"--enable-sleep-mode", "", "a server keeps its memory until it stops"},
    {"--override-generation-config", "", "change generation_config.json in a copy of MODEL"},
    {"--rope-scaling", "", kCopyOfConfig},
    {"--rope-theta", "", kCopyOfConfig},
    {"--rope-parameters", "", kCopyOfConfig},
    {"--disable-sliding-window", "", kOwnConfig},
    {"--hf-config-path", "", kOwnConfig},
    {"--config-format", "", kOwnConfig},
    {"--code-revision", "", kDownload},
    {"--model-loader-extra-config", "", kMapped},
    {"--safetensors-load-strategy", "", kMapped},
    {"--max-parallel-loading-workers", "", kMapped},
    {"--structured-outputs-config", "", kNoGrammar},
    {"--tool-parser-plugin", "", kNoTools},
    {"--tool-server", "", kNoTools},
    {"--exclude-tools-when-tool-choice-none", "", kNoTools},
    {"--enable-reasoning", "", kNoReasoning},
    {"--reasoning-parser-plugin", "", kNoReasoning},
    {"--chat-template-content-format", "", "leave it out: content may be text or a list of texts"},
    {"--default-chat-template-kwargs", "", "a request's chat_template_kwargs has them"},
    {"--trust-request-chat-template", "", "leave it out: a request cannot bring a template"},
    {"--response-role", "", "leave it out: the role of an answer is assistant"},
    {"--logits-processors", "", kNoPlugins},
    {"--middleware", "", kNoPlugins},
    {"--worker-cls", "", kNoPlugins},
    {"--worker-extension-cls", "", kNoPlugins},
    {"--scheduler-cls", "", kNoPlugins},
    {"--async-scheduling", "", kOneSchedule},
    {"--no-async-scheduling", "", kOneSchedule},
    {"--num-scheduler-steps", "", kOneSchedule},
    {"--stream-interval", "", "leave it out: tokens are streamed as they come"},
    {"--max-num-partial-prefills", kBatch, kChunks},
    {"--max-long-partial-prefills", kBatch, kChunks},
    {"--long-prefill-token-threshold", kBatch, kChunks},
    {"--decode-context-parallel-size", kRanks, kNoPipeline},
    {"-dcp", kRanks, kNoPipeline},
    {"--prefill-context-parallel-size", kRanks, kNoPipeline},
    {"--master-addr", "", kOneHost},
    {"--master-port", "", kOneHost},
    {"--headless", "", kOneHost},
    {"--api-server-count", "", kOneFront},
    {"-asc", "", kOneFront},
    {"--disable-frontend-multiprocessing", "", kOneFront},
    {"--optimization-level", "", kNoGraphs},
    {"--attention-config", "", kOneAttention},
    {"--disable-cascade-attn", "", kOneAttention},
    {"--kernel-config", "", "leave it out: kernels are chosen for the device"},
    {"--profiler-config", "", "there is no profiler: shoal bench measures the speed"},
    {"--otlp-traces-endpoint", "", kNoTraces},
    {"--collect-detailed-traces", "", kNoTraces},
    {"--kv-cache-metrics", "", kAllMetrics},
    {"--kv-cache-metrics-sample", "", kAllMetrics},
    {"--enable-mfu-metrics", "", kAllMetrics},
    {"--show-hidden-metrics-for-version", "", kAllMetrics},
    {"--enable-server-load-tracking", "", kAllMetrics},
    {"--disable-uvicorn-access-log", kLog, kRequestLines},
    {"--disable-access-log-for-endpoints", kLog, kRequestLines},
    {"--log-config-file", "--log-format", "it is text or json, and --log-level says how much"},
    {"--max-log-len", "", "leave it out: prompts are not in the log"},
    {"--enable-log-outputs", "", "leave it out: answers are not in the log"},
    {"--allowed-methods", "--allowed-origins", kPages},
    {"--allowed-headers", "--allowed-origins", kPages},
    {"--allow-credentials", "", "leave it out: a page sends its key in a header"},
    {"--ssl-ciphers", "", "leave it out: ciphers cannot be chosen"},
    {"--enable-ssl-refresh", "", "leave it out: certificates that change are read again"},
    {"--enable-request-id-headers", "", "leave it out: x-request-id is returned"},
    {"--h11-max-incomplete-event-size", "--max-header-bytes", ""},
    {"--h11-max-header-count", "--max-header-bytes", ""},
    {"--disable-fastapi-docs", "", "leave it out: there are no pages of documentation"},
    {"--grpc", "--grpc-port", "gRPC is always served"},
    // SGLang
    {"--mem-fraction-static", kCache, kCacheShare},
    {"--max-total-tokens", kCache, kTotalTokens},
    {"--context-length", kLength, ""},
    {"--max-running-requests", kSeqs, ""},
    {"--max-queued-requests", "--max-num-queued-reqs", ""},
    {"--chunked-prefill-size", kBatch, ""},
    {"--max-prefill-tokens", kBatch, ""},
    {"--schedule-policy", "--scheduling-policy", ""},
    {"--dp-size", "", kReplicas},
    {"--pp-size", kRanks, kNoPipeline},
    {"--disable-radix-cache", "", kNoPrefixCache},
    {"--attention-backend", "", kOneAttention},
    {"--tokenizer-path", "", kOwnTokenizer},
    {"--random-seed", "--seed", ""},
    {"--log-requests", kLog, kRequestLines},
    {"--max-new-tokens", "--max-tokens", ""},
    // TGI
    {"--num-shard", kRanks, ""},
    {"--sharded", kRanks, "it says how many ranks share the model"},
    {"--hostname", "--host", ""},
    {"--max-input-length", kLength, kPromptAndOutput},
    {"--max-input-tokens", kLength, kPromptAndOutput},
    {"--max-concurrent-requests", "--max-num-queued-reqs", "it counts those that run or wait"},
    {"--max-batch-size", kSeqs, ""},
    {"--max-batch-prefill-tokens", kBatch, kChunks},
    {"--max-batch-total-tokens", kCache, kCacheBytes},
    {"--max-waiting-tokens", "", kOneSchedule},
    {"--waiting-served-ratio", "", kOneSchedule},
    {"--quantize", "", kNotQuantized},
    {"--cuda-memory-fraction", "--gpu-memory-utilization", ""},
    {"--huggingface-hub-cache", "", kDownload},
    {"--weights-cache-override", "", kDownload},
    {"--tokenizer-config-path", "", kOwnTokenizer},
    {"--speculate", "", kNoDraft},
    {"--disable-grammar-support", "", kNoGrammar},
    {"--json-output", "--log-format", "json"},
    {"--payload-limit", "--max-body-bytes", ""},
    {"--cors-allow-origin", "--allowed-origins", ""},
    {"--otlp-endpoint", "", kNoTraces},
    {"--validation-workers", "", kOneFront},
    // llama.cpp
    {"-c", kLength, ""},
    {"--ctx-size", kLength, ""},
    {"-ngl", kDevice, kWholeModel},
    {"--gpu-layers", kDevice, kWholeModel},
    {"--n-gpu-layers", kDevice, kWholeModel},
    {"--split-mode", kRanks, kNoPipeline},
    {"--tensor-split", kRanks, "ranks have shares that are as equal as heads allow"},
    {"-t", kThreads, ""},
    {"--threads", kThreads, ""},
    {"-np", kSeqs, ""},
    {"--parallel", kSeqs, ""},
    {"-b", kBatch, ""},
    {"--batch-size", kBatch, ""},
    {"-ub", kBatch, ""},
    {"--ubatch-size", kBatch, ""},
    {"-n", "--max-tokens", ""},
    {"--n-predict", "--max-tokens", ""},
    {"-p", "--prompt", ""},
    {"--temp", "--temperature", ""},
    {"--repeat-penalty", "--repetition-penalty", ""},
    {"-s", "--seed", ""},
    {"-a", kName, ""},
    {"--alias", kName, ""},
    {"-hf", "", kDownload},
    {"--hf-repo", "", kDownload},
    {"-fa", "", kOneAttention},
    {"--flash-attn", "", kOneAttention},
    {"--cache-type-k", kDtype, kModelDtype},
    {"--cache-type-v", kDtype, kModelDtype},
    {"--mlock", "", kMapped},
    {"--no-mmap", "", kMapped},
    {"--jinja", "", "leave it out: MODEL's chat template is always used"},
    {"--grammar", "", kNoGrammar},
    {"--metrics", "", "leave it out: /metrics is always there"},
    {"--cont-batching", "", kShared},
    {"-cb", "", kShared},
};

/// Flags of other servers that one hint fits, known by a part of their names.
struct Family {
  std::string_view part;
  std::string_view hint;
};

constexpr Family kFamilies[] = {
    {"lora", kNoAdapters},
    {"--data-parallel", kReplicas},
    {"speculative", kNoDraft},
    {"-mm-", "only text is supported"},
    {"--mamba-", "models of state spaces (Mamba) are not supported"},
    {"expert", kNoExperts},
    {"eplb", kNoExperts},
    {"cudagraph", kNoGraphs},
    {"cuda-graph", kNoGraphs},
};

/// A flag that says what one request asks for, and the field of a request that does.
struct RequestField {
  std::string_view flag;
  std::string_view field;
};

constexpr RequestField kRequestFields[] = {{"--max-tokens", "max_tokens"},
                                           {"--temperature", "temperature"},
                                           {"--repetition-penalty", "repetition_penalty"}};

/// What to do instead of a flag that is one of other commands: a server leaves such things to its
/// clients. Empty if there is nothing to say.
std::string hint_of_others(std::string_view flag,
                           const std::function<bool(std::string_view flag)>& has) {
  const auto* const found =
      std::find_if(std::begin(kRequestFields), std::end(kRequestFields),
                   [flag](const RequestField& one) { return one.flag == flag; });
  if (found == std::end(kRequestFields) || !has("--grpc-port")) return "";
  return cat("clients set ", found->field, " in their requests");
}

std::optional<std::string> hint_of_family(std::string_view name) {
  const auto* const found = std::find_if(
      std::begin(kFamilies), std::end(kFamilies),
      [name](const Family& one) { return name.find(one.part) != std::string_view::npos; });
  if (found == std::end(kFamilies)) return std::nullopt;
  return std::string(found->hint);
}

}  // namespace

std::span<const ForeignFlag> foreign_flags() {
  return kForeign;
}

std::optional<std::string> foreign_flag_hint(
    std::string_view name, const std::function<bool(std::string_view flag)>& has) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  const auto* const found =
      std::find_if(std::begin(kForeign), std::end(kForeign),
                   [&wanted](const ForeignFlag& one) { return one.name == wanted; });
  if (found == std::end(kForeign)) return hint_of_family(wanted);
  if (found->use.empty()) return std::string(found->hint);
  if (!has(found->use)) return hint_of_others(found->use, has);
  return cat("use ", found->use, found->hint.empty() ? "" : ": ", found->hint);
}

bool is_model_flag(std::string_view name) {
  return name == "--model" || name == "--model-path" || name == "--model-id" || name == "-m";
}

}  // namespace shoal
