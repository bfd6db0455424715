"""How `shoal client` ends before its answer does: after a signal, and without its server."""
import contextlib
import os
import signal
import socket
import tempfile

import harness
from harness import UNAVAILABLE


class ClientEnds(harness.TestCase):
    ENDLESS = ("--prompt", "In the beginning", "--ignore-eos", "--max-tokens", 400)

    def stuck_server(self, fault: str = "0:step-20:stop") -> harness.Server:
        with harness.planted(fault):  # so that the answer cannot be over
            server = self.serve(harness.DEMO, "--step-timeout", 5 * harness.GUARD)
            server.wait_ready()
        return server

    # Where each way to ask goes, and how: flags, stdin, and what an answer is counted in.
    WAYS = (("grpc", ("--prompt", "In the beginning"), b"", "token"),
            ("http", ("--messages", "-"), b'[{"role": "user", "content": "In the"}]', "byte"),
            ("http", ("--chat",), b"In the beginning\n", "byte"))

    def ask(self, server: harness.Server, way: tuple, *flags):
        """The client, and what reads its stdout and its stderr."""
        port, words, text, _ = way
        client = harness.start("client", "--server", server.fields[port], *words, "--ignore-eos",
                               "--max-tokens", 400, *flags, stdin=-1)
        client.stdin.write(text)
        client.stdin.close()
        return client, harness.Reader(client.stdout), harness.Reader(client.stderr)

    def test_it_says_how_much_of_an_answer_has_come(self):
        for way in self.WAYS:
            with self.subTest(way=way):
                server = self.stuck_server()
                client, out, err = self.ask(server, way)
                harness.wait_until(out.text, "the beginning of the answer")
                server.kill()
                self.assertEqual(client.wait(), UNAVAILABLE, err.rest())
                self.assertRegex(err.rest(), r"^shoal: error: the server at \S+ is gone after "
                                             rf"[1-9]\d* {way[3]}s? of the answer: it has died, or "
                                             r"the connection has broken")
                self.assertEqual(err.rest().count("\n"), 1, err.rest())

    def test_a_server_that_dies_before_its_first_token(self):
        # Who has waited for the server is told the same as who has not.
        asked = []
        for wait in ((), ("--wait", harness.GUARD // 12)):
            for way in self.WAYS:
                server = self.stuck_server("0:step-1:stop")
                asked.append((server, way, *self.ask(server, way, *wait)))
                harness.stopped_rank(server.pid)  # so it has the request
        for server, *_ in asked:
            server.kill()
        for _, way, client, _, err in asked:
            self.assertEqual(client.wait(), UNAVAILABLE, err.rest())
            self.assertRegex(err.rest(), r"\Ashoal: error: the server at \S+ is gone after 0 "
                                         rf"{way[3]}s of the answer: it has died, .*\n\Z")

    def test_ctrl_c_twice_says_so_at_most_once(self):
        server = self.stuck_server()
        unread, err = os.pipe()
        os.set_blocking(err, False)
        with contextlib.suppress(BlockingIOError):  # full, so that the client waits to say it
            while os.write(err, b"." * 4096):
                pass
        os.set_blocking(err, True)
        client = server.client(*self.ENDLESS, stderr=err)
        os.close(err)
        out = harness.Reader(client.stdout)
        harness.wait_until(out.text, "the beginning of the answer")
        client.send_signal(signal.SIGINT)
        harness.wait_until(lambda: out.text().endswith("\n"), "the end of the line")
        client.send_signal(signal.SIGINT)
        self.assertEqual(client.wait(), 130)
        with os.fdopen(unread, "rb") as said:
            self.assertNotIn(b"interrupted", said.read())
        server.kill()

    def test_ctrl_c_ends_it_without_an_error_and_says_how_much_has_come(self):
        server = self.stuck_server()
        client = server.client(*self.ENDLESS)
        out = harness.Reader(client.stdout)
        harness.wait_until(out.text, "the beginning of the answer")
        client.send_signal(signal.SIGINT)
        self.assertEqual(client.wait(), 130)
        self.assertRegex(client.stderr.read().decode(),
                         r"\Ashoal: interrupted after [1-9]\d* tokens? of the answer\n\Z")
        self.assertTrue(out.rest().endswith("\n"))
        server.kill()
        # Also while it waits for a server to be ready, when nothing can have come.
        for number in (signal.SIGINT, signal.SIGTERM):
            waiting = harness.start("client", "--server", "127.0.0.1:1", "--wait", 600, "--prompt",
                                    "In")
            harness.wait_until(lambda: len(os.listdir(f"/proc/{waiting.pid}/task")) > 2,
                               "its threads")
            waiting.send_signal(number)
            self.assertEqual((waiting.wait(), waiting.communicate()[1]),
                             (128 + number, b"shoal: interrupted\n"))

    def test_a_signal_ends_a_chat_that_waits_for_its_server(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as messages:
            messages.write('[{"role": "user", "content": "x"}]')
            messages.flush()
            for number in (signal.SIGINT, signal.SIGTERM):
                with socket.create_server(("127.0.0.1", 0)) as server:
                    server.settimeout(harness.GUARD)
                    waiting = harness.start("client", "--server",
                                            f"127.0.0.1:{server.getsockname()[1]}", "--wait", 600,
                                            "--messages", messages.name)
                    # It asks again and again. ThreadSanitizer of GCC 12 loses a signal that comes in
                    # the first call of a thread that may block, which is over at the second question.
                    for _ in range(2):
                        server.accept()[0].close()
                    waiting.send_signal(number)
                    self.assertEqual((waiting.wait(), waiting.communicate()[1]),
                                     (128 + number, b"shoal: interrupted\n"))


if __name__ == "__main__":
    harness.main()
