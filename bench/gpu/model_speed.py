#!/usr/bin/env python3
"""Measures the model on a GPU beside what the GPU gives: decoding beside the rate at which it reads
memory, and the prefill of 2048 tokens beside a library's products of the same sizes. It prefills with
own kernels, and with --reproducible off, where cuBLASLt computes most of the products: PyTorch's own.

    bench/gpu/model_speed.py PROGRAM [FLAG...]
    bench/gpu/model_speed.py --step LOG PROGRAM [FLAG...]

PROGRAM is shoal, with its CUDA module beside it or named by the FLAGs, which go to every command. It
needs a GPU, numpy, and PyTorch for the library. Models of random weights (bench/make_random_model.py)
are written to MODELS (a variable; build/models), 18.3 GB in all. SHAPES (a variable) chooses among
tinyllama-1.1b,llama3-8b. The number of launches is that of the module's kernels in one step.
With --step, only that prefill of a 1.1 B shape (2.2 GB, needs numpy alone) is measured, beside the
products in LOG, which is what tests/gpu/library_cases.cc prints of the library that the FLAGs name.

Exit code 1: with --step, the prefill takes more than 1.15 of the time of its products; 77: there is no
GPU, no PyTorch or no numpy, and nothing was measured.
"""
import ctypes
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
NOTHING_MEASURED = 77
DECODE_TOKENS, PREFILL_TOKENS = 128, 2048
READ_BYTES = 1 << 32
TURNS = 20
MOST_OF_PRODUCTS = 1.15  # which a prefill by cuBLASLt may take


def skip(why: str) -> None:
    print(f"model_speed: SKIPPED, NOTHING WAS MEASURED: {why}")
    sys.exit(NOTHING_MEASURED)


def why_no_gpu() -> str:
    """Asks the driver itself, because nothing else needs to be installed for that."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no GPU: no NVIDIA driver is here ({error})"
    count = ctypes.c_int(0)
    error = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if error:
        return f"no GPU: the driver answers with error {error}"
    return "" if count.value > 0 else "no GPU: the driver has no device"


def seconds_of(torch, work) -> float:
    """The median time of some turns on the device, after two that only warm up."""
    times = []
    for _ in range(TURNS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times[2:])


def read_rate(torch) -> float:
    """Bytes per second: the better of a sum, which only reads, and of a copy, which also writes."""
    x = torch.ones(READ_BYTES // 4, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)
    return max(READ_BYTES / seconds_of(torch, x.sum),
               2 * READ_BYTES / seconds_of(torch, lambda: y.copy_(x)))


def products(shape: str) -> "list[tuple[int, int]]":
    """Outputs and columns of a layer's products, as Shoal fuses them."""
    from make_random_model import SHAPES
    hidden, _, heads, kv_heads, intermediate, _, _ = SHAPES[shape]
    head = hidden // heads
    return [((heads + 2 * kv_heads) * head, hidden), (hidden, heads * head),
            (2 * intermediate, hidden), (hidden, intermediate)]


def library_rate(torch, shape: str) -> float:
    """FLOP per second of the library's products of a layer."""
    flops = seconds = 0.0
    for outputs, columns in products(shape):
        x, w = (torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda")
                for rows in (PREFILL_TOKENS, outputs))
        seconds += seconds_of(torch, lambda: torch.matmul(x, w.t()))
        flops += 2.0 * PREFILL_TOKENS * outputs * columns
    return flops / seconds


def cublas_path() -> str:
    """The cuBLASLt that PyTorch has computed with, or "". Shoal is given the same one."""
    loaded = {line.split(maxsplit=5)[5].strip() for line in Path("/proc/self/maps").open()
              if "/libcublasLt.so" in line}
    return min(loaded, default="")


def yardsticks(shapes: "list[str]") -> None:
    """Prints them as JSON. In a process of its own, so that its memory is free again afterwards."""
    import torch
    library = {shape: library_rate(torch, shape) for shape in shapes}
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                      "reads": read_rate(torch), "library": library, "cublas": cublas_path()}))


def bytes_per_token(shape: str) -> int:
    """What decoding reads: every weight but the embeddings, of which it reads a row."""
    from make_random_model import SHAPES
    hidden, layers, *_, vocab, _ = SHAPES[shape]
    return 2 * (layers * sum(n * k for n, k in products(shape)) + vocab * hidden)


