"""The files of the model do not answer any more, as those of a file server that is gone: a start and a
restart of the ranks have an end, and so has the server.

A seccomp filter lets the kernel hold the front's reads of the weights, or the opening of all files of
the model.
"""
import os
import pty
import re
import signal
import subprocess

import denied
import harness
import terminal
from model_files_test import ENDLESS, FLAGS, IN_THE_STREAM, PIECE, CopiedModel

READS = ("pread64", PIECE)
# The third argument is the flags of an open. Nothing else is opened with these.
OPENS = ("openat", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


class SilentFiles(CopiedModel):
    def lose_a_rank_and_the_files(self, *flags) -> tuple[harness.Server, harness.Process]:
        """A server that has begun to look at its files before a restart, which do not answer, and the
        client of its open stream."""
        reads = denied.HeldCalls(*READS)
        try:
            with harness.planted(IN_THE_STREAM):
                server = self.serve(self.model, *FLAGS, *flags, preexec_fn=reads.install)
        except subprocess.SubprocessError:
            self.skipTest("the kernel holds no calls here")
        reads.start()
        server.wait_ready()
        client, _, self.said = self.stream(server, ENDLESS)
        rank = harness.stopped_rank(server.pid)
        reads.hold()
        harness.kill_unseen(server.pid, [rank])
        self.assertTrue(reads.held.wait(harness.GUARD), server.err.text())
        return server, client

    def test_streams_and_the_server_end_when_the_time_of_a_start_is_over(self):
        server, client = self.lose_a_rank_and_the_files("--startup-timeout", 12)
        self.assertEqual(server.end(), harness.WORKER_DIED, server.err.text())
        silent = f"{self.weights} does not answer"
        self.assertRegex(server.err.rest(), rf"error: .*{re.escape(silent)}")
        self.assertNotIn("the shutdown hangs", server.err.rest())
        self.assertNotEqual(client.wait(), 0)
        self.assertIn(silent, self.said.rest())

    def test_a_shutdown_does_not_wait_for_them(self):
        server, client = self.lose_a_rank_and_the_files("--startup-timeout", 10 * harness.GUARD,
                                                        "--shutdown-timeout", 1)
        os.kill(server.pid, signal.SIGTERM)
        self.assertEqual(server.end(), 0, server.err.text())
        self.assertIn("requests that still ran after 1 s were cancelled", server.err.rest())
        self.assertNotIn("the shutdown hangs", server.err.rest())
        self.assertNotEqual(client.wait(), 0)


class SilentStart(CopiedModel):
    """They have not answered since they were opened, or do not open."""

    def start_on_silence(self, command: str, *flags, held=READS, **popen) -> harness.Process:
        calls = denied.HeldCalls(*held)
        calls.hold()
        try:
            process = harness.start(command, self.model, *flags, preexec_fn=calls.install, **popen)
        except subprocess.SubprocessError:
            self.skipTest("the kernel holds no calls here")
        self.addCleanup(lambda: process.poll() is None and process.kill())
        calls.start()
        self.assertTrue(calls.held.wait(harness.GUARD))
        return process

    def test_it_ends_when_the_time_of_a_start_is_over(self):
        for command, *flags in (("serve", "--grpc-port", 0), ("generate", "--prompt", "In"), ("doctor",)):
            process = self.start_on_silence(command, *flags, "--startup-timeout", 3)
            out, err = (text.decode() for text in process.communicate())
            self.assertEqual(process.returncode, harness.WORKER_DIED, out + err)
            self.assertIn(f"{self.weights} does not answer", out if command == "doctor" else err)
            self.assertNotIn("READY", out)
            self.assertEqual("start: look is not over after 1 s: the model's files are being looked at\n" in err,
                             command == "serve", err)

    def test_it_ends_if_they_do_not_open(self):
        for command, *flags in (("serve", "--grpc-port", 0), ("generate", "--prompt", "In"),
                                ("logits", "--prompt", "In", "--out", os.devnull), ("doctor",)):
            process = self.start_on_silence(command, *flags, "--startup-timeout", 3, held=OPENS)
            out, err = (text.decode() for text in process.communicate())
            self.assertEqual(process.returncode, harness.WORKER_DIED, out + err)
            self.assertIn(f"MODEL {self.model} does not answer", out + err)
            self.assertNotIn("READY", out)

    def test_it_ends_if_a_file_that_comes_later_does_not_open(self):
        chat = ("generate", "--messages", self.folder / "chat.json")
        chat[-1].write_text('[{"role": "user", "content": "Hello"}]')
        later = [(("tokenizer.json", 1), "the tokenizer"), (("tokenizer_config.json",), "the chat template")]
        for command, *flags in (("serve", "--grpc-port", 0), chat):
            for held, what in later:
                process = self.start_on_silence(command, *flags, "--startup-timeout", 3, held=(*OPENS, *held))
                err = process.communicate()[1].decode()
                self.assertEqual(process.returncode, harness.WORKER_DIED, err)
                self.assertIn(f"{what} of MODEL {self.model} does not answer", err)

    def test_it_says_that_they_do_not_open_until_a_signal_ends_it(self):
        process = self.start_on_silence("serve", "--grpc-port", 0, held=OPENS)
        said = process.stderr.readline().decode()
        self.assertRegex(said, f"MODEL {self.model} has not been read after 5 s; --startup-timeout ends that in 59")
        process.terminate()
        process.communicate()
        self.assertEqual(process.returncode, 0)

    def test_a_terminal_shows_it_until_a_signal_ends_it(self):
        for code, *words in ((-signal.SIGTERM, "generate", "--prompt", "In"), (0, "serve", "--grpc-port", 0)):
            ours, inner = pty.openpty()
            self.addCleanup(os.close, ours)
            process = self.start_on_silence(*words, stdout=inner, stderr=inner)
            os.close(inner)
            shown = b""
            line = rb"\r\033\[Kthe model's files are being looked at for (\d+) s"
            while len(set(re.findall(line, shown))) < 2:
                shown += os.read(ours, 4096)
            process.terminate()
            self.assertEqual(process.wait(), code)
            try:
                while True:
                    shown += os.read(ours, 4096)
            except OSError:
                pass  # the other end is closed
            self.assertEqual(terminal.screen(shown.decode())[-1], "", shown)


if __name__ == "__main__":
    harness.main()
