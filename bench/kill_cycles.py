#!/usr/bin/env python3
"""Starts the program and kills it, again and again: nothing may be left. One JSON line at the end.

    bench/kill_cycles.py [--cycles 1000] [--model models/demo] [--ranks 2]

Each cycle starts `shoal serve`, waits for a random moment between exec and serving, and sends a
real SIGKILL, by turns to every process at once and to the front alone. Afterwards none of its
processes may live, and /dev/shm must have the same names and as many free bytes as before. The exit
code is 1 at the first cycle in which that is not so in the end. The rung changes with the cycle. It
runs in a mount namespace with a /dev/shm of its own if it may make one, so that it does not see
what others do in theirs.
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GUARD_S = 60  # what is left by mistake stays for longer
RUNGS = ("shm", "shm-lean", "memfd", "cma", "tcp")
TAG = f"SHOAL_KILL_CYCLES={os.getpid()}"


def tagged() -> list[int]:
    """Living processes that this script started, directly or not; a zombie is dead."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if (TAG.encode() in Path(f"/proc/{entry}/environ").read_bytes()
                    and Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
                    not in "ZX"):
                found.append(int(entry))
        except OSError:
            pass
    return found


def shared_memory() -> tuple:
    facts = os.statvfs("/dev/shm")
    return frozenset(os.listdir("/dev/shm")), facts.f_bfree * facts.f_frsize, facts.f_ffree


def available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def cycle(shoal: Path, model: Path, ranks: int, number: int, rng: random.Random) -> str:
    """Returns an empty string if nothing was left, otherwise a description of what was."""
    before = shared_memory()
    process = subprocess.Popen([shoal, "serve", model, "--grpc-port", "0", "-tp",
                                str(ranks), "--transport", RUNGS[number % len(RUNGS)]],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               stdin=subprocess.DEVNULL, start_new_session=True,
                               env={**os.environ, TAG.split("=")[0]: TAG.split("=")[1]})
    time.sleep(rng.uniform(0, 0.35))
    if number % 2 == 0:
        for pid in tagged():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    else:
        process.kill()
    process.wait()
    deadline = time.monotonic() + GUARD_S
    while True:
        alive, after = tagged(), shared_memory()
        if not alive and after == before:
            return ""
        if time.monotonic() > deadline:
            return f"cycle {number}: alive {alive}; /dev/shm before {before}, after {after}"
        time.sleep(0.002)


def in_own_mounts() -> None:
    """Restarts this script with a private /dev/shm, unless it has one or may not make one."""
    if os.environ.get("SHOAL_OWN_MOUNTS"):
        return
    command = ["unshare", "--mount", "sh", "-c",
               'mount -t tmpfs -o size=256m shoal /dev/shm && exec "$@"', "sh"]
    try:
        if subprocess.run([*command, "true"], capture_output=True).returncode != 0:
            return
    except FileNotFoundError:
        return
    os.environ["SHOAL_OWN_MOUNTS"] = "1"
    os.execvp(command[0], [*command, sys.executable, *sys.argv])


def main() -> None:
    in_own_mounts()
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "demo")
    parser.add_argument("--shoal", type=Path,
                        default=Path(os.environ.get("SHOAL", ROOT / "build" / "release" / "shoal")))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    memory, began = available_memory(), time.monotonic()
    for number in range(args.cycles):
        left = cycle(args.shoal, args.model, args.ranks, number, rng)
        if left:
            for pid in tagged():
                os.kill(pid, signal.SIGKILL)
            sys.exit(f"kill_cycles: {left}")
        if number % 100 == 99:
            print(f"{number + 1} of {args.cycles}", file=sys.stderr)
    print(json.dumps({"cycles": args.cycles, "ranks": args.ranks,
                      "seconds": round(time.monotonic() - began, 1),
                      "left": 0, "memory_available_change_bytes": available_memory() - memory}))


if __name__ == "__main__":
    main()
