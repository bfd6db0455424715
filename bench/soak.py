#!/usr/bin/python3
"""Random faults during 16 streams for half an hour: is anything lost, and does anything grow?

    scripts/build release all && bench/soak.py [--minutes 30] [--seed 1] [--record bench/soak]

The faults and their checks are those of tests/e2e/fault_storm.py: a lost stream, a wrong token or
a server that ends is an error, and the exit code is 1. One server serves all the time. Every second
the memory of the front, that of the ranks and the front's open descriptors are recorded, into
RECORD.csv and a picture, RECORD.svg. The last line is JSON: the faults by kind, the answers, and
memory and descriptors of the front, as medians over the second and the last tenth of the time.

It runs in a mount namespace with a /dev/shm of its own if it may make one. It needs Debian's
python3-grpcio and protoc, and for the picture matplotlib, which is installed into build/venv-bench.
"""
import argparse
import collections
import csv
import json
import os
import statistics
import sys
import time
from pathlib import Path

import pictures

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("seconds", "faults", "front_mib", "ranks_mib", "front_descriptors")


def rss_mib(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0


class Recorder:
    """Called a few times a second with the storm; records once a second."""

    def __init__(self, minutes: float):
        self.began, self.minutes, self.rows = 0.0, minutes, []

    def seconds(self) -> float:
        """Since the first record."""
        self.began = self.began or time.monotonic()
        return time.monotonic() - self.began

    def over(self) -> bool:
        return self.seconds() >= 60 * self.minutes

    def __call__(self, storm):
        if self.rows and self.seconds() - self.rows[-1][0] < 1:
            return
        pid = storm.process.pid
        try:
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            return
        self.rows.append((round(self.seconds(), 1), sum("fault" in told for told in storm.told),
                          round(rss_mib(pid), 1), round(sum(map(rss_mib, storm.ranks())), 1),
                          descriptors))

    def median(self, column: str, first: float, last: float) -> float:
        """The median of a column over the rows between these fractions of the whole time."""
        index = COLUMNS.index(column)
        return statistics.median(row[index] for row in self.rows
                                 if first <= row[0] / self.rows[-1][0] <= last)


def draw(rows: list[tuple], path: Path):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams["svg.hashsalt"] = "shoal"
    minutes = [row[0] / 60 for row in rows]
    figure, (memory, descriptors) = plt.subplots(2, 1, sharex=True, figsize=(8, 5))
    memory.plot(minutes, [row[2] for row in rows], label="front", linewidth=0.8)
    memory.plot(minutes, [row[3] for row in rows], label="ranks", linewidth=0.8)
    memory.set_ylabel("resident memory, MiB")
    memory.set_ylim(bottom=0)
    memory.legend(loc="lower right")
    descriptors.plot(minutes, [row[4] for row in rows], linewidth=0.8)
    descriptors.set_ylabel("open descriptors of the front")
    descriptors.set_ylim(bottom=0)
    descriptors.set_xlabel(f"minutes, with {rows[-1][1]} random faults")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def in_own_namespaces():
    """Starts this script again where /dev/shm is its own. Returns if that cannot be done."""
    if os.environ.get("SHOAL_SOAK_INSIDE"):
        return
    os.environ["SHOAL_SOAK_INSIDE"] = "1"
    os.execv(ROOT / "tests" / "own_dev_shm.sh", ["own_dev_shm.sh", sys.executable, *sys.argv])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, default=ROOT / "build" / "soak")
    parser.add_argument("--draw", type=Path, help="only draw this .csv again")
    arguments = parser.parse_args()
    if arguments.draw:
        with open(arguments.draw, newline="") as file:
            rows = [tuple(map(float, row)) for row in list(csv.reader(file))[1:]]
        draw([(*row[:1], int(row[1]), *row[2:]) for row in rows],
             arguments.draw.with_suffix(".svg"))
        return 0
    in_own_namespaces()
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    import fault_storm
    recorder = Recorder(arguments.minutes)
    storm = fault_storm.Storm(arguments.seed, recorder)
    storm.run(recorder.over, server_faults=1_000_000)
    with open(arguments.record.with_suffix(".csv"), "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *recorder.rows])
    kinds = collections.Counter(told["fault"] for told in storm.told if "fault" in told)
    print(json.dumps({
        "seed": arguments.seed, "minutes": arguments.minutes, "faults": dict(sorted(kinds.items())),
        "whole_answers": storm.whole, "tokens": storm.tokens,
        **{f"{name} {when}": recorder.median(name, *part)
           for name in COLUMNS[2:] for when, part in (("early", (0.1, 0.2)), ("late", (0.9, 1)))}}))
    pictures.draw(__file__, arguments.record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