def measured(program: str, what: str, model: Path, tokens: int, flags: "list[str]") -> dict:
    command = [program, "bench", what, str(model), "--device", "cuda", "-tp", "1", "--json",
               "--log-level", "debug", "--tokens", str(tokens), "--max-num-batched-tokens",
               str(PREFILL_TOKENS), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        sys.exit(f"model_speed: {' '.join(command)} ended with {done.returncode}\n"
                 f"{done.stderr[-2000:]}")
    rows = "1 row" if what == "decode" else f"{tokens} rows"
    launches = re.findall(rf"a step of {rows} took (\d+) launches of own kernels", done.stderr)
    return {**json.loads(done.stdout), "launches": int(launches[-1]),
            "has_library": " computes products of " in done.stderr}


def report_prefill(program: str, model: Path, flags: "list[str]", shape: str,
                   gives: dict) -> None:
    """One row. Its first cell also says what the step takes, in the time that PyTorch's products of
    all layers would take: at most MOST_OF_PRODUCTS by cuBLASLt is the aim."""
    one = measured(program, "prefill", model, PREFILL_TOKENS, flags)
    by = "cuBLASLt" if one["has_library"] else "own kernels"
    rate, library = one["flops_per_s"], gives["library"][shape]
    print(f"| {shape}, prefill of {PREFILL_TOKENS} by {by}: {library / rate:.2f} of the products' time | "
          f"{one['tokens_per_s']:.0f} | {rate / 1e12:.0f} TFLOP/s | {library / 1e12:.0f} TFLOP/s | "
          f"{rate / library:.2f} | {one['launches']} |", flush=True)


def model_of(shape: str) -> Path:
    """Its folder, where it is written if it is not there."""
    model = Path(os.environ.get("MODELS", ROOT / "build" / "models")) / shape
    if not (model / "model.safetensors").exists():
        subprocess.run([sys.executable, ROOT / "bench" / "make_random_model.py", model, "--shape",
                        shape], check=True, stdout=sys.stderr)
    return model


def layer_seconds(log: str, shape: str) -> float:
    """What the library takes for the products of a layer, in bfloat16, as a log says."""
    section = log.partition(", bfloat16, ")[2].partition(", float32, ")[0]
    row = re.search(rf"^\| {re.escape(shape)} \| layer \| {PREFILL_TOKENS} \| \S+ \| (\S+) \|", section,
                    re.MULTILINE)
    return float(row[1]) / 1e6


def check_step(log: Path, program: str, flags: "list[str]", shape="tinyllama-1.1b") -> int:
    """Whether a step of the model takes little more than its products. That of the last layer's
    result is left out: it has one row."""
    try:
        from make_random_model import SHAPES
    except ImportError as error:
        skip(f"no step of {PREFILL_TOKENS} rows without a model: {error}")
    products_s = SHAPES[shape][1] * layer_seconds(log.read_text(), shape)
    one = measured(program, "prefill", model_of(shape), PREFILL_TOKENS, flags)
    share = one["seconds"] / products_s
    good = one["has_library"] and share <= MOST_OF_PRODUCTS
    print(f"{'ok' if good else 'FAIL'}    {shape}: a step of {PREFILL_TOKENS} rows takes "
          f"{one['seconds'] * 1e3:.1f} ms, {share:.2f} of the {products_s * 1e3:.1f} ms of the library's "
          f"products, at most {MOST_OF_PRODUCTS}"
          f"{'' if one['has_library'] else '; NO library computed them'}", flush=True)
    return 0 if good else 1


def report(program: str, flags: "list[str]", shapes: "list[str]") -> None:
    done = subprocess.run([sys.executable, __file__, "--yardsticks", *shapes], capture_output=True,
                          text=True, timeout=600, check=True)
    gives = json.loads(done.stdout)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    print(f"{gives['device']}, PyTorch {gives['torch']}, {date}\n")
    print("| what | tokens/s | Shoal | the GPU gives | share | launches of a step |\n"
          "|---|--:|--:|--:|--:|--:|")
    for shape in shapes:
        model = model_of(shape)
        one = measured(program, "decode", model, DECODE_TOKENS, flags)
        rate, reads = one["tokens_per_s"] * bytes_per_token(shape), gives["reads"]
        print(f"| {shape}, decode | {one['tokens_per_s']:.1f} | {rate / 1e9:.0f} GB/s | reads "
              f"{reads / 1e9:.0f} GB/s | {rate / reads:.2f} | {one['launches']} |")
        report_prefill(program, model, flags, shape, gives)
        off = ["--reproducible", "off"]
        off += ["--cublas-library", gives["cublas"]] if gives["cublas"] else []
        report_prefill(program, model, [*flags, *off], shape, gives)


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["--yardsticks"]:
        return yardsticks(words[1:])
    if words[:1] == ["--step"] and len(words) > 2:
        sys.exit(check_step(Path(words[1]), words[2], words[3:]))
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if words else 64)
    if why := why_no_gpu():
        skip(why)
    try:
        import torch
    except ImportError as error:
        skip(f"the library is missing: pip install torch ({error})")
    if not torch.cuda.is_available():
        skip("PyTorch cannot use the GPU: it may be a build without CUDA")
    report(words[0], words[1:], os.environ.get("SHAPES", "tinyllama-1.1b,llama3-8b").split(","))


if __name__ == "__main__":
    main()
