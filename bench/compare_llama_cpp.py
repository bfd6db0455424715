#!/usr/bin/env python3
"""Times SmolLM2-135M-Instruct in Shoal and in llama.cpp, in turn, with the same bf16 weights.

    scripts/build && scripts/get-model smollm2
    bench/compare_llama_cpp.py                 # up to 5 rounds within 4 minutes, a Markdown table
    bench/compare_llama_cpp.py --quick         # one round: does it work at all?
    bench/compare_llama_cpp.py --shoal PATH    # another program than build/release/shoal

llama.cpp comes as the wheel `xllamacpp`, installed into build/venv-bench. The weights are written
once more as build/bench/smollm2-bf16.gguf. The prompt is 512 tokens in one batch, with nothing
cached. Decoding is 128 tokens of one sequence after 24 others. Both are timed by the programs' own
clocks: each run gives its median repeat or step, and the table has the median of the runs and, in
brackets, the least and the most. Every run is a process of its own.

A wheel must run on many machines, so it may have been built without this one's instructions. If
Shoal would use wider ones than llama.cpp was built for, the table has rows for both: "kernels" says
which.
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build" / "venv-bench"
GGUF = ROOT / "build" / "bench" / "smollm2-bf16.gguf"
# `shoal bench decode`: 16 tokens of prompt, 8 of warm-up
PROMPT_TOKENS, DECODE_TOKENS, DECODE_AFTER = 512, 128, 24
# the 30th token is the end of text, which llama.cpp bans
CHECK_PROMPT, CHECK_TOKENS = "The capital of France is", 24
RUN_TIMEOUT_S = 300
RESULT = "RESULT "  # llama.cpp may write to stdout too

# ---- in the virtual environment: llama.cpp, and its model file


def write_gguf(model: Path, out: Path) -> None:
    """Writes the Hugging Face directory as GGUF, with every number as it is."""
    import gguf
    import numpy as np

    config = json.loads((model / "config.json").read_text())
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_custom_alignment(64)
    writer.add_name("SmolLM2-135M-Instruct")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])

    tokens = [""] * config["vocab_size"]
    types = [gguf.TokenType.NORMAL] * config["vocab_size"]
    for text, token_id in tokenizer["model"]["vocab"].items():
        tokens[token_id] = text
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m)
                             for m in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)

    def permute(weight, heads: int):
        """GGUF has rotary pairs of q and k side by side; Hugging Face, half a head apart."""
        rows = weight.shape[0] // heads
        return weight.reshape(heads, 2, rows // 2,
                              weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    data = np.memmap(model / "model.safetensors", mode="r")
    header_bytes = struct.unpack("<Q", data[:8].tobytes())[0]
    for name, tensor in json.loads(data[8:8 + header_bytes].tobytes()).items():
        if name == "__metadata__":
            continue
        if tensor["dtype"] != "BF16":
            sys.exit(f"compare_llama_cpp: {name} in {model} is {tensor['dtype']}, not BF16: "
                     "scripts/get-model smollm2")
        begin, end = (8 + header_bytes + offset for offset in tensor["data_offsets"])
        bits = data[begin:end].view(np.uint16).reshape(tensor["shape"])
        gguf_name = names.get_name(name, (".weight",))
        if bits.ndim == 1:  # llama.cpp takes norm weights in float32 only
            writer.add_tensor(gguf_name, (bits.astype(np.uint32) << 16).view(np.float32))
            continue
        if name.endswith("q_proj.weight"):
            bits = permute(bits, heads)
        elif name.endswith("k_proj.weight"):
            bits = permute(bits, kv_heads)
        raw = np.ascontiguousarray(bits).view(np.uint8)
        writer.add_tensor(gguf_name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)

    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_suffix(".partial")  # renamed when complete
    writer.write_header_to_file(partial)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(out)


def llama_server(threads: int):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(GGUF)
    params.n_ctx = 1024
    params.n_batch = params.n_ubatch = PROMPT_TOKENS
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_gpu_layers = 0
    params.cache_prompt = False  # compute every prompt from its first token
    params.cache_ram_mib = 0
    params.n_ctx_checkpoints = 0
    params.fit_params = False
    params.warmup = True
    params.verbosity = 0
    return xllamacpp.Server(params)  # all else, such as flash attention, is llama.cpp's default


def llama_complete(server, ids: list[int], count: int, **options) -> list[dict]:
    """The chunks of a streamed greedy completion, each with llama.cpp's own timings so far."""
    chunks: list = []
    server.handle_completions({"prompt": ids, "max_tokens": count, "temperature": 0,
                               "samplers": ["top_k"], "top_k": 1, "ignore_eos": True,
                               "cache_prompt": False, "stream": True, "timings_per_token": True,
                               **options}, chunks.append)
    if not chunks or not all(isinstance(chunk, dict) and "timings" in chunk for chunk in chunks):
        sys.exit(f"compare_llama_cpp: no timings in llama.cpp's answer: {chunks[:1]}")
    timings = chunks[-1]["timings"]
    if (timings["prompt_n"] != len(ids) or timings["cache_n"] != 0
            or timings["predicted_n"] != count):
        sys.exit("compare_llama_cpp: llama.cpp took other tokens than asked, "
                 f"{len(ids)} and {count}: {timings}")
    return chunks


