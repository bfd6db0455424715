"""The shared memory matrix: in every condition the program starts on the expected rung and gives
the text of one rank.

matrix_test.py RANKS. `shoal shmtest` makes the conditions with real mounts and limits in
namespaces. Conditions that the kernel forbids here are skipped and listed with the reason.
"""
import json
import resource
import subprocess
import sys
from pathlib import Path

import harness
import matrix_check

RANKS = int(sys.argv[1]) if len(sys.argv) > 1 else 2


def expected() -> dict[str, str]:
    """The map from each condition to the rungs that are right in it."""
    # The largest file is 64 KiB, but the lean pool of 8 ranks has 68 KiB.
    lean_or_less = "shm-lean" if RANKS <= 4 else "cma"
    return {
        "host": "shm", "4k": "memfd", "1m": "memfd", "1m+no-memfd": "shm-lean", "16m": "shm", "64m": "shm",
        "no-inodes": "memfd", "few-inodes": "shm", "read-only": "memfd", "missing": "memfd",
        "not-tmpfs": "memfd",
        "noexec": "shm", "other-user": "memfd", "full": "memfd", "stale-files": "shm",
        # It is a matter of chance whether the pool is made before /dev/shm is full. Once started,
        # the program must keep running.
        "full-after-0.05s": "shm,memfd", "full-after-0.2s": "shm,memfd",
        "rlimit-fsize": lean_or_less, "rlimit-memlock": "shm", "no-cma": "shm", "no-memfd": "shm",
        "no-ipv6": "shm",
        "ports-exhausted": "shm",
        "4k+no-memfd": "cma", "4k+no-memfd+no-cma": "tcp",
        "missing+no-memfd": "cma", "missing+no-memfd+no-cma": "tcp",
        "missing+no-memfd+no-cma+no-ipv6": "tcp",
        "4k+no-cma+rlimit-fsize": "memfd" if RANKS == 1 else "tcp",
    }


class Matrix(harness.TestCase):
    def test_every_condition(self):
        tokens = ",".join(map(str, json.loads(
            harness.run("generate", harness.DEMO, *matrix_check.REQUEST).stdout)["token_ids"]))
        by_rung: dict[str, list[str]] = {}
        for condition, rungs in expected().items():
            by_rung.setdefault(rungs, []).append(condition)
        skipped, failed = [], []
        for rungs, conditions in by_rung.items():
            check = (sys.executable, Path(__file__).with_name("matrix_check.py"), RANKS, rungs,
                     tokens)
            for result in self.conditions(",".join(conditions), *check):
                if result["result"] == "skipped":
                    skipped.append(f"{result['condition']}: {result['reason']}")
                elif result["result"] != "passed":
                    failed.append(json.dumps(result, indent=1))
        if skipped:
            print("skipped here: " + "; ".join(skipped))
        self.assertEqual(failed, [], "\n".join(failed))

    def conditions(self, names: str, *command) -> list[dict]:
        """The results of `shoal shmtest` for the command, one per comma-separated condition."""
        process = subprocess.run([harness.SHOAL, "shmtest", "--matrix", names, "--json",
                                  "--timeout", "60", "--", *map(str, command)],
                                 capture_output=True, text=True,
                                 env={**harness.environment(), "SHOAL": harness.SHOAL}, timeout=10 * harness.GUARD)
        if process.returncode == harness.UNAVAILABLE:
            self.skipTest(process.stderr)
        self.assertIn(process.returncode, (0, 1), process.stderr)
        return json.loads(process.stdout)["conditions"]

    def shmtest(self, condition: str, *command) -> dict:
        result = self.conditions(condition, *command)[0]
        if result["result"] == "skipped":
            self.skipTest(result["reason"])
        return result

    def test_filled_up_while_it_generates(self):
        # The pool was reserved, so the fill changes nothing.
        alone = json.loads(harness.run("generate", harness.DEMO, *matrix_check.REQUEST).stdout)
        result = self.shmtest("64m", sys.executable, Path(__file__).with_name("matrix_fill.py"),
                              RANKS)
        self.assertEqual(result["result"], "passed", result)
        self.assertGreater(result["shm_peak_bytes"], 1 << 20)

        answer = json.loads(harness.run("generate", harness.DEMO, *matrix_check.REQUEST, "-tp",
                                        RANKS).stdout)
        self.assertEqual(answer["token_ids"], alone["token_ids"])

    def test_a_memory_limit_below_the_mount_is_a_refusal_and_no_kill(self):
        # A limit of 32 MiB with a /dev/shm of 64 MiB. If this is too little for the ranks,
        # arithmetic must find that out before a page is touched.
        result = self.shmtest("64m+cgroup-32m", harness.SHOAL, "doctor", "-tp", RANKS)
        self.assertEqual(result["oom_kills"], 0, result)
        if RANKS >= 4:
            self.assertEqual(result["exit_code"], harness.UNAVAILABLE, result)
            self.assertIn("the memory cgroup has", result["output_tail"])
        else:
            self.assertIn(result["exit_code"], (0, 1), result)

    def test_too_few_descriptors_is_named(self):
        process = harness.start("generate", harness.DEMO, *matrix_check.REQUEST, "-tp", RANKS,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                                      (14, 14)))
        err = process.communicate()[1].decode()
        self.assertEqual(process.returncode, harness.UNAVAILABLE, err)
        self.assertIn("ulimit -n", err)


if __name__ == "__main__":
    harness.main(arguments=(str(RANKS),))
