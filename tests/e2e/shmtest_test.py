"""shoal shmtest with small commands that behave, leave things behind, crash or hang: its verdict on
each is checked.

If the kernel allows no namespaces, the refusal itself is checked and the rest is skipped.
"""
import json
import os
import resource
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import denied
import harness
from harness import SHOAL, SKIPPED, UNAVAILABLE, USAGE
from pages import PAGE, whole_pages

SOME_FAILED = 1
# Maps a sparse file and touches its second page. There is room for only one page.
SIGBUS = """
import mmap, os
fd = os.open("/dev/shm/sparse", os.O_RDWR | os.O_CREAT)
os.unlink("/dev/shm/sparse")
os.ftruncate(fd, 1 << 20)
map = mmap.mmap(fd, 1 << 20)
for page in range(0, 1 << 20, 4096): map[page] = 1
"""

# Waits until shmtest, the first process here, has looked at /dev/shm, for which it wakes up again and again.
UNTIL_A_LOOK = """
import time
def wakes(): return int(open("/proc/1/status").read().split("\\nvoluntary_ctxt_switches:")[1].split()[0])
last = wakes() + 5
while wakes() < last: time.sleep(0.001)
"""


def shmtest(*args, **popen) -> subprocess.CompletedProcess:
    return subprocess.run([SHOAL, "shmtest", *map(str, args)], env=harness.environment(),
                          capture_output=True, timeout=10 * harness.GUARD, stdin=subprocess.DEVNULL, **popen)


def namespaces() -> bool:
    return shmtest("--matrix", "4k", "--", "true").returncode == 0


