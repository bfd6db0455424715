#!/usr/bin/env python3
"""Compares two builds of shoal on each kernel set, in turns: before_after.py BEFORE AFTER MODEL

Each round runs both programs, first one and then the other, so that both see the same moments of a
noisy machine; the next round swaps them. It prints, for decode and prefill on each set, after /
before (above 1 is faster): the ratio of the best speeds of all rounds, which noise can only lower,
and the median of the rounds' ratios with the least and the greatest.
"""
import argparse
import json
import statistics
import subprocess
import sys


def speed(program: str, what: str, model: str, kernels: str, tokens: int) -> float:
    result = subprocess.run([program, "bench", what, model, "--json", "--cpu-kernels", kernels,
                             "--tokens", str(tokens)], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{program} bench {what} --cpu-kernels {kernels}: {result.stderr}")
    return json.loads(result.stdout)["tokens_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("model")
    parser.add_argument("--sets", nargs="+", help="kernel sets (all that this processor runs)")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--prefill-tokens", type=int, default=128)
    flags = parser.parse_args()
    sets = flags.sets or json.loads(subprocess.run(
        [flags.after, "version", "--json"], capture_output=True, text=True,
        check=True).stdout)["kernel_sets_here"]
    for what, tokens in (("decode", 64), ("prefill", flags.prefill_tokens)):
        for kernels in sets:
            ratios, best = [], {flags.before: 0.0, flags.after: 0.0}
            for turn in range(flags.rounds):
                programs = [flags.before, flags.after]
                speeds = {program: speed(program, what, flags.model, kernels, tokens)
                          for program in (programs if turn % 2 == 0 else programs[::-1])}
                ratios.append(speeds[flags.after] / speeds[flags.before])
                best = {program: max(best[program], speeds[program]) for program in programs}
            print(f"{what:8} {kernels:12} best {best[flags.after] / best[flags.before]:.3f}, median "
                  f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}, "
                  f"{flags.rounds} rounds)", flush=True)


if __name__ == "__main__":
    main()
