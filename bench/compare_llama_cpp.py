#!/usr/bin/env python3
"""Times Shoal and llama.cpp in turns, with the same bf16 weights and the same instructions.

    scripts/build && scripts/get-model smollm2
    bench/compare_llama_cpp.py                 # 5 turns; Markdown tables, one for each kernel set
    bench/compare_llama_cpp.py --turns 1 --models smollm2      # does it work at all?
    bench/compare_llama_cpp.py --shoal PATH    # another program than build/release/shoal

llama.cpp is built in build/bench/llama.cpp from the source package of llama-cpp-python on PyPI: for
this processor, and once more for AVX-512 without bf16 and for AVX2 alone where the processor has
more. Each build meets the kernel set of Shoal that uses the same instructions. The models are
SmolLM2-135M-Instruct and random weights in the shape of a Llama of 1.1 B parameters (2.2 GB, written
twice below build/bench).

A prompt is 512 tokens in one batch. Decoding is of one sequence, 24 tokens after its begin. Each run
is a process of its own and gives its median repeat, or of decoding its turn of 8 tokens with the median
fraction of the read bandwidth (llama-bench: its median repeat). A ratio is of two runs next to each
other, and a table has medians of the turns and, in brackets, the least and the most. After Ctrl-C the
tables have the turns that were whole, and the exit code is 130.
"""
import argparse
import hashlib
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
VENV = ROOT / "build" / "venv-bench"
LLAMA = BUILD / "llama.cpp"
# The version is fixed, because each version of the package contains another llama.cpp.
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
# `shoal bench decode`: 16 tokens of prompt, 8 of warm-up
PROMPT_TOKENS, DECODE_AFTER, REPEATS = 512, 24, 3
CHECK_PROMPT, CHECK_TOKENS = "The capital of France is", 24
MODELS = {"smollm2": "SmolLM2-135M", "tinyllama-1.1b": "1.1 B shape"}
DECODE_TOKENS = {"smollm2": 128, "tinyllama-1.1b": 32}
LONGEST_RUN_S = 1800
INTERRUPTED = 130  # what a shell says of SIGINT
# What llama.cpp is told to compile for if the best set of this processor is another one.
AVX2 = ["-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON",
        "-DGGML_BMI2=ON"]
INSTRUCTIONS = {"avx512": [*AVX2, "-DGGML_AVX512=ON", "-DGGML_AVX512_BF16=OFF"],
                "avx2": [*AVX2, "-DGGML_AVX512=OFF"]}

# ---- in the virtual environment: the model files of llama.cpp


def add_tokenizer(writer, model: Path, config: dict) -> None:
    """The vocabulary, or its size alone if the model has none."""
    import gguf

    if not (model / "tokenizer.json").exists():
        writer.add_tokenizer_model("no_vocab")
        return
    tokenizer = json.loads((model / "tokenizer.json").read_text())
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


def add_config(writer, config: dict) -> None:
    import gguf

    heads = config["num_attention_heads"]
    writer.add_custom_alignment(64)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def permute(weight, heads: int):
    """GGUF has rotary pairs of q and k side by side; Hugging Face, half a head apart."""
    rows = weight.shape[0] // heads
    return weight.reshape(heads, 2, rows // 2,
                          weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def add_tensors(writer, model: Path, config: dict) -> None:
    import gguf
    import numpy as np

    permuted = {"q_proj.weight": config["num_attention_heads"],
                "k_proj.weight": config["num_key_value_heads"]}
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
        for suffix, heads in permuted.items():
            if name.endswith(suffix):
                bits = permute(bits, heads)
        raw = np.ascontiguousarray(bits).view(np.uint8)
        writer.add_tensor(gguf_name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)


def write_gguf(model: Path, out: Path) -> None:
    """Writes the Hugging Face directory as GGUF, with every number as it is."""
    import gguf

    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_name(model.name)
    add_config(writer, config)
    add_tokenizer(writer, model, config)
    add_tensors(writer, model, config)
    partial = out.with_suffix(".partial")  # renamed when complete
    writer.write_header_to_file(partial)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(out)


# ---- with any Python: building, turns, tables


def run(command: list, what: str, **options) -> str:
    try:
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=LONGEST_RUN_S,
                              stdin=subprocess.DEVNULL, **options)
    except subprocess.TimeoutExpired:
        sys.exit(f"compare_llama_cpp: {what} took more than {LONGEST_RUN_S} s")
    except OSError as error:
        sys.exit(f"compare_llama_cpp: cannot start {what}: {error}")
    if done.returncode != 0:
        sys.exit(f"compare_llama_cpp: {what} ended with {done.returncode}:\n"
                 f"{done.stderr[-2000:]}{done.stdout[-2000:]}")
    return done.stdout


def make_environment() -> None:
    if not (VENV / "bin" / "pip").exists():
        run(["/usr/bin/python3", "-m", "venv", VENV],
            "making build/venv-bench (Debian: apt-get install python3-venv)")
    run([VENV / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "-r",
         ROOT / "bench" / "requirements.txt"], "pip install -r bench/requirements.txt")