def llama_run(job: dict) -> dict:
    """Measures the seconds of a prompt and of a decode step. Runs in a process of its own."""
    import xllamacpp

    result: dict = {"system": xllamacpp.get_system_info(), "version": xllamacpp.__version__}
    server = llama_server(job["threads"])
    prompt_ms = [llama_complete(server, job["prompt"], 1)[0]["timings"]["prompt_ms"]
                 for _ in range(4)]
    result["prompt_s"] = statistics.median(prompt_ms[1:]) / 1e3  # the first one warms up

    # The first token comes with the prompt. A chunk may hold several tokens,
    # if a character is spread over them.
    chunks = llama_complete(server, job["prompt"][:DECODE_AFTER], DECODE_TOKENS + 1)
    clock = [(c["timings"]["predicted_n"], c["timings"]["predicted_ms"]) for c in chunks[:-1]]
    steps = [(ms - ms0) / (n - n0) for (n0, ms0), (n, ms) in zip(clock, clock[1:]) if n > n0]
    result["decode_s"] = statistics.median(steps) / 1e3

    if job["check"]:
        # with logprobs, chunks carry the ids
        chunks = llama_complete(server, job["check"], CHECK_TOKENS, logprobs=1)
        result["tokens"] = [token["id"] for c in chunks if c["choices"][0].get("logprobs")
                            for token in c["choices"][0]["logprobs"]["content"]]
    return result


# ---- with any Python: Shoal, the turns, the table


def run(command: list, what: str) -> str:
    try:
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True,
                              timeout=RUN_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        sys.exit(f"compare_llama_cpp: {what} took more than {RUN_TIMEOUT_S} s")
    except OSError as error:
        sys.exit(f"compare_llama_cpp: cannot start {what}: {error}")
    if done.returncode != 0:
        sys.exit(f"compare_llama_cpp: {what} ended with {done.returncode}:\n"
                 f"{done.stderr[-2000:]}{done.stdout[-500:]}")
    return done.stdout


def venv_python(*arguments: str) -> str:
    return run([VENV / "bin" / "python", __file__, *arguments], "llama.cpp (" + arguments[0] + ")")


def prepare(model: Path) -> None:
    if not (VENV / "bin" / "pip").exists():
        run(["/usr/bin/python3", "-m", "venv", VENV],
            "making build/venv-bench (Debian: apt-get install python3-venv)")
    run([VENV / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "-r",
         ROOT / "bench" / "requirements.txt"], "pip install -r bench/requirements.txt")
    newest = max((model / "model.safetensors").stat().st_mtime, Path(__file__).stat().st_mtime)
    if not GGUF.exists() or GGUF.stat().st_mtime < newest:
        venv_python("--worker-gguf", str(model))


