"""shoal doctor in real environments: mount namespaces with a real tmpfs on /dev/shm.

A closed loop proves the remedy: the test runs what doctor prints, word for word, in the namespace.
After that doctor must find no problem, and with one page less it must find one.
"""
import json
import os
import re
import resource
import shlex
import subprocess
import time
import unittest

import harness

NAMESPACE = ["unshare", "--mount", "--propagation", "private"] + \
    ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])


def namespaces_work() -> bool:
    probe = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "-o",
                            "size=4k", "tmpfs", "/dev/shm"], capture_output=True)
    return probe.returncode == 0


def inside(mount: str, script: str, seconds: float = 60) -> subprocess.CompletedProcess:
    """Runs the script with sh, with a tmpfs of these options at /dev/shm."""
    return subprocess.run(
        [*NAMESPACE, "sh", "-ec", f"mount -t tmpfs -o {mount} tmpfs /dev/shm\n{script}"],
        capture_output=True, text=True, timeout=seconds, env=harness.environment())


def doctor(*flags) -> str:
    return shlex.join([harness.SHOAL, "doctor", *map(str, flags)])


@unittest.skipUnless(namespaces_work(), "this kernel forbids mount namespaces here")
class InSmallPlaces(harness.TestCase):
    def report(self, mount: str, *flags, code: int) -> dict:
        done = inside(mount, doctor(*flags, "--json"))
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(done.stdout)  # fails unless there is exactly one document

    def test_each_size_takes_its_rung(self):
        for ranks, shm_need in ((2, 1052672), (4, 2101248), (8, 4198400)):
            for size, rung in (("4k", "memfd"), ("1m", "shm-lean"), ("16m", "shm"), ("64m", "shm")):
                with self.subTest(ranks=ranks, size=size):
                    report = self.report(f"size={size}", "-tp", ranks,
                                         code=0 if rung == "shm" else 1)
                    self.assertEqual(report["rung"], rung)
                    self.assertEqual(report["needs"][0]["dev_shm_bytes"], shm_need)
                    self.assertEqual([r["rung"] for r in report["refusals"]],
                                     report["order"][:report["order"].index(rung)])
                    if rung != "shm":
                        self.assertTrue(report["refusals"][0]["shared_memory"])
                        self.assertIn(str(shm_need), report["refusals"][0]["reason"])

    def test_the_remedy_closes_the_loop(self):
        for ranks in (2, 3, 8):
            for headroom in ("0", "64k", "1m"):
                with self.subTest(ranks=ranks, headroom=headroom):
                    flags = ("-tp", ranks, "--shm-headroom", headroom)
                    remedy = next(r for r in self.report("size=1m", *flags, code=1)["remedies"]
                                  if r["kind"] == "mount")
                    done = inside("size=1m", f"{remedy['text']}\n{doctor(*flags)}")
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    size = int(re.search(r"size=(\d+)", remedy["text"])[1])
                    less = remedy["text"].replace(f"size={size}", f"size={size - 4096}")
                    done = inside("size=1m", f"{less}\n{doctor(*flags)} && exit 9 || exit $?")
                    self.assertEqual(done.returncode, 1, done.stdout + done.stderr)

    def test_policy(self):
        self.assertEqual(inside("size=1m", doctor("--on-shm-shortage", "fail")).returncode,
                         harness.UNAVAILABLE)
        self.assertEqual(inside("size=1m", doctor("--min-transport", "shm")).returncode,
                         harness.UNAVAILABLE)
        self.assertEqual(inside("size=1m", doctor("--min-transport", "memfd")).returncode, 1)
        none = inside("size=1m", doctor("--transport", "shm", "--json"))
        self.assertEqual(none.returncode, harness.UNAVAILABLE)
        self.assertEqual(json.loads(none.stdout)["rung"], "")
        self.assertRegex(none.stderr, r"no transport works for 2 ranks \(tried shm\)")

    def test_serving_says_what_was_refused(self):
        done = inside("size=1m",
                      shlex.join([harness.SHOAL, "generate", str(harness.DEMO), "--prompt", "In",
                                  "--max-tokens", "4", "-tp", "2", "--json"]))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["transport"], "shm-lean")
        self.assertRegex(done.stderr,
                         r"transport shm refused \(budget\), trying shm-lean: .*1052672")
        done = inside("size=1m",
                      shlex.join([harness.SHOAL, "generate", str(harness.DEMO), "--prompt", "In",
                                  "--max-tokens", "4", "-tp", "2", "--on-shm-shortage", "fail"]))
        self.assertEqual(done.returncode, harness.UNAVAILABLE, done.stderr)

    def test_left_files_are_found_and_cleaned_on_request_only(self):
        left = ("head -c 900000 /dev/zero > /dev/shm/nccl-AbCd01; "
                "touch -d '1 hour ago' /dev/shm/nccl-AbCd01")
        report = json.loads(inside("size=1m", f"{left}; {doctor('--json')} || true").stdout)
        self.assertEqual([(f["path"], f["state"]) for f in report["facts"]["left_files"]],
                         [("/dev/shm/nccl-AbCd01", "stale")])
        done = inside("size=1m",
                      f"{left}; {doctor('--clean-stale')} || true; ls -A /dev/shm | wc -l")
        self.assertEqual(done.stdout.splitlines()[-1], "0", done.stdout + done.stderr)
        done = inside("size=1m",
                      f"{left}; exec 7< /dev/shm/nccl-AbCd01; {doctor('--clean-stale')} || true; "
                      "ls -A /dev/shm | wc -l")
        self.assertEqual(done.stdout.splitlines()[-1], "1", "somebody has it open")


class Here(harness.TestCase):
    def test_the_report_for_each_number_of_ranks(self):
        for ranks in (1, 2, 4, 8):
            done = harness.start("doctor", "-tp", ranks, "--json")
            out, err = done.communicate(timeout=60)
            self.assertIn(done.returncode, (0, 1), err)
            report = json.loads(out)
            self.assertEqual(report["tp"], ranks)
            self.assertEqual(set(report) >= {"rung", "refusals", "needs", "facts", "remedies"},
                             True)

    def test_open_files_are_counted_before_ranks_start(self):
        # tcp over 8 ranks takes 4 descriptors of the front itself, 3 for each rank, and 3 more
        # while the last one is started. One less must fail.
        for limit, code in ((31, 0), (30, harness.UNAVAILABLE)):
            done = harness.start("doctor", "-tp", 8, "--transport", "tcp", "--json",
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                                       (limit, limit)))
            out, err = done.communicate(timeout=60)
            self.assertEqual(done.returncode, code, err)
            report = json.loads(out)
            self.assertEqual(report["needs"][0]["descriptors"], 31)
            if code == 0:
                continue
            refusal = report["refusals"][0]
            self.assertEqual((refusal["phase"], refusal["code"]), ("budget", "RESOURCE_EXHAUSTED"))
            self.assertIn("31 open files; the limit is 30", refusal["reason"])
            self.assertIn("ulimit -n 1024", [remedy["text"] for remedy in report["remedies"]])

    def test_facts_are_said(self):
        done = harness.start("doctor", "--json")
        facts = json.loads(done.communicate(timeout=60)[0])["facts"]
        self.assertTrue(facts["dev_shm"]["exists"])
        self.assertLess(facts["gather_ms"], 20000, "a probe without a deadline")


if __name__ == "__main__":
    harness.main()