class Shmtest(harness.TestCase):
    def report(self, matrix: str, *command, code: int, flags=()) -> dict[str, dict]:
        """The conditions of the JSON report, by name."""
        result = shmtest("--matrix", matrix, "--json", *flags, "--", *command)
        self.assertEqual(result.returncode, code, result.stderr.decode())
        document = json.loads(result.stdout)
        self.assertEqual(document["command"], list(command))
        counts = [document["passed"], document["failed"], document["skipped"]]
        self.assertEqual(sum(counts), len(document["conditions"]))
        self.assertEqual(result.stderr.decode().count("shmtest: ["), len(document["conditions"]))
        return {entry["condition"]: entry for entry in document["conditions"]}

    def one(self, condition: str, *command, code: int, flags=()) -> dict:
        return self.report(condition, *command, code=code, flags=flags)[condition]

    def python(self, condition: str, text: str, *, code: int, flags=()) -> dict:
        return self.one(condition, "python3", "-c", text, code=code, flags=flags)

    # --- verdicts -----------------------------------------------------------

    def test_a_command_that_behaves_passes_in_all(self):
        # Leave out `host`, because other programs may create names in the machine's own /dev/shm
        # meanwhile.
        names = [line.split()[0] for line in shmtest("--list").stdout.decode().splitlines()]
        self.assertGreater(len(names), 20)
        for name, entry in self.report(",".join(set(names) - {"host"}), "true", code=0).items():
            self.assertIn(entry["result"], ("passed", "skipped"), name)
            if entry["seconds"] < 0.01:  # before the first look
                self.assertIsNone(entry["shm_peak_bytes"], entry)
            if entry["result"] == "skipped":
                self.assertTrue(entry["reason"], name)
                if name.startswith("full-after-"):  # `true` ends before that
                    continue
                self.assertIn(name, ("other-user", "cgroup-32m", "not-tmpfs", "no-ipv6",
                                     "ports-exhausted"))

    def test_exit_codes_and_output(self):
        entry = self.one("4k", "sh", "-c", "echo out; echo err >&2; exit 7", code=SOME_FAILED)
        self.assertEqual((entry["end"], entry["exit_code"]), ("exited", 7))
        self.assertEqual(entry["output_tail"], "out\nerr\n")
        entry = self.one("4k", "sh", "-c", "kill -TERM $$", code=SOME_FAILED)
        self.assertEqual((entry["end"], entry["signal"], entry["sigbus"]),
                         ("signalled", "SIGTERM", False))

    def test_a_long_output_is_cut(self):
        entry = self.one("64m", "sh", "-c",
                         "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo last; exit 1",
                         code=SOME_FAILED)
        self.assertEqual(len(entry["output_tail"]), 8192)
        self.assertTrue(entry["output_tail"].endswith("x\nlast\n"))

    def test_a_file_left_behind(self):
        entry = self.one("1m", "sh", "-c",
                         "mkdir /dev/shm/a; head -c 8192 /dev/zero > '/dev/shm/a/<b> &'",
                         code=SOME_FAILED)
        self.assertEqual(entry["left"],
                         [{"name": "a", "bytes": 0}, {"name": "a/<b> &", "bytes": whole_pages(8192)}])
        self.assertEqual((entry["exit_code"], entry["shm_peak_bytes"]), (0, whole_pages(8192)))

    def test_stale_files_are_not_the_command_s(self):
        self.one("1m+stale-files", "sh", "-c",
                 "test $(ls /dev/shm | wc -l) -ge 4 && rm /dev/shm/nccl-*", code=0)

    def test_sigbus_is_called_out(self):
        for condition in ("4k", "full"):
            entry = self.python(condition, SIGBUS, code=SOME_FAILED)
            self.assertEqual((entry["signal"], entry["sigbus"]), ("SIGBUS", True))
        shell = self.one("4k", "sh", "-c", 'python3 -c "$1"; exit $?', "sh", SIGBUS,
                         code=SOME_FAILED)
        self.assertEqual((shell["exit_code"], shell["sigbus"]), (135, True))
        self.assertEqual(self.python("64m", UNTIL_A_LOOK, code=0)["shm_peak_bytes"], 0)
        self.assertGreaterEqual(self.python("64m", SIGBUS + UNTIL_A_LOOK, code=0)["shm_peak_bytes"],
                                1 << 20)

    def test_a_hang_is_killed_with_all_its_processes(self):
        # Both sleeps last longer than the test. A try counts only if both ran before its end, and if
        # they did not, the next one has more time.
        sleeps = ("trap '' TERM; setsid sleep 987 & one=$!; sleep 987 & two=$!; "
                  'until [ "$(cat /proc/$one/comm /proc/$two/comm)" = "$(printf "sleep\\nsleep")" ]; '
                  'do :; done; : > "$0/both"; wait')
        for timeout in (1, 4, 16, harness.GUARD):
            with tempfile.TemporaryDirectory() as folder:
                entry = self.one("4k", "sh", "-c", sleeps, folder, code=SOME_FAILED,
                                 flags=("--timeout", timeout))
                begun = os.listdir(folder)
            self.assertEqual(entry["end"], "hung")
            if begun:
                break
        self.assertEqual(begun, ["both"])
        self.assertEqual(sum("sleep" in process for process in entry["orphans"]), 2)

    def test_an_orphan_is_named_and_killed(self):
        entry = self.one("4k", "sh", "-c", "setsid sleep 987 & exit 0", code=SOME_FAILED)
        self.assertEqual((entry["end"], entry["exit_code"]), ("exited", 0))
        self.assertEqual(len(entry["orphans"]), 1)
        self.assertIn("sleep", entry["orphans"][0])
        # A process that soon ends by itself does not count as an orphan. On a machine that stands
        # still it may not be soon, and is then told from one that lasts by its end.
        result = shmtest("--matrix", "4k", "--json", "--", "sh", "-c", "sleep 0.1 & exit 0")
        [late] = json.loads(result.stdout)["conditions"]
        self.assertTrue(result.returncode == 0 or "sleep 0.1" in late["orphans"][0], late)

    def test_the_control_comes_first(self):
        """If the command fails even on the machine as it is, nothing else is run."""
        result = shmtest("--matrix", "4k,1m,host", "--jobs", 3, "--json", "--", "false")
        self.assertEqual(result.returncode, SOME_FAILED)
        document = json.loads(result.stdout)
        self.assertTrue(document["control_failed"])
        self.assertEqual([e["condition"] for e in document["conditions"]], ["host"])
        # An error is accepted in what takes something away, not in the control.
        result = shmtest("--matrix", "host,4k", "--accept", "error", "--", "false")
        self.assertEqual(result.returncode, SOME_FAILED)
        self.assertIn(b"nothing can be concluded", result.stdout)
        self.assertIn(b"exit code 1; host must exit with 0 even with --accept error\n", result.stdout)
        self.assertNotIn(b"was added", result.stderr)
        where = ("import os; host = os.environ['SHOAL_SHMTEST_CONDITION'] == 'host'; "
                 "raise SystemExit(0 if host else 3)")
        report = self.report("4k,host", "python3", "-c", where, code=SOME_FAILED)
        self.assertEqual({name: e["exit_code"] for name, e in report.items()},
                         {"4k": 3, "host": 0})

    def test_a_condition_that_never_came_about_is_skipped(self):
        entry = self.one("full-after-30s", "true", code=69)
        self.assertEqual((entry["result"], entry["end"]), ("skipped", "exited"))
        too_soon = r"before /dev/shm was filled; try {}a command that runs longer$"
        self.assertRegex(entry["reason"], too_soon.format(r"(full-after-\d+\.\d\ds, or )?"))
        entry = self.python("full-after-30s", UNTIL_A_LOOK, code=69)
        self.assertRegex(entry["reason"], too_soon.format(r"full-after-\d+\.\d\ds, or "))
        entry = self.one("full-after-30s", "false", code=SOME_FAILED)
        self.assertEqual(entry["result"], "failed")
        until_full = ("import os, time\n"
                      "while os.statvfs('/dev/shm').f_bfree > 0: time.sleep(0.05)")
        entry = self.one("full-after-0.1s", "python3", "-c", until_full, code=0)
        self.assertEqual(entry["result"], "passed")

    def test_an_error_may_be_accepted(self):
        accept = ("--accept", "error")

        def script(text: str) -> tuple[str, ...]:
            """Works in the control."""
            return "sh", "-c", f"[ $SHOAL_SHMTEST_CONDITION = host ] && exit; {text}"
        # The control is added in front, unless it is there.
        for matrix, names in (("4k", ["host", "4k"]), ("4k,host", ["4k", "host"])):
            report = self.report(matrix, *script("echo no room; exit 3"), code=0, flags=accept)
            self.assertEqual(list(report), names)
            self.assertEqual((report["4k"]["result"], report["4k"]["exit_code"]), ("passed", 3))
            self.assertEqual(report["host"]["exit_code"], 0)
        never = self.report("4k,1m", "sh", "-c", "echo wrong flag; exit 64", code=SOME_FAILED, flags=accept)
        self.assertEqual(list(never), ["host"])
        for wrong in ("kill -SEGV $$", "exit 139", "echo x > /dev/shm/x; exit 3",
                      "setsid sleep 987 & exit 3"):
            with self.subTest(wrong):
                entry = self.one("4k", *script(wrong), code=SOME_FAILED, flags=accept)
                self.assertEqual(entry["result"], "failed")
        # Long enough for the control on a machine that stands still.
        entry = self.one("4k", *script("sleep 987"), code=SOME_FAILED, flags=(*accept, "--timeout", 5))
        self.assertEqual(entry["end"], "hung")

    # --- conditions do what they say ----------------------------------------

    def test_any_size(self):
        show = ("import os; s = os.statvfs('/dev/shm'); "
                "print(s.f_blocks * s.f_frsize); raise SystemExit(3)")
        for name, size in (("24k", whole_pages(24 << 10)), ("128m", 128 << 20), ("3m+no-cma", 3 << 20)):
            self.assertEqual(self.python(name, show, code=SOME_FAILED)["output_tail"], f"{size}\n")

    def test_conditions_of_the_mount(self):
        two_pages = f"head -c {2 * PAGE} /dev/zero > /dev/shm/x; code=$?; rm -f /dev/shm/x; exit $code"
        expected = {"4k": False, "1m": True, "64m": True, "no-inodes": False, "few-inodes": True,
                    "read-only": False, "missing": False, "not-tmpfs": True, "full": False,
                    "noexec": True, "64m+full-after-9s": True}
        for name, entry in self.report(",".join(expected), "sh", "-c",
                                       two_pages, code=SOME_FAILED).items():
            if entry["result"] != "skipped":
                self.assertEqual(entry["result"] == "passed", expected[name], entry)

    def test_it_fills_up_in_time(self):
        # Late enough for an interpreter to start, or it cannot even write the first file.
        entry = self.python("full-after-2s",
                            "import os, time\nopen('/dev/shm/a', 'wb').write(b'x' * 65536)\n"
                            "while os.statvfs('/dev/shm').f_bfree > 0: time.sleep(0.05)\n"
                            "open('/dev/shm/b', 'wb').write(b'x' * 65536)", code=SOME_FAILED)
        self.assertIn("No space left", entry["output_tail"])
        self.assertIn(entry["shm_peak_bytes"], (0, 65536))

    def test_denied_calls_and_limits(self):
        for condition, text in {
            "no-memfd": "import os\ntry: os.memfd_create('x')\nexcept PermissionError: pass\n"
            "else: raise SystemExit('allowed')",
            "64m+rlimit-nofile": "import resource; "
            "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (40, 40)",
            "rlimit-fsize": "import resource; "
            "assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 65536",
            "rlimit-memlock": "import resource; "
            "assert resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == 65536",
            "no-cma": "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            "assert libc.process_vm_readv(os.getpid(), None, 0, None, 0, 0) == -1 "
            "and ctypes.get_errno() == 1",
            "64m": "import os; os.close(os.memfd_create('x'))",
        }.items():
            with self.subTest(condition):
                self.python(condition, text, code=0)

    @unittest.skipUnless(os.path.isdir("/dev/shm"), "the machine has no /dev/shm")
    def test_host_is_the_machine_s_own(self):
        show = "import os; print(os.stat('/dev/shm').st_dev); raise SystemExit(3)"
        self.assertEqual(self.python("host", show, code=SOME_FAILED)["output_tail"],
                         f"{os.stat('/dev/shm').st_dev}\n")
        self.assertNotEqual(self.python("1m", show, code=SOME_FAILED)["output_tail"],
                            f"{os.stat('/dev/shm').st_dev}\n")

    def test_networks(self):
        ports = ("import socket\n"
                 "s = [socket.socket() for _ in range(9)]\n"
                 "for x in s: x.bind(('127.0.0.1', 0))")
        ipv6 = "import socket\nsocket.socket(socket.AF_INET6).bind(('::1', 0))"
        for condition, text, says in (("ports-exhausted", ports, "in use"),
                                      ("no-ipv6", ipv6, "assign requested")):
            result = shmtest("--matrix", condition, "--json", "--", "python3", "-c", text)
            entry = json.loads(result.stdout)["conditions"][0]
            if entry["result"] != "skipped":
                self.assertIn(says, entry["output_tail"])

    # --- reports and flags --------------------------------------------------

    def test_too_few_descriptors_are_no_bug(self):
        codes = set()
        for most in range(5, 17):
            process = harness.start("shmtest", "--matrix", "4k", "--", "true",
                                    preexec_fn=denied.limit(resource.RLIMIT_NOFILE, most))
            err = process.communicate()[1].decode()
            codes.add(process.returncode)
            if process.returncode == harness.UNAVAILABLE and "make a pipe" in err:
                self.assertIn("ulimit -n", err)
        self.assertNotIn(70, codes)
        self.assertIn(harness.UNAVAILABLE, codes)

    def test_fail_fast_and_jobs(self):
        self.assertEqual(list(self.report("4k,1m,64m", "false", code=SOME_FAILED,
                                          flags=("--fail-fast",))), ["4k"])
        self.assertIn(b"(--fail-fast): 2 other conditions were not run.\n",
                      shmtest("--matrix", "4k,1m,64m", "--fail-fast", "--", "false").stdout)
        # Each command waits until all four run.
        with tempfile.TemporaryDirectory() as folder:
            report = self.report("4k,1m,16m,64m", "sh", "-c",
                                 f"touch {folder}/$SHOAL_SHMTEST_CONDITION; "
                                 f"while [ $(ls {folder} | wc -l) -lt 4 ]; do sleep 0.05; done",
                                 code=0, flags=("--jobs", 4))
        self.assertEqual(list(report), ["4k", "1m", "16m", "64m"])

    def test_wrong_flags(self):
        for args, says in ((("--matrix", "4q", "--", "true"), "4q"), ((), "--"), (("--",), "--"),
                           (("true",), "true"),
                           (("--matrix", "4k+1m", "--", "true"), "contradicts"),
                           (("--timeout", "0", "--", "true"), "--timeout"),
                           (("--timeout", "2e6", "--", "true"), "seconds in (0, 1000000], not"),
                           (("--matrix", "zz*", "--", "true"), "zz*"),
                           (("--matrix", "1k", "--", "true"), "4k to 1t"),
                           (("--min-size", "--matrix", "4k", "--", "true"), "--matrix"),
                           (("--accept", "none", "--", "true"), "--accept"),
                           (("--", "no-such-program"), "command not found"),
                           (("--", "sh -c true"), "leave out the quotes"),
                           (("--", "/etc/passwd"), "/etc/passwd"),
                           (("--junit", "/no/such/x.xml", "--", "true"), "--junit")):
            with self.subTest(args=args):
                result = shmtest(*args)
                self.assertEqual((result.returncode, result.stdout), (USAGE, b""), result.stderr)
                self.assertIn(says, result.stderr.decode())

    # --- the runner's own end -----------------------------------------------

    def end_of_runner(self, send: int, *, group: bool) -> int:
        """Sends the signal while a condition runs, and returns the exit code.

        The check at the end of every test makes sure that no process is left.
        """
        process = harness.start("shmtest", "--matrix", "not-tmpfs,4k", "--", "sleep", "987")
        harness.wait_until(lambda: any(harness.words_of(pid)[:2] == ["sleep", "987"]
                                       for pid in harness.descendants(process.pid)),
                           "the command runs")
        (os.killpg if group else os.kill)(process.pid, send)
        process.communicate()
        harness.wait_until(lambda: not harness.survivors(), "everything gone")
        return process.returncode

    def disk_folders(self) -> set[str]:
        places = {os.environ.get("TMPDIR", "/tmp"), "/var/tmp", "/tmp", "."}
        return {str(path) for place in places for path in Path(place).glob("shoal-shmtest-*")}

    def test_a_killed_runner_leaves_nothing(self):
        before = self.disk_folders()
        self.assertEqual(self.end_of_runner(signal.SIGKILL, group=False), -signal.SIGKILL)
        self.assertEqual(self.end_of_runner(signal.SIGKILL, group=True), -signal.SIGKILL)
        self.assertEqual(self.disk_folders() - before, set())

    def test_ctrl_c_ends_and_cleans(self):
        before = self.disk_folders()
        self.assertEqual(self.end_of_runner(signal.SIGINT, group=True), 128 + signal.SIGINT)
        self.assertEqual(self.end_of_runner(signal.SIGTERM, group=False), 128 + signal.SIGTERM)
        self.assertEqual(self.disk_folders() - before, set())


