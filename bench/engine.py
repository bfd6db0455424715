#!/usr/bin/env python3
"""Measures the whole engine on a 1.1 B Llama shape, beside what the machine gives.

    scripts/build release all
    /usr/bin/python3 bench/make_random_model.py DIR && bench/engine.py DIR

It prints a Markdown table for 2 ranks x 1 thread. Decoding is compared with the read bandwidth that
the same run measures, and the prefill of 512 tokens with the best GEMM of oneDNN
(kernels_bench, one process per processor at the same time, their rates added). Every turn runs all
of them, and the table has medians of the turns and, in brackets, the least and the most.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RANKS, PROMPT_TOKENS, DECODE_TOKENS = 2, 512, 64


def start(cpu: "int | None", *command: object) -> subprocess.Popen:
    return subprocess.Popen([*(["taskset", "-c", str(cpu)] if cpu is not None else []),
                             *map(str, command)],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def result(process: subprocess.Popen):
    out, _ = process.communicate(timeout=600)
    if process.returncode != 0:
        sys.exit(f"engine: {' '.join(process.args)} ended with {process.returncode}")
    return json.loads(out)


def gemm_peak(program: Path, cpus: list) -> dict:
    """oneDNN's best rate on all `cpus` together, and how much longer 16 leaves take than one.

    The 16 leaves are what gives the same bits with any number of ranks.
    """
    runs = [result(p) for p in [start(cpu, program, "--json", "--rounds", 5) for cpu in cpus]]
    beside = [[row for row in run if row["of"].startswith("oneDNN")] for run in runs]
    peak = sum(max(row["beside"] for row in rows) for rows in beside)
    costs = {what: [row["beside"] / row["value"] - 1 for run in runs for row in run
                    if row["of"] == "one leaf" and row["what"].startswith(what)]
             for what in ("decode", "prefill")}
    return {"peak": peak * 1e9, "of": beside[0][0]["of"], **costs}


def spread(values: list, form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} – {max(values):{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path,
                        help="a directory that bench/make_random_model.py wrote")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release",
                        help="build directory")
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[:RANKS]
    if len(cpus) < RANKS:
        sys.exit(f"engine: {RANKS} ranks need {RANKS} processors")
    if not (args.build / "bench" / "kernels_bench").exists():
        sys.exit(f"engine: no kernels_bench in {args.build}: scripts/build release all")
    load = os.getloadavg()[0]
    decode, prefill, reads, peaks, decode_share, prefill_share = [], [], [], [], [], []
    costs = {"decode": [], "prefill": []}
    for turn in range(args.turns):
        shoal = [args.build / "shoal", "bench"]
        flags = [args.model, "-tp", RANKS, "--threads-per-rank", 1, "--json"]
        d = result(start(None, *shoal, "decode", *flags, "--tokens", DECODE_TOKENS))
        p = result(start(None, *shoal, "prefill", *flags, "--tokens", PROMPT_TOKENS))
        g = gemm_peak(args.build / "bench" / "kernels_bench", cpus)
        decode.append(d["tokens_per_s"])
        reads.append(d["read_bandwidth_bytes_per_s"] / 1e9)
        decode_share.append(d["fraction"])
        prefill.append(p["tokens_per_s"])
        peaks.append(g["peak"] / 1e9)
        prefill_share.append(p["flops_per_s"] / g["peak"])
        for what, values in costs.items():
            values += g[what]
        print(f"turn {turn + 1} of {args.turns}", file=sys.stderr)
    print(f"{RANKS} ranks x 1 thread, kernels {d['kernels']}, transport {d['transport']}; "
          f"{args.turns} turns, load average before the start {load:.2f}\n")
    print("| what | tokens/s | the machine gives | share |\n|---|--:|--:|--:|")
    print(f"| decode, bf16 | {spread(decode, '.1f')} | reads {spread(reads, '.1f')} GB/s | "
          f"{spread(decode_share, '.2f')} |")
    print(f"| prefill of {PROMPT_TOKENS}, bf16 | {spread(prefill, '.0f')} | "
          f"{g['of']} {spread(peaks, '.0f')} GFLOP/s | {spread(prefill_share, '.2f')} |")
    for what, values in costs.items():
        print(
            f"\n16 leaves against one, {what}: {spread([100 * v for v in values], '+.1f')} % time",
            end="")
    print()


if __name__ == "__main__":
    main()
