"""Every limit that a process has, at many values: each run ends with a reason that names the
resource, or it serves and stops on SIGTERM. It never hangs, and no signal ends it.

The limits are real, and so is the other user that has a limit of processes (root has none). The
allocator that is refused memory at its N-th call is a fake (tests/fakes/failing_malloc.cc).
scripts/test --all does the values that the day draws, and scripts/test --long all of them. Usage:
shortage_walk_test.py LIBRARY, the path of the fake.
"""
import concurrent.futures
import os
import random
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import breadth
import denied
import harness

TINY = harness.ORACLE / "llama-nine-heads"
FAKE = sys.argv[1]
OTHER_USER = 65_120
DRAW = random.Random(breadth.day())
# What the last words of a run must name.
NAMES = {
    "processes": r"ulimit -u|pids|process|thread",
    "memory": r"memory|address space|ulimit -v|allocat|std::bad_alloc",
    "descriptors": r"descriptor|open files|ulimit -n",
    "file size": r"ulimit -f|File too large|file size",
}
GENERATE = ("generate", TINY, "--prompt-ids", "1,2", "--max-tokens", 3)
SERVE = ("serve", TINY, "--grpc-port", 0, "--kv-cache-memory", "1m")


def drawn(values: list, most: int) -> list:
    return values if breadth.FULL else sorted(DRAW.sample(values, min(most, len(values))))


def start(command: tuple, preexec, variables: dict) -> harness.Process:
    return harness.Process(
        [harness.SHOAL, *map(str, command)], env={**harness.environment(), **variables},
        start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, preexec_fn=preexec)


def end_of(command: tuple, preexec, variables: dict) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a run. A server is stopped once it is ready."""
    process = start(command, preexec, variables)
    out, err = harness.Reader(process.stdout), harness.Reader(process.stderr)
    try:
        if command[0] == "serve":
            harness.wait_until(lambda: process.poll() is not None or "READY" in out.text(),
                               f"READY or an end: {err.text()}")
            process.send_signal(signal.SIGTERM)
        code = process.wait()
    except (AssertionError, subprocess.TimeoutExpired) as hung:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return 1000, out.rest(), f"{err.rest()}\nhung: {hung}"
    return code, out.rest(), err.rest()


class Walk(harness.TestCase):
    def walk(self, runs: list[tuple]):
        """runs: (a name, command, resource, preexec_fn or None, variables)."""
        # Two at a time, because a run waits for processes to start and end as much as it computes.
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            ends = list(pool.map(lambda run: end_of(run[1], run[3], run[4]), runs))
        for (name, command, kind, _, _), (code, out, err) in zip(runs, ends):
            with self.subTest(name, command=command[0]):
                shown = f"exit code {code}\n{out[-300:]}\n{err[-2000:]}"
                served = command[0] == "serve" and out.startswith("READY")
                if code == 0:
                    self.assertTrue(out or command[0] == "serve", shown)
                    continue
                self.assertIn(code, (harness.UNAVAILABLE, harness.WORKER_DIED, harness.USAGE, 127),
                              shown)
                self.assertRegex(err, re.compile(NAMES[kind], re.IGNORECASE), shown)
                self.assertFalse(served and code == harness.USAGE, shown)

    def limits(self, kind: str, number: int, values: list[int], uid: int | None = None):
        self.walk([(f"{kind} {value}", command, kind, denied.limit(number, value, uid), {})
                   for value in values
                   for command in ((*GENERATE, "-tp", 2, "--threads-per-rank", 2),
                                   (*SERVE, "-tp", 2))[:1 if kind == "file size" else 2]])

    def test_processes(self):
        self.skip_unless_reached_by(OTHER_USER, TINY)
        # One at a time, because they share the limit.
        for value in drawn(list(range(1, 41)), 4):
            command = DRAW.choice([(*GENERATE, "-tp", 2, "--threads-per-rank", 2), SERVE])
            self.walk([(f"ulimit -u {value}", command, "processes",
                        denied.limit(resource.RLIMIT_NPROC, value, OTHER_USER), {})])

    def test_address_space(self):
        values = [2**20 * mib for mib in range(40, 700, 20)]
        self.limits("memory", resource.RLIMIT_AS, drawn(values, 3))

    def test_descriptors(self):
        self.limits("descriptors", resource.RLIMIT_NOFILE, drawn(list(range(4, 41)), 3))

    def test_file_size(self):
        values = [0, 1, 1024, 4096, 65536, 2**20]
        self.limits("file size", resource.RLIMIT_FSIZE, drawn(values, 2))

    def test_an_allocator_that_fails(self):
        runs = []
        for number in range(500 if breadth.FULL else 40):
            who = ("front", "rank")[number % 2]
            once = ("", ":once")[number // 2 % 2]
            # Most calls of a process come early, so the draw is even in the logarithm.
            call = int(10 ** DRAW.uniform(0, 4.5))
            command = (*GENERATE, "-tp", 2) if number % 5 else (*SERVE, "-tp", 1)
            text = f"{who}:{call}{once}"
            runs.append((text, command, "memory", None,
                         {"SHOAL_FAKE_MALLOC": text, "LD_PRELOAD": FAKE}))
        self.walk(runs)


if __name__ == "__main__":
    if not Path(FAKE).exists():
        sys.exit(harness.SKIPPED)
    harness.main(arguments=(FAKE,))
