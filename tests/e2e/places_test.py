"""Places that are hostile in one way: nobody reads the log, /proc is missing, the program is PID 1.
The program works there, or says what is in its way.

Every place is real. A test is skipped if this machine cannot make its place.
"""
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import denied
import harness

TINY = harness.ORACLE / "llama-nine-heads"
REQUEST = ("--prompt-ids", "0,1151,262,2088", "--max-tokens", 8, "--ignore-eos", "--temperature", 0)
SHORT = ("--prompt-ids", "1,2", "--max-tokens", 2)
OTHER_USER = 65_121


def works(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


class Place(harness.TestCase):
    def run_in(self, *args, **popen) -> tuple[int, str, str]:
        """The exit code, stdout and stderr of the program, started in a place."""
        process = harness.start(*args, **popen)
        try:
            out, err = process.communicate()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, (out or b"").decode(), err.decode(errors="replace")


class HiddenHome(Place):
    """/home is empty, as systemd's ProtectHome= makes it."""

    def test_a_model_in_it_is_not_just_missing(self):
        place = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                 'mount -t tmpfs none /home && exec "$@"', "sh")
        if not works(*place, *harness.EMULATOR, harness.SHOAL, "--version"):
            self.skipTest("no file system can be mounted over /home here, or the program is in it")
        for command in (("serve", "/home/me/model"), ("generate", "/home/me/model", "--prompt", "x")):
            code, out, err = self.run_in(*command, wrapper=place)
            self.assertEqual((code, out), (harness.NO_MODEL, ""), err)
            self.assertRegex(err, r"MODEL /home/me/model does not exist.*"
                             r"nothing in /home can be seen from here.*ProtectHome=")
        code, _, err = self.run_in("serve", "/models/none", wrapper=place)
        self.assertEqual(code, harness.NO_MODEL, err)
        self.assertNotIn("ProtectHome", err)


class StuckLog(Place):
    """stderr is a pipe that is full and that nobody reads, as of a log driver that hangs."""

    def full_pipe(self) -> tuple[int, int]:
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        os.set_blocking(writer, False)
        for size in (4096, 1):
            try:
                while True:
                    os.write(writer, b"." * size)
            except BlockingIOError:
                pass
        os.set_blocking(writer, True)
        return reader, writer

    def test_recovery_and_steps_go_on(self):
        reader, writer = self.full_pipe()
        process = harness.start("serve", harness.DEMO, "--grpc-port", 0, "-tp", 2, "--log-level",
                                "debug", stderr=writer)
        os.close(writer)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        out = harness.Reader(process.stdout)
        harness.wait_until(lambda: "\n" in out.text() or process.poll() is not None, "READY")
        address = out.text().split("grpc=")[1].split()[0]
        victim = harness.children(process.pid)[1]
        os.kill(victim, signal.SIGKILL)
        client = harness.start("client", "--server", address, *REQUEST)
        answer, why = client.communicate()
        self.assertEqual(client.returncode, 0, why)
        self.assertTrue(answer)
        self.assertNotIn(victim, harness.children(process.pid))
        os.set_blocking(reader, False)
        text = b""

        def told():
            nonlocal text
            try:
                text += os.read(reader, 65536)
            except BlockingIOError:
                pass
            return b"log lines were lost: nobody read them" in text
        harness.wait_until(told, "the number of lost lines")
        process.terminate()
        self.assertEqual(process.wait(), 0)

    def end_beside(self, reads_later: bool) -> str:
        """What a reader gets that comes while the program waits for one."""
        reader, writer = self.full_pipe()
        process = harness.start("generate", "/no/such/model", *SHORT, stderr=writer)
        os.close(writer)
        if reads_later:
            time.sleep(0.3)
            text = harness.Reader(os.fdopen(os.dup(reader), "rb", buffering=0))
        self.assertEqual(process.wait(), harness.NO_MODEL)
        process.stdout.close()
        return text.rest() if reads_later else ""

    def test_the_reason_of_an_end_waits_a_second_at_most(self):
        self.end_beside(reads_later=False)
        # The reader may be too late, because the machine stood still, but not every time.
        self.assertTrue(any("/no/such/model" in self.end_beside(reads_later=True)
                            for _ in range(5)))


