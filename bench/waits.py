#!/usr/bin/python3
"""Does the server say right which rank makes the others wait, and how much of a step?

    scripts/build && bench/waits.py [MODEL ...] [--quotas 85,60,40] [--rounds 3] [--tokens 1500]

For each quota and round a server of 2 ranks x 1 thread generates the same tokens twice: as it is, and
with rank 1 in a cgroup that gets so many percent of one processor. What the steps really lost is 1
minus the ratio of the time that they took. That must be the share that the server says rank 1 makes the
others wait, within 5 points in the median of the rounds. Printed beside it are what the server says of
both ranks without the quota, and the time in which the kernel kept rank 1 from running (cpu.stat), over
that of the steps. Without MODEL it makes one of random weights in the shape of SmolLM2-135M, of whose 9
heads rank 0 has 5.

It must be root on a machine where nothing else runs, and needs python3-numpy and the cpu controller of
cgroups, version 1 or 2. The exit code is 1 if a share is wrong.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from cgroups import CpuQuota
import harness
from http_client import call, complete

PROMPT, ANSWER = 16, 100
POINTS = 5


def random_model(folder: Path) -> Path:
    subprocess.run([sys.executable, ROOT / "bench" / "make_random_model.py", folder, "--shape",
                    "smollm2-135m"], check=True, stdout=subprocess.DEVNULL)
    (folder / "tokenizer.json").symlink_to(harness.DEMO / "tokenizer.json")
    return folder


def value(text: str, name: str) -> float | None:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


def throttled_seconds(group: CpuQuota) -> float:
    stat = dict(line.split() for line in (group.path / "cpu.stat").read_text().splitlines())
    return int(stat["throttled_time"]) / 1e9 if "throttled_time" in stat else \
        int(stat["throttled_usec"]) / 1e6


def generate(model: Path, tokens: int, quota: int | None) -> dict[str, float]:
    """One server's life: the seconds of its steps, and what it says of each rank."""
    server = harness.Server(model, "-tp", 2, "--threads-per-rank", 1, "--port", 0)
    group = None
    try:
        server.wait_ready()
        if quota is not None:
            group = CpuQuota(quota)
            group.add(server.workers(2)[1])
        for turn in range(tokens // ANSWER):
            answer = complete(server, prompt=[5 + turn % 50] * PROMPT, max_tokens=ANSWER, ignore_eos=True)
            if answer.status != 200:
                sys.exit(f"waits: {answer.status}: {answer.body[:300]}")
        text = call(server, "GET", "/metrics").body.decode()
        said = [value(text, f'shoal_makes_others_wait_ratio{{rank="{rank}"}}') for rank in (0, 1)]
        if None in said:
            sys.exit("waits: the server says nothing of its ranks")
        return {"seconds": value(text, "shoal_step_seconds_sum"),
                "steps": value(text, "shoal_step_seconds_count"),
                "said_0": said[0], "said_1": said[1],
                "throttled": 0 if group is None else throttled_seconds(group)}
    finally:
        server.kill()
        if group is not None:
            group.remove()


def measure(model: Path, quota: int, flags) -> list[dict[str, float]]:
    rounds = []
    for _ in range(flags.rounds):
        free = generate(model, flags.tokens, None)
        slow = generate(model, flags.tokens, quota)
        if free["steps"] != slow["steps"]:
            sys.exit(f"waits: {free['steps']} and {slow['steps']} steps are not the same work")
        lost, said = 100 * (1 - free["seconds"] / slow["seconds"]), 100 * slow["said_1"]
        rounds.append({"free_ms": 1e3 * free["seconds"] / free["steps"],
                       "slow_ms": 1e3 * slow["seconds"] / slow["steps"],
                       "lost": lost, "said": said, "difference": said - lost,
                       "free_0": 100 * free["said_0"], "free_1": 100 * free["said_1"],
                       "throttled": 100 * slow["throttled"] / slow["seconds"]})
    return rounds


def spread(rounds: list[dict[str, float]], name: str, digits: int) -> str:
    """Median, least and most."""
    values = [one[name] for one in rounds]
    middle, least, most = (f"{x:.{digits}f}" for x in (statistics.median(values), min(values),
                                                       max(values)))
    return f"{middle} ({least} to {most})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL")
    parser.add_argument("--quotas", default="85,60,40", help="percent of one processor")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=1500)
    flags = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        models = flags.models or [random_model(Path(folder) / "smollm2-135m")]
        print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, {flags.rounds} rounds\n\n"
              "| model | quota of rank 1, % | ms per step without | ms with | lost, % | said, % | "
              "difference, points | said without of rank 1, % | of rank 0, % | throttled, % |\n"
              "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
        for model in models:
            for quota in map(int, flags.quotas.split(",")):
                rounds = measure(model, quota, flags)
                if abs(statistics.median(one["difference"] for one in rounds)) > POINTS:
                    wrong.append((model.name, quota, rounds))
                figures = [spread(rounds, name, 1) for name in (
                    "free_ms", "slow_ms", "lost", "said", "difference", "free_1", "free_0", "throttled")]
                print(f"| {model.name} | {quota} | {' | '.join(figures)} |", flush=True)
    print(json.dumps({"wrong_by_more_than_5_points": wrong}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
