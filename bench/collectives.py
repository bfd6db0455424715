#!/usr/bin/env python3
"""Measures an all-reduce between two processes, over Shoal's transports and over Gloo.

    scripts/build release all && bench/collectives.py [--rounds 5] [--picture docs/collectives.svg]

One run covers 64 B to 16 MiB and gives a Markdown table and a picture. Each round starts the ranks
of every transport again, in turn with Gloo (built if Debian's libgloo-dev is installed) and with
the bare exchange that `shoal bench collectives` uses as its yardstick. The table has the median of
the rounds' medians and, in brackets, the best round, because a virtual machine's memory and
processors are near each other after one start and far apart after the next. The picture needs
matplotlib, which is installed into build/venv-bench.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build" / "venv-bench"


def run(*command: object, timeout: float = 300) -> list:
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=timeout)
    if done.returncode != 0:
        sys.exit(f"collectives: {command[0]} ended with {done.returncode}: {done.stderr[-800:]}")
    return json.loads(done.stdout)["all_reduce"]


def measure(build: Path, rounds: int) -> dict:
    """(transport, bytes) -> medians in microseconds, one per round."""
    times: dict[tuple, list[float]] = {}
    gloo = build / "bench" / "gloo_collectives"
    if not gloo.exists():
        print("collectives: no gloo_collectives in the build (Debian: libgloo-dev): without Gloo",
              file=sys.stderr)
    for i in range(rounds):
        rows = run(build / "shoal", "bench", "collectives", "--rounds", 1, "--json")
        if gloo.exists():
            try:
                rows += run(gloo)
            except subprocess.TimeoutExpired:
                print("collectives: Gloo did not end within 300 s: left out of this round",
                      file=sys.stderr)
        for row in rows:
            times.setdefault((row["transport"], row["bytes"]), []).append(row["median_us"])
        print(f"round {i + 1} of {rounds}", file=sys.stderr)
    return times


def size_name(count: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count // unit} {name}"
    return f"{count} B"


def table(times: dict) -> str:
    names = list(dict.fromkeys(name for name, _ in times))
    sizes = sorted({size for _, size in times})
    lines = ["| us | " + " | ".join(map(size_name, sizes)) + " |", "|---|" + "--:|" * len(sizes)]
    for name in names:
        cells = []
        for size in sizes:
            values = times.get((name, size))
            cells.append(f"{statistics.median(values):.3g} ({min(values):.3g})" if values else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


PLOT = """
import json, sys
import matplotlib
matplotlib.use("svg")
import matplotlib.pyplot as plt
data = json.load(sys.stdin)
figure, axes = plt.subplots(figsize=(8, 5))
for name, points in data["lines"].items():
    dashed = name == "bare" or name.startswith("gloo")
    axes.plot(*zip(*points), marker="o", markersize=3, linestyle="--" if dashed else "-",
              label=name)
axes.set_xscale("log", base=2)
axes.set_yscale("log")
axes.set_xlabel("bytes")
axes.set_ylabel("microseconds, best round's median")
axes.set_title("all-reduce, 2 ranks, float32: " + data["machine"])
axes.grid(True, which="major", alpha=0.3)
axes.legend()
plt.rcParams["svg.hashsalt"] = "shoal"
figure.savefig(data["out"], metadata={"Date": None})
"""


def picture(times: dict, out: Path, machine: str) -> None:
    if not (VENV / "bin" / "python").exists():
        subprocess.run(["/usr/bin/python3", "-m", "venv", VENV], check=True)
    subprocess.run([VENV / "bin" / "pip", "install", "--quiet",
                    "--disable-pip-version-check", "matplotlib"], check=True)
    lines: dict[str, list] = {}
    for (name, size), values in sorted(times.items(), key=lambda item: item[0][1]):
        lines.setdefault(name, []).append([size, min(values)])
    subprocess.run([VENV / "bin" / "python", "-c", PLOT], text=True, check=True,
                   input=json.dumps({"lines": lines, "out": str(out), "machine": machine}))


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release",
                        help="build directory")
    parser.add_argument("--picture", type=Path, help="an .svg to write")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    times = measure(args.build, max(1, args.rounds))
    print(f"{cpu_name()}, {len(os.sched_getaffinity(0))} CPUs, {args.rounds} rounds, "
          f"load average before {load:.2f}; median (best round), microseconds\n")
    print(table(times))
    gloo = [min(v) for (name, size), v in times.items() if name.startswith("gloo") and size == 8192]
    if gloo:
        ours = min(times[("shm", 8192)])
        print(f"\n8 KiB: shm takes {ours:.2f} us, Gloo's best {min(gloo):.1f} us: "
              f"{min(gloo) / ours:.0f} times as long")
    if args.picture:
        picture(times, args.picture, cpu_name())


if __name__ == "__main__":
    main()