def prepare(name: str, model: Path) -> Path:
    """The model's GGUF, written if it is older than the model."""
    weights, out = model / "model.safetensors", BUILD / f"{name}-bf16.gguf"
    if not weights.exists() and name != "smollm2":
        run([VENV / "bin" / "python", ROOT / "bench" / "make_random_model.py", model, "--shape",
             name], "bench/make_random_model.py")
    if not weights.exists():
        sys.exit(f"compare_llama_cpp: no model in {model}: scripts/get-model {name}")
    newest = max(weights.stat().st_mtime, Path(__file__).stat().st_mtime)
    if not out.exists() or out.stat().st_mtime < newest:
        run([VENV / "bin" / "python", __file__, "--write-gguf", model, out], f"writing {out}")
    return out


def llama_source() -> Path:
    """llama.cpp as llama-cpp-python's source package carries it."""
    folder = f"{PACKAGE.replace('-', '_')}-{VERSION}"
    source = LLAMA / folder / "vendor" / "llama.cpp"
    if not source.exists():
        run([VENV / "bin" / "pip", "download", "--quiet", "--disable-pip-version-check",
             "--no-deps", "--no-binary", PACKAGE, "--dest", LLAMA, f"{PACKAGE}=={VERSION}"],
            f"pip download {PACKAGE}=={VERSION}")
        run(["tar", "-xzf", LLAMA / f"{folder}.tar.gz", "-C", LLAMA], f"unpacking {folder}")
    return source


def processor() -> str:
    """A short name for what a native build depends on."""
    flags = re.search(r"(?m)^(?:flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text())
    return hashlib.sha256(flags[0].encode()).hexdigest()[:8]


def build_llama(kernels: str, native: bool) -> Path:
    """The folder of llama.cpp's programs for one kernel set. All sets are built in one folder, one
    after the other, because only a few of the sources are compiled for a kernel set.
    """
    out = LLAMA / f"{VERSION}-{kernels}{'-' + processor() if native else ''}"
    names = ("llama-bench", "llama-simple")
    if not all((out / name).exists() for name in names):
        build = LLAMA / f"{VERSION}-build-{processor()}"
        instructions = ["-DGGML_NATIVE=ON"] if native else INSTRUCTIONS[kernels]
        off = [f"-D{option}=OFF" for option in
               ("GGML_CCACHE", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_SERVER", "LLAMA_BUILD_APP",
                "LLAMA_BUILD_UI", "LLAMA_OPENSSL", "BUILD_SHARED_LIBS")]
        # The defaults of many options depend on what was said for the last set.
        (build / "CMakeCache.txt").unlink(missing_ok=True)
        run(["cmake", "-S", llama_source(), "-B", build, "-G", "Ninja",
             "-DCMAKE_BUILD_TYPE=Release", *instructions, *off], f"configuring {build}")
        print(f"building llama.cpp for {kernels}: this takes minutes", file=sys.stderr)
        run(["ninja", "-C", build, "-j", len(os.sched_getaffinity(0)), *names],
            f"building {build}")
        out.mkdir(exist_ok=True)
        for name in names:
            partial = out / f"{name}.partial"  # renamed when complete
            shutil.copy2(build / "bin" / name, partial)
            partial.rename(out / name)
    return out


def shoal(program: Path, *words: object) -> dict:
    return json.loads(run([program, *words, "--json"], "shoal " + " ".join(map(str, words))))


def llama_rate(programs: Path, gguf: Path, threads: int, *words: object) -> float:
    """Tokens per second: the median of llama-bench's repeats."""
    out = run([programs / "llama-bench", "-m", gguf, "-t", threads, "-r", REPEATS, "-o", "json",
               *words], "llama-bench " + " ".join(map(str, words)))
    return statistics.median(json.loads(out)[0]["samples_ts"])


class Series:
    """What the turns of one row gave."""

    def __init__(self) -> None:
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.fractions: list[float] = []

    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.ours, self.theirs)]


def turn(rows: dict, args: argparse.Namespace, name: str, gguf: Path, programs: Path,
         kernels: str) -> None:
    """Prefill and decode of one model on one kernel set, by both programs one after the other."""
    model = args.models_at[name]
    for threads in [n for n in (1, 2) if n <= len(os.sched_getaffinity(0))]:
        flags = [model, "-tp", 1, "--threads-per-rank", threads, "--cpu-kernels", kernels]
        for what in args.what:
            row = rows.setdefault((kernels, name, threads, what), Series())
            tokens = PROMPT_TOKENS if what == "prefill" else DECODE_TOKENS[name]
            ours = shoal(args.shoal, "bench", what, *flags, "--tokens", tokens)
            row.ours.append(ours["tokens_per_s"])
            if what == "decode":
                row.fractions.append(ours["fraction"])
                row.theirs.append(llama_rate(programs, gguf, threads, "-p", 0, "-n", tokens, "-d",
                                             DECODE_AFTER))
            else:
                row.theirs.append(llama_rate(programs, gguf, threads, "-p", tokens, "-n", 0))


def spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} – {max(values):{form}})"


def table(rows: dict, kernels: str) -> str:
    lines = ["| model | threads | what | Shoal, tokens/s | llama.cpp, tokens/s | Shoal to "
             "llama.cpp | Shoal's share of read bandwidth |", "|---|--:|---|--:|--:|--:|--:|"]
    for (row_kernels, name, threads, what), row in rows.items():
        if row_kernels == kernels:
            share = spread(row.fractions, ".2f") if row.fractions else ""
            lines.append(f"| {MODELS[name]} | {threads} | {what} | {spread(row.ours, '.1f')} | "
                         f"{spread(row.theirs, '.1f')} | {spread(row.ratios(), '.2f')} | {share} |")
    return "\n".join(lines)


def check(args: argparse.Namespace, programs: Path, gguf: Path, kernels: str) -> str:
    """Whether both programs continue a prompt alike, so that they compute the same model."""
    theirs = run([programs / "llama-simple", "-m", gguf, "-n", CHECK_TOKENS, "-ngl", 0,
                  CHECK_PROMPT], "llama-simple").strip()
    ours = CHECK_PROMPT + shoal(args.shoal, "generate", args.models_at["smollm2"], "--prompt",
                                CHECK_PROMPT, "--max-tokens", CHECK_TOKENS, "--temperature", 0,
                                "--cpu-kernels", kernels)["text"]
    same = os.path.commonprefix([ours.strip(), theirs])
    return f"{len(same)} of {len(ours.strip())} characters of a greedy answer agree"


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def compare(args: argparse.Namespace) -> None:
    here = shoal(args.shoal, "--version")["kernel_sets_here"]
    if unknown := set(args.sets or []) - {here[0], *INSTRUCTIONS}.intersection(here):
        sys.exit(f"compare_llama_cpp: llama.cpp has no build for {', '.join(sorted(unknown))} here")
    sets = [name for name in here if name in (args.sets or (here[0], *INSTRUCTIONS))]
    make_environment()
    ggufs = {name: prepare(name, model) for name, model in args.models_at.items()}
    programs = {kernels: build_llama(kernels, kernels == here[0]) for kernels in sets}
    load = os.getloadavg()[0]
    rows: dict[tuple, Series] = {}
    turns = 0
    try:
        while turns < args.turns:
            for kernels in sets:
                for name, gguf in ggufs.items():
                    turn(rows, args, name, gguf, programs[kernels], kernels)
            turns += 1
            print(f"turn {turns} of {args.turns}", file=sys.stderr)
    except KeyboardInterrupt:
        if turns == 0:
            sys.exit(INTERRUPTED)
        for row in rows.values():  # the turn that was interrupted counts in no row
            del row.ours[turns:], row.theirs[turns:], row.fractions[turns:]
    print(f"{cpu_name()}, {len(os.sched_getaffinity(0))} usable CPUs, load average before the "
          f"start {load:.2f}; {run([args.shoal, '--version'], 'shoal --version').strip()}; "
          f"{PACKAGE} {VERSION}; prompt {PROMPT_TOKENS} tokens; medians of {turns} turns "
          "(least – most)")
    for kernels in sets:
        print(f"\n### {kernels}\n\n{table(rows, kernels)}")
        if "smollm2" in ggufs and turns == args.turns:
            print(f"\n{check(args, programs[kernels], ggufs['smollm2'], kernels)}")
    for what in args.what:
        worst = min((statistics.median(row.ratios()), key)
                    for key, row in rows.items() if key[3] == what)
        print(f"\nworst {what}: {worst[0]:.2f}, {worst[1][0]}, {MODELS[worst[1][1]]}, threads: "
              f"{worst[1][2]}")
    if turns < args.turns:
        sys.exit(INTERRUPTED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="all runs so many times (5)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--what", nargs="+", choices=("prefill", "decode"),
                        default=["prefill", "decode"])
    parser.add_argument("--sets", nargs="+", metavar="SET",
                        help="kernel sets (this processor's best, avx512 and avx2)")
    parser.add_argument("--shoal", type=Path, default=ROOT / "build" / "release" / "shoal",
                        metavar="PATH")
    parser.add_argument("--smollm2", type=Path, default=ROOT / "models" / "smollm2", metavar="DIR")
    parser.add_argument("--write-gguf", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write_gguf:
        write_gguf(*args.write_gguf)
        return
    if not args.shoal.exists():
        sys.exit(f"compare_llama_cpp: no program {args.shoal}: scripts/build, or --shoal PATH")
    if shutil.which("ninja") is None or shutil.which("cmake") is None:
        sys.exit("compare_llama_cpp: building llama.cpp needs cmake and ninja")
    LLAMA.mkdir(parents=True, exist_ok=True)
    args.shoal = args.shoal.resolve()
    args.models_at = {name: args.smollm2.resolve() if name == "smollm2" else BUILD / name
                      for name in args.models}
    try:
        compare(args)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
