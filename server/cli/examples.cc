#include "server/cli/examples.h"

namespace shoal {
namespace {

struct Row {
  std::string_view command;
  const char* words;
  const char* what;
};

constexpr Row kRows[] = {
    {"serve", "serve MODEL -tp 2", "on two ranks, with HTTP on port 8000 and gRPC on port 50051"},
    {"serve", "serve MODEL --host 0.0.0.0 --port 8080 --api-key-file keys.txt",
     "for other machines, with keys"},
    {"serve", "serve MODEL --max-num-seqs 16 --kv-cache-memory 2g --max-queue-time 30",
     "with bounds on memory and on waiting"},
    {"serve", "serve MODEL --config shoal.yaml --print-config",
     "says what each flag is, and starts nothing"},
    {"generate", "generate MODEL --prompt \"In the beginning\" --max-tokens 40", "one completion"},
    {"generate", "generate MODEL --messages messages.json --temperature 0 --json",
     "an answer to chat messages, as JSON"},
    {"generate", "generate MODEL --jsonl requests.jsonl -tp 2", "a file of requests in one batch"},
    {"generate", "generate MODEL --chat", "a conversation; Ctrl-D ends it"},
    {"client", "client --prompt \"In the beginning\" --max-tokens 40",
     "streams a completion from the server on this machine"},
    {"client", "client --chat", "a conversation; Ctrl-D ends it"},
    {"client", "client --server 10.0.0.2:8000 --messages messages.json --json",
     "an answer to chat messages from another machine, as JSON"},
    {"doctor", "doctor -tp 4", "what four ranks would use here"},
    {"doctor", "doctor MODEL -tp 2 --kv-cache-memory 64m",
     "whether serve would start with these flags"},
    {"doctor", "doctor --needs", "the bytes that each transport takes"},
    {"doctor", "doctor -tp 8 --nccl-version 2.27.7 --json", "what NCCL would need here, as JSON"},
    {"logits", "logits MODEL --prompt-ids 1,2,3 --out logits.npy", "float32 [3, vocabulary]"},
    {"logits", "logits MODEL --prompt-ids 1,2,3 --out logits.npy -tp 2 --chunk 2",
     "the same bits from two ranks, two tokens at a time"},
    {"logits", "logits MODEL --jsonl prompts.jsonl --out-dir logits",
     "a file of prompts, in one start: logits/1.npy, logits/2.npy, ..."},
    {"tokenize", "tokenize MODEL --text \"In the beginning\"", "the ids on one line"},
    {"tokenize", "tokenize MODEL --file prompt.txt --json", "the ids of a file, as JSON"},
    {"detokenize", "detokenize MODEL --ids 1,2,3", "the text of these ids"},
    {"detokenize", "detokenize MODEL --ids 1,2,3 --skip-special", "without the special tokens"},
    {"render", "render MODEL --messages messages.json", "the prompt that the model would see"},
    {"render", "render MODEL --messages messages.json --ids", "the same as token ids"},
    {"bench decode", "bench decode MODEL -tp 2", "decoding on two ranks"},
    {"bench decode", "bench decode MODEL --tokens 16 --json", "a short run, as JSON"},
    {"bench prefill", "bench prefill MODEL --tokens 128", "a prompt of 128 tokens"},
    {"bench prefill", "bench prefill MODEL --tokens 64 -tp 2 --json", "on two ranks, as JSON"},
    {"bench collectives", "bench collectives -tp 2 --rounds 1", "every transport once"},
    {"bench collectives", "bench collectives --transport shm,tcp --rounds 1 --json",
     "two transports, as JSON"},
    {"shmtest", "shmtest --list", "the conditions, with what each means"},
    {"shmtest", "shmtest --matrix 4k,128m -- python3 test_engine.py",
     "a test, which starts the engine, asks it and stops it, under two of them"},
    {"shmtest", "shmtest --accept error --junit shm.xml -- python3 test_engine.py",
     "for CI: it may refuse to start, but not crash, hang or leave anything"},
    {"shmtest", "shmtest --min-size -- shoal generate MODEL --prompt x -tp 2",
     "the smallest /dev/shm that is enough for a command"},
};

}  // namespace

std::vector<Example> examples_of(std::string_view command) {
  std::vector<Example> examples;
  for (const Row& row : kRows) {
    if (row.command == command) examples.push_back({row.words, row.what});
  }
  return examples;
}

}  // namespace shoal
