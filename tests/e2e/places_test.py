"""Places that are hostile in one way: nobody reads the log, /proc is missing, a system call is
denied, the program is PID 1. The program works there, or says what is in its way.

Every place is real. A test is skipped if this machine cannot make its place.
"""
import errno
import json
import os
import re
import resource
import shutil
import signal
import socket
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


class Denied(Place):
    def test_no_pidfd(self):
        # Old versions of docker answer EPERM, and Linux before 5.3 ENOSYS.
        for error in (errno.EPERM, errno.ENOSYS):
            with self.subTest(error=errno.errorcode[error]):
                for ranks in (1, 2):
                    code, out, err = self.run_in(
                        "generate", TINY, *SHORT, "-tp", ranks,
                        preexec_fn=denied.deny(denied.PIDFD_OPEN, error))
                    self.assertEqual((code, err), (0, ""))
                    self.assertTrue(out)

    def test_a_death_is_seen_without_pidfds(self):
        process = harness.start("serve", TINY, "--grpc-port", 0, "-tp", 2,
                                preexec_fn=denied.deny(denied.PIDFD_OPEN, errno.EPERM))
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        out, err = harness.Reader(process.stdout), harness.Reader(process.stderr)
        harness.wait_until(lambda: "\n" in out.text() or process.poll() is not None, "READY")
        os.kill(harness.children(process.pid)[1], signal.SIGKILL)
        harness.wait_until(lambda: "the ranks run again" in err.text(), "a restart")
        self.assertIn("killed by signal 9", err.text())
        process.terminate()
        self.assertEqual(process.wait(), 0)

    def test_memory_that_cannot_be_touched_is_no_refused_transport(self):
        # A kernel does this with poisoned pages, or in a memory group without its killer.
        code, out, err = self.run_in(
            "generate", TINY, *SHORT, "-tp", 2, "--transport", "cma,tcp",
            preexec_fn=denied.deny(denied.MADVISE, errno.ENOMEM, third=denied.POPULATE_WRITE))
        self.assertEqual((code, out), (harness.UNAVAILABLE, ""), err)
        self.assertRegex(err, "touch the (activations|KV cache) of ")
        self.assertNotIn("refused", err)
        self.assertNotIn("no transport works", err)

    def test_a_filter_that_does_not_know_an_advice_is_no_lack_of_memory(self):
        for error in (errno.EPERM, errno.ENOSYS):
            with self.subTest(error=errno.errorcode[error]):
                code, out, err = self.run_in(
                    "generate", TINY, *SHORT, "-tp", 2, "--transport", "shm", "--json",
                    preexec_fn=denied.deny(denied.MADVISE, error, third=denied.POPULATE_WRITE))
                self.assertEqual((code, err), (0, ""))
                self.assertIn('"shm"', out)

    def test_threads_that_a_filter_denies_name_the_filter(self):
        # Docker before 20.10.10 answers EPERM, at which the C library gives up.
        for command in (("generate", TINY, *SHORT), ("serve", TINY, "--grpc-port", 0),
                        ("doctor", "-tp", 2)):
            with self.subTest(command=command[0]):
                code, _, err = self.run_in(*command,
                                           preexec_fn=denied.deny(denied.CLONE3, errno.EPERM))
                self.assertEqual(code, harness.UNAVAILABLE, err)
                self.assertIn("Operation not permitted", err)
                self.assertIn("a seccomp filter denies clone3", err)
                self.assertNotIn("INTERNAL", err)

    def test_a_filter_that_kills_is_named_before_it_does(self):
        calls = {"memfd_create": denied.MEMFD_CREATE, "fallocate": denied.FALLOCATE,
                 "statfs": denied.STATFS, "madvise": denied.MADVISE,
                 "pidfd_open": denied.PIDFD_OPEN, "signalfd4": denied.SIGNALFD4,
                 "socketpair": denied.SOCKETPAIR, "accept4": denied.ACCEPT4}
        for name, call in calls.items():
            with self.subTest(call=name):
                code, out, err = self.run_in("doctor", "--json", preexec_fn=denied.kill(call))
                self.assertEqual(code, harness.UNAVAILABLE, err)
                self.assertIn(f"(seccomp) kills whoever calls {name}, ", err)
                self.assertEqual(json.loads(out)["error"]["code"], "UNAVAILABLE")
        code, _, err = self.run_in("serve", TINY, "--grpc-port", 0,
                                   preexec_fn=denied.kill(denied.MADVISE))
        self.assertEqual(code, harness.UNAVAILABLE, err)
        self.assertIn("kills whoever calls madvise, ", err)

    def test_the_error_of_a_denied_descriptor_names_no_limit(self):
        for call, what in ((denied.EVENTFD2, "make descriptors for signals"),
                           (denied.SOCKETPAIR, "make the control channel's socket pair")):
            with self.subTest(what=what):
                code, _, err = self.run_in("serve", TINY, "--grpc-port", 0,
                                           preexec_fn=denied.deny(call, errno.EPERM))
                self.assertEqual(code, harness.UNAVAILABLE, err)
                self.assertRegex(err, f"{what}.*; the kernel, or a filter of system calls "
                                      r"\(seccomp\), refuses it: Operation not permitted")
                self.assertNotIn("ulimit", err)

    def test_clients_that_cannot_be_accepted_are_told_of_once(self):
        for error in (errno.EPERM, errno.ENOSYS):
            with self.subTest(error=errno.errorcode[error]):
                process = harness.start("serve", TINY, "--grpc-port", 0,
                                        preexec_fn=denied.deny(denied.ACCEPT4, error))
                self.addCleanup(lambda p=process: p.poll() is None and p.kill())
                out, err = harness.Reader(process.stdout), harness.Reader(process.stderr)
                harness.wait_until(lambda o=out, p=process: "\n" in o.text() or p.poll() is not None,
                                   "READY")
                fields = harness.ready_fields(out.text())
                for front in ("grpc", "http"):
                    host, port = fields[front].rsplit(":", 1)
                    with socket.create_connection((host, int(port))):
                        line = rf" ERROR .*{front}: a client has to wait, because it cannot be accepted.*"
                        harness.wait_until(lambda e=err, l=line: re.search(l, e.text()), "an error")
                process.terminate()
                self.assertEqual(process.wait(), 0)
                for front in ("grpc", "http"):
                    self.assertEqual(err.rest().count(f"{front}: a client has to wait"), 1)


