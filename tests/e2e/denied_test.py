"""System calls that a filter denies, a stack that is too small, a program that may not be read: the
program works there, or says what is in its way.

Every filter and limit is real.
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
import tempfile
import unittest
from pathlib import Path

import denied
import harness
from places_test import OTHER_USER, SHORT, TINY, Place


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
        self.assertNotRegex(err, "no(ne of .*| transport) works")

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
                code, out, err = self.run_in(*command,
                                             preexec_fn=denied.deny(denied.CLONE3, errno.EPERM))
                said = out + err  # doctor says it in its report
                self.assertEqual(code, harness.UNAVAILABLE, said)
                self.assertIn("Operation not permitted", said)
                self.assertIn("a seccomp filter denies clone3", said)
                self.assertNotIn("INTERNAL", said)

    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ,
                     "a sanitizer makes such calls before the program begins")
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
                           (denied.SIGNALFD4, "make descriptors for signals"),
                           (denied.SOCKETPAIR, "make the control channel's socket pair")):
            with self.subTest(what=what):
                code, _, err = self.run_in("serve", TINY, "--grpc-port", 0,
                                           preexec_fn=denied.deny(call, errno.EPERM))
                self.assertEqual(code, harness.UNAVAILABLE, err)
                self.assertRegex(err, f"{what}.*; the kernel, or a filter of system calls "
                                      r"\(seccomp\), refuses it: Operation not permitted")
                self.assertNotIn("ulimit", err)

    def test_where_there_is_no_remedy_none_is_promised(self):
        place = {"preexec_fn": denied.deny(denied.MEMFD_CREATE, errno.EACCES)}
        flags = ("-tp", 2, "--transport", "memfd")
        code, out, err = self.run_in("doctor", *flags, "--json", **place)
        self.assertEqual((code, json.loads(out)["remedies"]), (harness.UNAVAILABLE, []), err)
        code, _, err = self.run_in("serve", TINY, "--grpc-port", 0, *flags, **place)
        self.assertEqual(code, harness.UNAVAILABLE, err)
        self.assertIn("none of --transport memfd works for 2 ranks (tried memfd); "
                      "without it, shm may work", err)
        self.assertNotIn("remedy", err)

    def test_a_rank_that_may_not_accept_its_peers_says_so(self):
        code, out, err = self.run_in("doctor", "-tp", 2, "--transport", "tcp", "--json",
                                     preexec_fn=denied.deny(denied.ACCEPT4, errno.EPERM))
        self.assertEqual(code, harness.UNAVAILABLE, err)
        refusal = json.loads(out)["refusals"][0]
        self.assertRegex(json.dumps(refusal), "accept a peer's TCP connection.*Operation not permitted")

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
                     "(ulimit -s), and 1048576 are needed; usual is ulimit -s 8192\n"))

    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ, "a sanitizer needs a stack of its own")
    def test_the_least_one_suffices(self):
        """Also for products of many rows, which take the most, with every set of kernels."""
        many = ("--prompt-ids", ",".join(["1"] * 60), "--max-tokens", 2, "--threads-per-rank", 2)
        limit = {"preexec_fn": denied.limit(resource.RLIMIT_STACK, 1 << 20)}
        for kernels in harness.kernel_sets():
            for model, dtype in ((TINY, "float32"), (TINY, "bfloat16"),
                                 (harness.ORACLE / "llama2-mha-f16", "float16")):
                with self.subTest(kernels=kernels, dtype=dtype):
                    code, out, err = self.run_in("generate", model, *many, "-tp", 2, "--cpu-kernels",
                                                 kernels, "--dtype", dtype, **limit)
                    self.assertEqual((code, err), (0, ""))
                    self.assertTrue(out)

    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ,
                     "a sanitizer has the addresses that such a stack moves the libraries to")
    def test_one_that_no_thread_can_have_is_named(self):
        code, _, err = self.run_in("generate", TINY, *SHORT,
                                   preexec_fn=denied.limit(resource.RLIMIT_STACK, 2**46))
        self.assertEqual(code, harness.UNAVAILABLE, err)
        self.assertIn(f"the stack of each thread takes {2**46} bytes of address space (ulimit -s)",
                      err)


class Unreadable(Place):
    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ,
                     "another user may not read the sanitizer's list of suppressions in a folder of ours")
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


if __name__ == "__main__":
    harness.main()
