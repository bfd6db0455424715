"""Starts and kills (SIGKILL) again and again: a short run of bench/kill_cycles.py.

The seed is that of the day. Only scripts/test --all runs it, and --long runs a thousand cycles.
"""
import json
import subprocess
import sys

import breadth
import harness

# Five rungs take turns and so do two ways to kill, so 30 cycles are three rounds of both.
CYCLES = 1000 if breadth.FULL else 30


class KillCycles(harness.TestCase):
    def test_nothing_is_left(self):
        command = [sys.executable, str(harness.ROOT / "bench" / "kill_cycles.py"), "--cycles",
                   str(CYCLES), "--seed", str(breadth.day())]
        done = subprocess.run(command, capture_output=True, text=True,
                              env={**harness.environment(), "SHOAL": harness.SHOAL},
                              timeout=harness.GUARD * CYCLES)
        self.assertEqual(done.returncode, 0, f"{done.stderr}\nagain: {' '.join(command)}")
        self.assertEqual(json.loads(done.stdout)["left"], 0)


if __name__ == "__main__":
    harness.main()
