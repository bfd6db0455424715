"""shoal shmtest learns from the kernel whether a SIGBUS killed any process of a command, and stands
aside for commands that trace processes themselves.

Only the kernel knows of these deaths: shmtest_deaths prints nothing, and its parents exit with 1.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ET
from pathlib import Path

import harness
from harness import SHOAL, SKIPPED
from shmtest_test import SOME_FAILED, namespaces, shmtest

DEATHS = sys.argv[1]
# Dies of SIGBUS in a child of multiprocessing, and reports it in its own way.
PYTHON = """
import multiprocessing, os, signal
child = multiprocessing.get_context("fork").Process(
    target=lambda: os.kill(os.getpid(), signal.SIGBUS))
child.start()
child.join()
print("child exit", child.exitcode)
raise SystemExit(1)
"""


class Trace(harness.TestCase):
    def entries(self, *command, code: int, flags=(), matrix="1m") -> list[dict]:
        result = shmtest("--matrix", matrix, "--json", *flags, "--", *command)
        self.assertEqual(result.returncode, code, result.stdout.decode() + result.stderr.decode())
        return json.loads(result.stdout)["conditions"]

    def one(self, *command, code: int, flags=()) -> dict:
        return self.entries(*command, code=code, flags=flags)[0]

    # --- a SIGBUS anywhere is seen ------------------------------------------

    def test_a_sigbus_is_seen_wherever_it_kills(self):
        for case in ("child", "grandchild", "thread", "orphan", "exec", "exec-by-thread", "vfork"):
            with self.subTest(case):
                entry = self.one(DEATHS, case, code=SOME_FAILED)
                self.assertEqual((entry["exit_code"], entry["sigbus"], entry["trace"]),
                                 (1, True, "complete"))
                self.assertRegex(entry["sigbus_process"], r"^\d+ shmtest_deaths$")
                pid, name = entry["sigbus_process"].split()
                self.assertEqual(entry["reason"],
                                 f"exit code 1; SIGBUS killed process {pid} of its namespace ({name})")
                # A program may refuse to start, but nothing of it may die so.
                control, entry = self.entries(
                    "sh", "-c", '[ $SHOAL_SHMTEST_CONDITION = host ] || exec "$0" "$1"', DEATHS, case,
                    code=SOME_FAILED, flags=("--accept", "error"))
                self.assertEqual((control["result"], entry["result"], entry["sigbus"]),
                                 ("passed", "failed", True))

    def test_it_is_seen_below_python(self):
        entry = self.one("python3", "-c", PYTHON, code=SOME_FAILED)
        self.assertIn("child exit -7", entry["output_tail"])
        self.assertEqual((entry["sigbus"], entry["trace"]), (True, "complete"))

    def test_a_sigbus_that_does_not_kill_is_none(self):
        for command in ((DEATHS, "survived"), ("false",), ("sh", "-c", "exit 135"),
                        ("sh", "-c", "echo Bus error; exit 1"), ("sh", "-c", "kill -SEGV $$")):
            with self.subTest(command):
                entry = self.one(*command, code=SOME_FAILED)
                self.assertEqual((entry["sigbus"], entry["sigbus_process"], entry["trace"]),
                                 (False, None, "complete"))

    @unittest.skipUnless(os.geteuid() == 0, "makes a process namespace")
    def test_the_first_process_of_an_inner_namespace_dies_of_it_too(self):
        """The kernel keeps a traced one alive, and it would fault forever."""
        entry = self.one("unshare", "--pid", "--fork", DEATHS, "die", code=SOME_FAILED)
        self.assertNotEqual(entry["end"], "hung")
        self.assertEqual((entry["sigbus"], entry["trace"]), (True, "complete"))

    def test_all_conditions_are_traced_at_once(self):
        entries = self.entries(DEATHS, "orphan", code=SOME_FAILED, flags=("--jobs", 4),
                               matrix="4k,1m,16m,64m,no-memfd,rlimit-nofile,no-cma")
        # Without memfd_create there is no page to touch, which is a SIGSEGV.
        self.assertEqual({e["condition"]: e["sigbus"] for e in entries},
                         {"4k": True, "1m": True, "16m": True, "64m": True, "no-memfd": False,
                          "rlimit-nofile": True, "no-cma": True})

    # --- the command does not notice ----------------------------------------

    def test_stops_and_signals_are_as_without_a_tracer(self):
        for case in ("stops", "signals"):
            for flags in ((), ("--no-trace",)):
                with self.subTest(case, flags=flags):
                    self.one(DEATHS, case, code=0, flags=flags)

    def test_many_short_processes(self):
        entry = self.one("sh", "-c",
                         "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i + 1)); done", code=0)
        self.assertEqual((entry["trace"], entry["sigbus"]), ("complete", False))

    def test_stopped_processes_are_killed_at_the_timeout(self):
        entry = self.one("sh", "-c", "sleep 987 & kill -STOP $!; kill -STOP $$", code=SOME_FAILED,
                         flags=("--timeout", 3))
        self.assertEqual((entry["end"], len(entry["orphans"]), entry["sigbus"]),
                         ("hung", 2, False))

    # --- where it cannot be seen, it is not denied --------------------------

    def assert_unknown(self, entry: dict, trace: str, note: str | None):
        self.assertEqual((entry["sigbus"], entry["trace"]), (None, trace))
        if note is None:
            self.assertIsNone(entry["trace_note"])
        else:
            self.assertIn(note, entry["trace_note"])

    def test_programs_that_trace_can(self):
        for case in ("traces", "attaches"):
            with self.subTest(case):
                entry = self.one(DEATHS, case, code=0)
                self.assert_unknown(entry, "ended", "(shmtest_deaths) calls ptrace itself")

    def test_what_was_seen_before_stays_seen(self):
        entry = self.one("sh", "-c", '"$0" child; "$0" traces; exit 3', DEATHS, code=SOME_FAILED)
        self.assertEqual((entry["exit_code"], entry["sigbus"], entry["trace"]), (3, True, "ended"))

    def test_leak_sanitizer_works(self):
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder, "leak.cc"), Path(folder, "leak")
            source.write_text("int* leak;\nint main(int n, char**) {\n"
                              "  leak = new int(n);\n  leak = nullptr;\n}\n")
            compiled = subprocess.run(["c++", "-fsanitize=leak", source, "-o", program],
                                      capture_output=True)
            if compiled.returncode != 0:
                self.skipTest("this compiler has no LeakSanitizer")
            entry = self.one(str(program), code=SOME_FAILED)
            self.assertIn("detected memory leaks", entry["output_tail"])
            self.assert_unknown(entry, "ended", "(leak) calls ptrace itself, as LeakSanitizer and gdb do")

    def test_no_trace(self):
        entry = self.one(DEATHS, "child", code=SOME_FAILED, flags=("--no-trace",))
        self.assert_unknown(entry, "off", None)
        entry = self.one("sh", "-c", '"$0" die', DEATHS, code=SOME_FAILED, flags=("--no-trace",))
        self.assertTrue(entry["sigbus"])

    def test_a_kernel_that_refuses(self):
        """Below a shmtest that traces, there can be no other one."""
        # LeakSanitizer, which a build with AddressSanitizer brings, would trace the inner one.
        inner = ["env", "LSAN_OPTIONS=detect_leaks=0", SHOAL, "shmtest", "--matrix", "1m", "--json",
                 "--", DEATHS, "child"]
        outer = self.one("sh", "-c", 'out=$("$@"); code=$?; echo "$out"; exit $code', "sh", *inner,
                         code=SOME_FAILED)
        self.assertEqual((outer["sigbus"], outer["trace"]), (True, "complete"))
        document = outer["output_tail"]
        entry = json.loads(document[document.index("{"):])["conditions"][0]
        self.assert_unknown(entry, "off", "busy")

    def test_the_other_reports(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.xml"
            text = ('case $SHOAL_SHMTEST_CONDITION in 4k) "$0" child ;; 1m) "$0" traces ;; '
                    '64m) ;; esac')
            result = shmtest("--matrix", "4k,1m,64m", "--junit", file, "--", "sh", "-c", text,
                             DEATHS)
            cases = {case.get("name"): {p.get("name"): p.get("value")
                                        for p in case.iter("property")}
                     for case in ET.parse(file).getroot().iter("testcase")}
        self.assertEqual({name: properties["sigbus"] for name, properties in cases.items()},
                         {"4k": "true", "1m": "unknown", "64m": "false"})
        self.assertIn("calls ptrace", cases["1m"]["trace_note"])
        self.assertNotIn("trace_note", cases["64m"])
        self.assertRegex(result.stdout.decode(),
                         r"exit code 1; SIGBUS killed process \d+ of its namespace \(shmtest_deaths\)")
        self.assertRegex(result.stdout.decode(), r"\nA SIGBUS that leaves no sign is not seen in "
                         r"1m: process \d+ \(shmtest_deaths\) calls ptrace itself, as LeakSanitizer "
                         r"and gdb do\n")


if __name__ == "__main__":
    if not namespaces():
        raise SystemExit(SKIPPED)
    harness.main(arguments=(DEATHS,))
