#!/usr/bin/env python3
"""Measures what the checksum of the weights adds to loading them from the page cache.

    scripts/build && bench/weight_sum.py MODEL [--rounds 5]

MODEL is a large checkpoint, such as bench/make_random_model.py writes. Each round starts ranks and
reads from the log how long the slowest of them loaded, and how much of that was the checksum. The
ratio is that of loading with it to loading without.
"""
import argparse
import os
import re
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def load(shoal: Path, model: Path, ranks: int) -> tuple[float, float]:
    """Seconds of loading in all, and those of the checksum."""
    log = subprocess.run([shoal, "logits", model, "--prompt-ids", "1", "--out", os.devnull, "-tp",
                          str(ranks), "--log-level", "debug"],
                         capture_output=True, text=True, check=True).stderr
    whole = float(re.search(r"start: load took ([\d.]+) s", log)[1])
    sums = [1e-6 * int(found) for found in re.findall(r"checksum of the weights took (\d+) us", log)]
    return whole, max(sums)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shoal", type=Path, default=ROOT / "build" / "release" / "shoal")
    args = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print("| ranks | load | of it the checksum | with to without |\n|--:|--:|--:|--:|")
    for ranks in (1, 2):
        load(args.shoal, args.model, ranks)  # so that the file is in the page cache
        runs = [load(args.shoal, args.model, ranks) for _ in range(args.rounds)]
        whole, part = (statistics.median(values) for values in zip(*runs))
        ratio = statistics.median(all_ / (all_ - sum_) for all_, sum_ in runs)
        print(f"| {ranks} | {whole:.2f} s | {part:.3f} s | {ratio:.3f} |")


if __name__ == "__main__":
    main()
