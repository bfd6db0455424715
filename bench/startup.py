#!/usr/bin/env python3
"""Measures the time from exec to a verified transport, without weights.

    scripts/build && bench/startup.py [--rounds 7]

It tries 2, 4 and 8 ranks on every rung, and says what each extra rung costs. `shoal doctor` is
timed from outside, from exec to exit: facts, budget, reservation, ranks as processes, connection
and self-test. "Extra rung" is the same with one rung before it in the order, which is refused after
its ranks have started (SHOAL_TEST_FAULT makes the first start's self-test fail), so that processes
are started twice. `doctor` for one rank, which needs no transport, is measured too: it shows what
starting the program and one process costs at least.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNGS = ("shm", "shm-lean", "memfd", "cma", "tcp")


def doctor(shoal: Path, ranks: int, order: str, refuse_first: bool = False) -> tuple[float, dict]:
    environment = {**os.environ,
                   **({"SHOAL_TEST_FAULT": "0:self-test:fail"} if refuse_first else {})}
    began = time.perf_counter()
    done = subprocess.run([shoal, "doctor", "-tp", str(ranks), "--transport", order, "--json"],
                          capture_output=True, text=True, env=environment)
    seconds = time.perf_counter() - began
    if done.returncode not in (0, 1):
        sys.exit(f"startup: doctor over {order} with {ranks} ranks ended with {done.returncode}: "
                 f"{done.stderr[-800:]}")
    return seconds, json.loads(done.stdout)


def spread(values: list[float]) -> str:
    return (f"{statistics.median(values) * 1e3:.0f} "
            f"({min(values) * 1e3:.0f} – {max(values) * 1e3:.0f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shoal", type=Path, default=ROOT / "build" / "release" / "shoal")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    counts = (2, 4, 8)
    times: dict[tuple, list[float]] = {}
    for _ in range(args.rounds):
        times.setdefault(("floor", 1), []).append(doctor(args.shoal, 1, "shm")[0])
        for ranks in counts:
            for rung in RUNGS:
                seconds, report = doctor(args.shoal, ranks, rung)
                assert report["rung"] == rung, report
                times.setdefault((rung, ranks), []).append(seconds)
            seconds, report = doctor(args.shoal, ranks, "shm,memfd", refuse_first=True)
            assert (report["rung"] == "memfd"
                    and report["refusals"][0]["phase"] == "self-test"), report
            times.setdefault(("extra", ranks), []).append(seconds - times[("memfd", ranks)][-1])
    print(f"{len(os.sched_getaffinity(0))} CPUs, {args.rounds} rounds, "
          f"load average before {load:.2f}; milliseconds, median (least – most); one rank, "
          f"no transport: {spread(times[('floor', 1)])}\n")
    print("| rung | " + " | ".join(f"{n} ranks" for n in counts) + " |\n|---|"
          + "--:|" * len(counts))
    for rung in (*RUNGS, "extra"):
        name = "one more rung, refused by its self-test" if rung == "extra" else rung
        print(f"| {name} | " + " | ".join(spread(times[(rung, n)]) for n in counts) + " |")


if __name__ == "__main__":
    main()