class Stack(Place):
    """The limit of the stack, which the front's main thread and all threads have."""

    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ, "a sanitizer needs a stack of its own")
    def test_a_small_one_is_named(self):
        for command in (("--version",), ("doctor",), ("generate", TINY, *SHORT)):
            with self.subTest(command=command[0]):
                self.assertEqual(
                    self.run_in(*command, preexec_fn=denied.limit(resource.RLIMIT_STACK, 65536)),
                    (harness.UNAVAILABLE, "", "shoal: error: the stack is limited to 65536 bytes "
                     "(ulimit -s), and 262144 are needed; usual is ulimit -s 8192\n"))

    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ, "a sanitizer needs a stack of its own")
    def test_the_least_one_suffices(self):
        code, out, err = self.run_in("generate", TINY, *SHORT, "-tp", 2,
                                     preexec_fn=denied.limit(resource.RLIMIT_STACK, 262144))
        self.assertEqual((code, err), (0, ""))
        self.assertTrue(out)

    def test_one_that_no_thread_can_have_is_named(self):
        code, _, err = self.run_in("generate", TINY, *SHORT,
                                   preexec_fn=denied.limit(resource.RLIMIT_STACK, 2**46))
        self.assertEqual(code, harness.UNAVAILABLE, err)
        self.assertIn(f"the stack of each thread takes {2**46} bytes of address space (ulimit -s)",
                      err)


class Unreadable(Place):
    def test_cma_names_the_program_that_may_not_be_read(self):
        if os.geteuid() != 0:
            self.skipTest("only root becomes another user")
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            program = Path(folder, "shoal")
            shutil.copy(harness.SHOAL, program)
            program.chmod(0o711)
            done = subprocess.run(
                [program, "doctor", "--transport", "cma", "--json"], capture_output=True,
                text=True, timeout=harness.GUARD, env=harness.environment(),
                preexec_fn=denied.limit(resource.RLIMIT_NPROC, 1000, OTHER_USER))
            self.assertEqual(done.returncode, harness.UNAVAILABLE, done.stderr)
            report = json.loads(done.stdout)
            self.assertIn("may not read the program's file", report["refusals"][0]["reason"])
            self.assertEqual([remedy["text"] for remedy in report["remedies"]],
                             [f"chmod a+r {program}"])
            program.chmod(0o755)
            done = subprocess.run(
                [program, "doctor", "--transport", "cma"], capture_output=True, text=True,
                timeout=harness.GUARD, env=harness.environment(),
                preexec_fn=denied.limit(resource.RLIMIT_NPROC, 1000, OTHER_USER))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


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
                                 "--max-tokens", "2", "-tp", "2"], capture_output=True, timeout=300,
                                env=harness.environment())
        self.assertEqual((result.returncode, result.stderr), (0, b""))


@unittest.skipUnless(works("unshare", "--net", "true"), "no network namespaces here")
class NoLoopback(Place):
    def test_tcp_is_refused_before_a_rank_is_started(self):
        result = subprocess.run(
            ["unshare", "--net", harness.SHOAL, "doctor", "-tp", "2", "--transport", "tcp",
             "--json"], capture_output=True, text=True, timeout=300, env=harness.environment())
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
