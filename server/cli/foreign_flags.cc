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
constexpr std::string_view kNotQuantized =
    "quantised weights are not supported: give a checkpoint of float32, float16 or bfloat16";
constexpr std::string_view kNoAdapters = "adapters (LoRA) are not supported";
constexpr std::string_view kNoPrefixCache = "leave it out: prompts share no KV cache";
constexpr std::string_view kOwnTokenizer = "leave it out: MODEL's own tokenizer.json is used";
constexpr std::string_view kDownload =
    "nothing is downloaded: hf download ID --local-dir DIR, then name DIR as MODEL";
constexpr std::string_view kNoDraft = "speculative decoding is not supported";
constexpr std::string_view kNoTools = "calls of tools are not read out of answers";
constexpr std::string_view kNoGrammar = "answers cannot be bound to a grammar";
constexpr std::string_view kRequestLines = "a line for each request is of level info";
constexpr std::string_view kProxyPath = "let the proxy before the server cut off the path";
constexpr std::string_view kMapped = "leave it out: each rank reads its part of the weights";

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
    {"--data-parallel-size", "", kReplicas},
    {"-dp", "", kReplicas},
    {"--nnodes", "", kOneHost},
    {"--node-rank", "", kOneHost},
    {"--enable-expert-parallel", "", "mixtures of experts are not supported"},
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
    {"--kv-cache-dtype", kDtype, "the KV cache has the type of the model"},
    {"--swap-space", kCache, "the KV cache is not swapped"},
    {"--cpu-offload-gb", kDevice, kWholeModel},
    {"--block-size", "", "leave it out: a block of the KV cache has 16 tokens"},
    {"--enable-prefix-caching", "", kNoPrefixCache},
    {"--no-enable-prefix-caching", "", kNoPrefixCache},
    {"--enable-chunked-prefill", kBatch, "prompts are always computed in chunks"},
    {"--no-enable-chunked-prefill", kBatch, "prompts are always computed in chunks"},
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
    {"--hf-overrides", "", "change config.json in a copy of MODEL"},
    {"--generation-config", "", "leave it out: MODEL's generation_config.json is used"},
    {"--enable-lora", "", kNoAdapters},
    {"--lora-modules", "", kNoAdapters},
    {"--speculative-config", "", kNoDraft},
    {"--speculative-model", "", kNoDraft},
    {"--enable-auto-tool-choice", "", kNoTools},
    {"--tool-call-parser", "", kNoTools},
    {"--reasoning-parser", "", "reasoning is not told apart from the answer"},
    {"--guided-decoding-backend", "", kNoGrammar},
    {"--limit-mm-per-prompt", "", "only text is supported"},
    {"--task", "", "leave it out: models generate text"},
    // SGLang
    {"--mem-fraction-static", kCache, kCacheBytes},
    {"--max-total-tokens", kCache, kCacheBytes},
    {"--context-length", kLength, ""},
    {"--max-running-requests", kSeqs, ""},
    {"--max-queued-requests", "--max-num-queued-reqs", ""},
    {"--chunked-prefill-size", kBatch, ""},
    {"--max-prefill-tokens", kBatch, ""},
    {"--schedule-policy", "--scheduling-policy", ""},
    {"--dp-size", "", kReplicas},
    {"--pp-size", kRanks, kNoPipeline},
    {"--disable-cuda-graph", "", kNoGraphs},
    {"--disable-radix-cache", "", kNoPrefixCache},
    {"--attention-backend", "", kOneAttention},
    {"--tokenizer-path", "", kOwnTokenizer},
    {"--random-seed", "--seed", ""},
    {"--log-requests", kLog, kRequestLines},
    {"--max-new-tokens", "--max-tokens", ""},
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
    {"--cache-type-k", kDtype, "the KV cache has the type of the model"},
    {"--cache-type-v", kDtype, "the KV cache has the type of the model"},
    {"--mlock", "", kMapped},
    {"--no-mmap", "", kMapped},
    {"--jinja", "", "leave it out: MODEL's chat template is always used"},
    {"--lora", "", kNoAdapters},
    {"--grammar", "", kNoGrammar},
    {"--metrics", "", "leave it out: /metrics is always there"},
    {"--cont-batching", "", "leave it out: requests always share steps"},
    {"-cb", "", "leave it out: requests always share steps"},
};

}  // namespace

std::span<const ForeignFlag> foreign_flags() {
  return kForeign;
}

std::string foreign_flag_hint(std::string_view name,
                              const std::function<bool(std::string_view flag)>& has) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  const auto* const found =
      std::find_if(std::begin(kForeign), std::end(kForeign),
                   [&wanted](const ForeignFlag& one) { return one.name == wanted; });
  if (found == std::end(kForeign)) return "";
  if (found->use.empty()) return std::string(found->hint);
  if (!has(found->use)) return "";
  return cat("use ", found->use, found->hint.empty() ? "" : ": ", found->hint);
}

bool is_model_flag(std::string_view name) {
  return name == "--model" || name == "--model-path" || name == "-m";
}

}  // namespace shoal