class Shoal:
    def __init__(self, program: Path, model: Path):
        self.program, self.model = program, model

    def json(self, *arguments) -> dict:
        return json.loads(run([self.program, *arguments, "--json"],
                              "shoal " + " ".join(map(str, arguments))))

    def ids(self, *source: str) -> list[int]:
        return self.json("tokenize", self.model, *source)["ids"]

    def greedy(self, ids: list[int], kernels: str) -> list[int]:
        return self.json("generate", self.model, "--prompt-ids", ",".join(map(str, ids)),
                         "--max-tokens", CHECK_TOKENS, "--temperature", 0, "--ignore-eos",
                         "--cpu-kernels", kernels, "-tp", 1)["token_ids"]

    def bench(self, what: str, tokens: int, ranks: int, threads: int, kernels: str) -> dict:
        return self.json("bench", what, self.model, "--tokens", tokens, "-tp", ranks,
                         "--threads-per-rank", threads, "--cpu-kernels", kernels)


def comparable_kernels(system: str) -> str:
    """The kernel set of Shoal that uses the same instructions as this build of llama.cpp."""
    if "AVX512_BF16 = 1" in system:
        return "avx512-bf16"
    return "avx512" if "AVX512 = 1" in system else "avx2"


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} – {max(values):.1f})"


class Table:
    def __init__(self) -> None:
        self.rows: dict[tuple, dict] = {}  # (threads, program, layout, kernels)
        self.bandwidth: dict[int, float] = {}
        self.weight_bytes = 0

    def add(self, key: tuple, prompt_tokens_per_s: float, decode_tokens_per_s: float) -> None:
        row = self.rows.setdefault(key, {"prompt": [], "decode": []})
        row["prompt"].append(prompt_tokens_per_s)
        row["decode"].append(decode_tokens_per_s)

    def add_shoal(self, key: tuple, prefill: dict, decode: dict) -> None:
        # The first run has one rank. Several ranks keep some weights twice.
        self.weight_bytes = self.weight_bytes or decode["weight_bytes"]
        # The best counts, because a yardstick that another program slowed down would flatter both.
        self.bandwidth[key[0]] = max(self.bandwidth.get(key[0], 0),
                                     decode["read_bandwidth_bytes_per_s"])
        self.add((*key, decode["kernels"]), prefill["tokens_per_s"], decode["tokens_per_s"])

    def markdown(self) -> str:
        lines = ["| threads | program | kernels | prompt, tokens/s | decode, tokens/s | decode "
                 "reads, GB/s | machine reads, GB/s | share |", "|--:|---|---|--:|--:|--:|--:|--:|"]
        for (threads, program, layout, kernels), row in sorted(self.rows.items()):
            reads, machine = (statistics.median(row["decode"]) * self.weight_bytes,
                              self.bandwidth[threads])
            lines.append(f"| {threads} | {program}{layout} | {kernels} | "
                         f"{spread(row['prompt'])} | {spread(row['decode'])} | "
                         f"{reads / 1e9:.1f} | {machine / 1e9:.1f} | {reads / machine:.2f} |")
        return "\n".join(lines)


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def llama_turn(threads: int, prompt: list[int], check: list[int]) -> dict:
    out = venv_python("--worker-llama",
                      json.dumps({"threads": threads, "prompt": prompt, "check": check}))
    return json.loads(
        next(line for line in reversed(out.splitlines()) if line.startswith(RESULT))[len(RESULT):])


def agreement(ours: list[int], theirs: list[int]) -> str:
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b),
                min(len(ours), len(theirs)))
    return f"the first {same} of {CHECK_TOKENS} greedy tokens agree" if same < CHECK_TOKENS else \
        f"all {CHECK_TOKENS} greedy tokens agree"


