"""The files of the model do not answer any more, as those of a file server that is gone: a restart of
the ranks has an end, and so has the server.

A seccomp filter lets the kernel hold the front's reads of the weights.
"""
import os
import re
import signal
import subprocess

import denied
import harness
from model_files_test import ENDLESS, FLAGS, IN_THE_STREAM, PIECE, CopiedModel


class SilentFiles(CopiedModel):
    def lose_a_rank_and_the_files(self, *flags) -> tuple[harness.Server, harness.Process]:
        """A server that has begun to look at its files before a restart, which do not answer, and the
        client of its open stream."""
        reads = denied.HeldReads(PIECE)
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


if __name__ == "__main__":
    harness.main()