class FullFile(Place):
    def test_a_log_that_has_met_its_limit_ends_no_server(self):
        with tempfile.TemporaryFile() as log:
            process = harness.start(
                "serve", TINY, "--grpc-port", 0, "-tp", 2, "--log-level", "debug", stderr=log,
                preexec_fn=denied.limit(resource.RLIMIT_FSIZE, 1024))
            self.addCleanup(lambda: process.poll() is None and process.kill())
            out = harness.Reader(process.stdout)
            harness.wait_until(lambda: "\n" in out.text() or process.poll() is not None, "READY")
            text = os.pread(log.fileno(), 4096, 0)  # leaves the position that the writers share
            self.assertTrue(out.text().startswith("READY"), (process.poll(), text))
            self.assertEqual(len(text), 1024)
            process.terminate()
            self.assertEqual(process.wait(), 0)

    def test_an_output_that_has_met_its_limit_is_an_error_that_says_so(self):
        limit = denied.limit(resource.RLIMIT_FSIZE, 0)

        def preexec():
            if "SHOAL_TEST_SANITIZED" in os.environ:
                # On a busy machine a sanitized program was ended by the signal, rarely and without a
                # word, which the release build never was: it seems to come before main().
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            limit()
        with tempfile.TemporaryFile() as output:
            code, _, err = self.run_in("generate", TINY, *SHORT, "--json", stdout=output,
                                       preexec_fn=preexec)
        self.assertEqual(code, harness.OUTPUT, err)
        self.assertIn("File too large", err)


class NoRestart(Place):
    """The ranks of a running server are lost, and a limit that came later forbids new ones."""

    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ,
                     "a sanitizer needs descriptors and threads of its own")
    def test_lost_ranks_are_exit_75_and_never_a_wrong_flag(self):
        self.skip_unless_reached_by(OTHER_USER, TINY)  # and only root may limit another process
        for kind, most, text in ((resource.RLIMIT_NOFILE, 12, "Too many open files"),
                                 (resource.RLIMIT_NPROC, 1, "ulimit -u")):
            with self.subTest(text=text):
                # Becoming another user leaves 1000 processes, more than it has.
                process = harness.start(
                    "serve", TINY, "--grpc-port", 0, "-tp", 2, "--startup-timeout", 8,
                    preexec_fn=denied.limit(resource.RLIMIT_NPROC, 1000, OTHER_USER))
                self.addCleanup(lambda p=process: p.poll() is None and p.kill())
                out, err = harness.Reader(process.stdout), harness.Reader(process.stderr)
                harness.wait_until(lambda: "\n" in out.text() or process.poll() is not None,
                                   "READY")
                if not out.text():
                    self.skipTest(f"another user may not serve here: {err.rest()}")
                # The same user may lower its limit, even if root here may not.
                subprocess.run([sys.executable, "-c", "import resource, sys; "
                                "resource.prlimit(*map(int, sys.argv[1:3]), 2 * (int(sys.argv[3]),))",
                                str(process.pid), str(kind), str(most)], check=True,
                               preexec_fn=denied.limit(resource.RLIMIT_NPROC, 1000, OTHER_USER))
                os.kill(harness.children(process.pid)[1], signal.SIGKILL)
                self.assertEqual(process.wait(), harness.WORKER_DIED, err.rest())
                self.assertIn(text, err.rest())