def compare(shoal: Shoal, rounds: int, seconds: float) -> None:
    prompt = shoal.ids("--file", str(ROOT / "docs" / "architecture.md"))[:PROMPT_TOKENS]
    if len(prompt) < PROMPT_TOKENS:
        sys.exit(f"compare_llama_cpp: docs/architecture.md has {len(prompt)} tokens, "
                 f"fewer than {PROMPT_TOKENS}")
    check = shoal.ids("--text", CHECK_PROMPT)
    usable = len(os.sched_getaffinity(0))
    thread_counts = [n for n in (1, 2) if n <= usable]
    load = os.getloadavg()[0]
    table, kernels, llama = Table(), "", {}
    start = last = time.monotonic()
    done = 0
    while done < rounds:
        for threads in thread_counts:
            def shoal_turn(ranks: int, set_name: str) -> str:
                each = threads // ranks
                prefill = shoal.bench("prefill", PROMPT_TOKENS, ranks, each, set_name)
                decode = shoal.bench("decode", DECODE_TOKENS, ranks, each, set_name)
                layout = f", {ranks} rank{'s' * (ranks > 1)} x {each} thread{'s' * (each > 1)}"
                table.add_shoal((threads, "Shoal", layout), prefill, decode)
                return decode["kernels"]

            widest = shoal_turn(1, "auto")
            turn = llama_turn(threads, prompt, [] if llama else check)
            kernels = kernels or comparable_kernels(turn["system"])
            llama = llama or turn
            table.add((threads, "llama.cpp", "", kernels), PROMPT_TOKENS / \
                      turn["prompt_s"], 1 / turn["decode_s"])
            if threads == 2:
                shoal_turn(2, "auto")
            if kernels != widest:
                shoal_turn(1, kernels)
        done += 1
        now = time.monotonic()
        print(f"round {done}: {now - last:.0f} s", file=sys.stderr)
        if now - start + (now - last) > seconds:
            break
        last = now

    greedy = shoal.greedy(check, kernels)
    version = run([shoal.program, "--version"], "shoal --version").strip()
    print(f"SmolLM2-135M-Instruct, bf16 ({table.weight_bytes / 1e6:.0f} MB read per token); "
          f"prompt {PROMPT_TOKENS} tokens, decode {DECODE_TOKENS} tokens; "
          f"median (least – most) of {done} round{'s' * (done > 1)}\n")
    print(f"- machine: {cpu_name()}, {usable} usable CPUs, load average before the start {load:.2f}"
          f"{': busy, the numbers mean little' if load > 0.3 else ''}")
    print(f"- {version}; xllamacpp {llama['version']}, whose llama.cpp says: "
          f"{llama['system'].strip(' |')}")
    print(f"- \"{CHECK_PROMPT}\": {agreement(greedy, llama['tokens'])} (Shoal's kernels: "
          f"{kernels})\n")
    print(table.markdown())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--rounds", type=int, default=5, help="at most this many (5)")
    parser.add_argument("--seconds", type=float, default=240,
                        help="no new round that would end later (240)")
    parser.add_argument("--shoal", type=Path, default=ROOT / "build" / "release" / "shoal",
                        metavar="PATH")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2", metavar="DIR")
    parser.add_argument("--worker-gguf", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker-llama", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker_gguf:
        write_gguf(args.worker_gguf, GGUF)
        return
    if args.worker_llama:
        print(RESULT + json.dumps(llama_run(args.worker_llama)), flush=True)
        return
    if not (args.model / "model.safetensors").exists():
        sys.exit(f"compare_llama_cpp: no model in {args.model}: scripts/get-model smollm2")
    if not args.shoal.exists():
        sys.exit(f"compare_llama_cpp: no program {args.shoal}: scripts/build, or --shoal PATH")
    prepare(args.model)
    compare(Shoal(args.shoal.resolve(), args.model.resolve()),
            1 if args.quick else max(1, args.rounds), args.seconds)


if __name__ == "__main__":
    main()
