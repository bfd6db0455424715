"""Start and SIGKILL, over and over: bench/kill_cycles.py in short. The full thousand is recorded in docs/benchmarks.md."""
import json
import subprocess
import sys

import harness


class KillCycles(harness.TestCase):
    def test_nothing_is_left(self):
        done = subprocess.run([sys.executable, harness.ROOT / "bench" / "kill_cycles.py", "--cycles", "50", "--seed", "7"],
                              capture_output=True, text=True, env={**harness.environment(), "SHOAL": harness.SHOAL}, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["left"], 0)


if __name__ == "__main__":
    harness.main()