@unittest.skipUnless(works("unshare", "--pid", "--fork", "true"), "no pid namespaces here")
class FirstProcess(Place):
    """The program is PID 1 of a container, for which the kernel drops signals that have no
    handler."""

    def test_sigint_and_sigterm_end_every_command(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            for command in (("generate", harness.DEMO, "--prompt", "In", "--max-tokens", "400",
                             "--ignore-eos", "--cpu-kernels", "reference"),
                            ("tokenize", harness.DEMO, "--file", "-")):
                with self.subTest(signal=number.name, command=command[0]):
                    outer = subprocess.Popen(
                        ["unshare", "--pid", "--fork", "--kill-child", harness.SHOAL, *command],
                        env=harness.environment(), start_new_session=True, stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                    self.addCleanup(outer.stderr.close)
                    self.addCleanup(outer.stdin.close)
                    self.addCleanup(lambda p=outer: p.poll() is None and p.kill())
                    inner = harness.wait_until(lambda: harness.children(outer.pid), "PID 1")[0]
                    harness.wait_until(lambda i=inner: handles(i, number) or outer.poll() is not None,
                                       "a handler")
                    os.kill(inner, number)
                    self.assertEqual(outer.wait(harness.GUARD), 128 + number)


def handles(pid: int, number: int) -> bool:
    """Whether the process runs the program and has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (number - 1) & 1) and "shoal" in Path(f"/proc/{pid}/cmdline").read_text()


@unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ, "a sanitizer needs /proc")
@unittest.skipUnless(works("unshare", "--mount", "sh", "-c", "umount -l /proc"),
                     "/proc cannot be unmounted here")
class NoProc(Place):
    def without_proc(self, *args) -> tuple[int, str, str]:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$@"', "sh", harness.SHOAL,
             *map(str, args)], env=harness.environment(), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=harness.GUARD)
        return process.returncode, out.decode(), err.decode()

    def test_ranks_start_and_the_log_says_what_is_missing(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                code, out, err = self.without_proc("generate", TINY, *SHORT, "-tp", ranks)
                self.assertEqual(code, 0, err)
                self.assertTrue(out)
                self.assertIn("/proc is not mounted", err)

    def test_through_the_loader(self):
        loader = subprocess.run(["ldd", harness.SHOAL], capture_output=True,
                                text=True).stdout.split("ld-linux")[0].split()[-1] + \
            "ld-linux-x86-64.so.2"
        if not os.path.exists(loader):
            self.skipTest("no loader of this name")
        result = subprocess.run([loader, harness.SHOAL, "generate", str(TINY), "--prompt-ids", "1",
                                 "--max-tokens", "2", "-tp", "2"], capture_output=True, timeout=5 * harness.GUARD,
                                env=harness.environment())
        self.assertEqual((result.returncode, result.stderr), (0, b""))


@unittest.skipUnless(works("unshare", "--net", "true"), "no network namespaces here")
class NoLoopback(Place):
    def test_tcp_is_refused_before_a_rank_is_started(self):
        result = subprocess.run(
            ["unshare", "--net", harness.SHOAL, "doctor", "-tp", "2", "--transport", "tcp",
             "--json"], capture_output=True, text=True, timeout=5 * harness.GUARD, env=harness.environment())
        self.assertEqual(result.returncode, harness.UNAVAILABLE, result.stderr)
        self.assertIn('"phase":"probe"', result.stdout)
        self.assertIn("ip link set lo up", result.stdout)
        self.assertIn('"loopback_ipv4":false', result.stdout)

    def test_a_narrow_range_of_ports_has_a_remedy(self):
        place = ("ip link set lo up && "
                 "echo 40000 40003 > /proc/sys/net/ipv4/ip_local_port_range || exit 77\n")
        doctor = f"{harness.SHOAL} doctor -tp 8 --transport tcp"
        run = lambda script: subprocess.run(
            ["unshare", "--net", "sh", "-c", place + script], capture_output=True, text=True,
            timeout=5 * harness.GUARD, env=harness.environment())
        done = run(f"{doctor} --json")
        if done.returncode == 77:
            self.skipTest(f"the range cannot be set here: {done.stderr}")
        self.assertEqual(done.returncode, harness.UNAVAILABLE, done.stderr)
        remedy = json.loads(done.stdout)["remedies"][0]
        self.assertEqual(remedy["kind"], "sysctl")
        done = run(f"{remedy['text']}\n{doctor}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    harness.main()