class WithoutRoot(harness.TestCase):
    def skip_where_threaded(self, result: subprocess.CompletedProcess):
        if b"make a user namespace: Invalid argument" in result.stderr:
            self.skipTest("a sanitizer's thread keeps the program out of user namespaces")

    @unittest.skipUnless(os.geteuid() == 0, "has no other user to become")
    def test_another_user_needs_no_root(self):
        become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        if subprocess.run([*become, SHOAL, "--version"], capture_output=True).returncode != 0:
            self.skipTest("the program cannot be reached by another user")
        if subprocess.run([*become, "unshare", "-Ur", "true"], capture_output=True).returncode != 0:
            self.skipTest("no user namespaces for other users")
        result = subprocess.run([*become, SHOAL, "shmtest", "--matrix",
                                 "4k,missing,not-tmpfs,full+no-cma", "--json", "--",
                                 "sh", "-c", "test $(id -u) = 65534"],
                                env=harness.environment(), capture_output=True, cwd="/tmp")
        self.skip_where_threaded(result)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        self.assertEqual(json.loads(result.stdout)["failed"], 0)

    @unittest.skipUnless(subprocess.run(["unshare", "-Ur", "true"],
                                        capture_output=True).returncode == 0, "no user namespaces")
    def test_no_namespaces_is_69_with_the_remedy(self):
        # Runs in a user namespace that allows no further ones below it, without the capability that
        # would make them unnecessary.
        script = ('echo 0 > /proc/sys/user/max_user_namespaces; '
                  'exec setpriv --bounding-set=-sys_admin "$@"')
        result = subprocess.run(
            ["unshare", "-Ur", "sh", "-c", script, "sh", SHOAL, "shmtest", "--", "true"],
            env=harness.environment(), capture_output=True)
        self.skip_where_threaded(result)
        self.assertEqual((result.returncode, result.stdout),
                         (UNAVAILABLE, b""), result.stderr.decode())
        # The kernel's ENOSPC would read as a full /dev/shm.
        self.assertRegex(result.stderr.decode(), (
            r"^shoal: error: cannot make a user namespace: user\.max_user_namespaces is 0: user namespaces "
            r"are switched off; .*"
            r"--matrix host alone does not\):\n  raise the limit: sysctl -w user\.max_user_namespaces="
            r"65536\notherwise:\n  run it as root\n  in Docker \(it weakens the container's isolation: "
            r"for tests alone\): add --cap-add SYS_ADMIN .*\n\Z"))


if __name__ == "__main__":
    if not namespaces():
        refused = shmtest("--", "true")
        print(refused.stderr.decode())
        raise SystemExit(SKIPPED if refused.returncode == UNAVAILABLE
                         and b"error: cannot " in refused.stderr else 1)
    harness.main()
