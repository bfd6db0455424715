#!/usr/bin/env python3
"""Compares two builds of shoal on each kernel set, in turns: before_after.py BEFORE AFTER MODEL

Each round runs both programs, first one and then the other, so that both see the same moments of a
noisy machine; the next round swaps them. It prints, for decode and prefill on each set and with each
number of threads, the median speed of both programs in tokens/s, and then after / before (above 1 is
faster): the ratio of the best speeds of all rounds, which noise can only lower, and the median of the
rounds' ratios with the least and the greatest.
"""
import argparse
import json
import statistics
import subprocess
import sys


def speed(program: str, *words: object) -> float:
    command = [program, "bench", *map(str, words)]
    result = subprocess.run([*command, "--json"], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr}")
    return json.loads(result.stdout)["tokens_per_s"]


def compare(before: str, after: str, rounds: int, *words: object) -> str:
    """The speeds of both programs in turns, of the bench that the words ask for."""
    old: list[float] = []
    new: list[float] = []
    for turn in range(rounds):
        both = [(before, old), (after, new)]
        for program, speeds in both if turn % 2 == 0 else both[::-1]:
            speeds.append(speed(program, *words))
    ratios = [b / a for a, b in zip(old, new)]
    return (f"{statistics.median(old):.1f} to {statistics.median(new):.1f} tokens/s, best "
            f"{max(new) / max(old):.3f}, median {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}, {rounds} rounds)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("model")
    parser.add_argument("--sets", nargs="+", help="kernel sets (all that this processor runs)")
    parser.add_argument("--threads", nargs="+", type=int, default=[0], metavar="N",
                        help="threads of the one rank (0: what the program takes by itself)")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--prefill-tokens", type=int, default=128)
    flags = parser.parse_args()
    sets = flags.sets or json.loads(subprocess.run(
        [flags.after, "version", "--json"], capture_output=True, text=True,
        check=True).stdout)["kernel_sets_here"]
    for what, tokens in (("decode", 64), ("prefill", flags.prefill_tokens)):
        for kernels in sets:
            for threads in flags.threads:
                words = [what, flags.model, "--tokens", tokens, "--cpu-kernels", kernels,
                         *(["--threads-per-rank", threads] if threads else [])]
                print(f"{what:8} {kernels:12} {f'threads {threads}: ' if threads else ''}"
                      f"{compare(flags.before, flags.after, flags.rounds, *words)}", flush=True)


if __name__ == "__main__":
    main()
