"""`shoal client` with chats: --messages, and --chat through a pipe and on a terminal."""
import json
import os
import re
import signal
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import harness
import http_client
from harness import UNAVAILABLE, USAGE
from terminal import Terminal

INTERRUPTED = 130


class ChatCase(http_client.ServerCase):
    FLAGS = ("--api-key", "s3cret")

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.key = self.folder / "key"
        self.key.write_text("# of the test\ns3cret\n")
        self.flags = ("--server", self.server.fields["http"], "--api-key-file", self.key)

    def messages(self, *texts: str) -> Path:
        path = self.folder / "messages.json"
        roles = ("user", "assistant")
        path.write_text(json.dumps([{"role": roles[i % 2], "content": text}
                                    for i, text in enumerate(texts)]))
        return path

    def answer(self, *texts: str, **fields) -> str:
        """The answer of the server, asked without `shoal client`, to a conversation of these
        texts."""
        messages = [{"role": ("user", "assistant")[i % 2], "content": text}
                    for i, text in enumerate(texts)]
        answer = http_client.call(self.server, "POST", "/v1/chat/completions",
                                  {"messages": messages, **fields},
                                  {"Authorization": "Bearer s3cret"})
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()["choices"][0]["message"]["content"]

    def client(self, *flags, text: str = "") -> tuple[int, str, str]:
        process = harness.start("client", *flags, stdin=-1)
        out, err = process.communicate(text.encode())
        return process.returncode, out.decode(), err.decode()


class Answers(ChatCase):
    SAMPLING = ("--max-tokens", 12, "--seed", 7)
    CUT_OFF = "shoal client: finish reason length: the answer stopped at --max-tokens 12\n"

    def test_one_conversation(self):
        path = self.messages("Who was the king?")
        expected = self.answer("Who was the king?", max_tokens=12, seed=7)
        code, out, err = self.client(*self.flags, "--messages", path, *self.SAMPLING)
        self.assertEqual((code, out), (0, expected + "\n"), err)
        self.assertRegex(err, r"^shoal client: \d+ tokens after a prompt of \d+, finish reason "
                              r"length \(stopped at --max-tokens 12\), first token after [\d.]+ s\n$")
        url = f"http://{self.server.fields['http']}/v1"
        code, out, err = self.client("--server", url, "--api-key", "s3cret", "--messages", "-",
                                     "--json", "--logprobs", 1, *self.SAMPLING,
                                     text=path.read_text())
        self.assertEqual(code, 0, err)
        generated = json.loads(harness.run("generate", harness.DEMO, "--messages", path, "--json",
                                           *self.SAMPLING, "--logprobs", 1).stdout)
        answer = json.loads(out)
        for name in ("text", "token_ids", "finish_reason"):
            self.assertEqual(answer[name], generated[name], name)
        self.assertEqual([one["logprob"] for one in answer["logprobs"]],
                         [one["logprob"] for one in generated["logprobs"]])
        self.assertEqual(answer["usage"]["prompt_tokens"], len(generated["prompt_token_ids"]))

    def test_a_conversation_through_a_pipe(self):
        first = self.answer("In the beginning", max_tokens=12, seed=7)
        second = self.answer("In the beginning", first, "And then?", max_tokens=12, seed=7)
        with mock.patch.dict(os.environ, SHOAL_API_KEY="s3cret"):
            code, out, err = self.client(*self.flags[:2], "--chat", *self.SAMPLING,
                                         text="In the beginning\n\n \nAnd then?")
        self.assertEqual((code, out, err), (0, f"{first}\n{second}\n", 2 * self.CUT_OFF))
        # A file can begin the conversation; its last question is answered first.
        path = self.messages("In the beginning")
        code, out, _ = self.client(*self.flags, "--chat", "--messages", path, *self.SAMPLING,
                                   text="And then?\r\n")
        self.assertEqual((code, out), (0, f"{first}\n{second}\n"))

    def test_an_error_leaves_the_conversation_as_it_was(self):
        first = self.answer("In the beginning", max_tokens=12, seed=7)
        second = self.answer("In the beginning", first, "And then?", max_tokens=12, seed=7)
        code, out, err = self.client(*self.flags, "--chat", *self.SAMPLING,
                                     text=f"In the beginning\n{'far too long ' * 2000}\nAnd then?\n")
        self.assertEqual((code, out), (USAGE, f"{first}\n{second}\n"))
        self.assertRegex(err, rf"^{self.CUT_OFF}shoal: error: the prompt has.*\(HTTP 400\)\n"
                              rf"{self.CUT_OFF}$")

    def test_refusals(self):
        path = self.messages("x")
        http, grpc = self.server.fields["http"], self.server.fields["grpc"]
        wrong = self.folder / "wrong.json"
        wrong.write_text('{"role": "user"}')
        for flags, code, said in (
                (("--server", http, "--messages", path), USAGE, "(HTTP 401)"),
                (("--server", grpc, "--messages", path), UNAVAILABLE, "HTTP port"),
                (("--server", grpc, "--prompt", "x"), USAGE, "key"),
                (("--server", "127.0.0.1:1", "--messages", path), UNAVAILABLE, "shoal serve"),
                (("--server", "ftp://h:1", "--messages", path), USAGE, "https://"),
                ((*self.flags, "--messages", path, "--model", "other"), USAGE, "other"),
                ((*self.flags, "--messages", path, "--temperature", -1), USAGE, "temperature"),
                ((*self.flags, "--messages", wrong), USAGE, "JSON list"),
                ((*self.flags, "--messages", self.folder / "none"), USAGE, "cannot be opened"),
                ((*self.flags, "--messages", path, "--chat-template-kwargs", "{"), USAGE, "kwargs"),
                ((*self.flags, "--messages", path, "--prompt", "x"), USAGE, "--messages"),
                (("--chat", "--json"), USAGE, "--json"),
                (("--server", http, "--api-key-file", wrong / "x", "--messages", path), USAGE,
                 "--api-key-file"),
        ):
            got, out, err = self.client(*flags)
            self.assertEqual((got, out), (code, ""), f"{flags}: {err}")
            self.assertIn(said, err)
            self.assertNotIn("s3cret", err)


class OnATerminal(ChatCase):
    FLAGS = ("--api-key", "s3cret", "--max-model-len", 512)

    def test_ctrl_c_stops_the_answer_and_ctrl_d_ends(self):
        # The rank stops itself in the answer, so that it cannot be over before it is stopped.
        self.server.kill()
        with harness.planted("0:step-60:stop"):
            self.server = self.serve(harness.DEMO, *self.FLAGS, "--step-timeout", 5 * harness.GUARD)
        self.flags = ("--server", self.server.wait_ready()["http"], *self.flags[2:])
        terminal = Terminal("client", *self.flags, "--chat", "--ignore-eos", "--seed", 7)
        terminal.wait_for("> $")
        terminal.type("In the beginning\n")
        terminal.wait_for(r"beginning\n.{20}")
        terminal.type("\x03")
        terminal.wait_for(r"beginning\n.*\n> $")
        answer = re.search(r"beginning\n(.*)\n> $", terminal.shown, re.DOTALL)[1]
        self.assertGreaterEqual(len(answer), 20)
        self.server.wait_logged("status none, the client left|status 200")
        terminal.type("x" * 50 + "\x03")
        terminal.wait_for("once more, ends")
        terminal.type("\x04")
        self.assertEqual(terminal.code(), 0)

    def test_ctrl_c_twice_ends(self):
        terminal = Terminal("client", *self.flags, "--chat")
        terminal.wait_for("> $")
        terminal.type("\x03")
        terminal.wait_for("once more, ends")
        terminal.type("\x03")
        self.assertEqual(terminal.code(), INTERRUPTED)

    def test_an_error_is_shown_and_the_next_question_asked(self):
        terminal = Terminal("client", "--server", "127.0.0.1:1", "--chat")
        terminal.wait_for("> $")
        terminal.type("Hello\n")
        terminal.wait_for(r"shoal: (\x1b\[1;31m)?error:(\x1b\[0m)? no server answers at 127\.0\.0\.1:1.*\n> $")
        terminal.type("\x04")
        self.assertEqual(terminal.code(), 0)

    def test_a_signal_in_a_pipe_ends(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = harness.start("client", *self.flags, "--chat", "--ignore-eos", stdin=-1)
            process.stdin.write(b"In the beginning\n")
            process.stdin.flush()
            self.assertTrue(os.read(process.stdout.fileno(), 10))
            process.send_signal(number)
            process.communicate()
            self.assertEqual(process.returncode, 128 + number)


class Half(BaseHTTPRequestHandler):
    """A fake server, which leaves in the middle of an answer."""

    asked: list = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Half.asked.append(json.loads(body)["messages"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'data: {"choices":[{"delta":{"content":"half an"}}]}\n\n')

    def log_message(self, *_):
        pass


class Stuck(Half):
    """A fake server, which comes to half of an answer and no further."""

    over = threading.Event()

    def do_POST(self):
        super().do_POST()
        Stuck.over.wait()


class HalfAnAnswer(harness.TestCase):
    def start_fake(self, handler: type) -> str:
        """Its address. It serves until the test ends."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"127.0.0.1:{server.server_address[1]}"

    def test_the_half_answer_is_no_part_of_the_conversation(self):
        Half.asked.clear()
        address = self.start_fake(Half)
        process = harness.start("client", "--server", address, "--chat", stdin=-1)
        out, err = process.communicate(b"one\ntwo\n")
        self.assertEqual(process.returncode, UNAVAILABLE, err)
        self.assertEqual(out, b"half an\nhalf an\n")
        self.assertEqual(err.decode(), 2 * f"shoal: error: the server at {address} ended the answer "
                                           "before it was whole, after 7 bytes of it\n")
        self.assertEqual(Half.asked, [[{"role": "user", "content": "one"}],
                                      [{"role": "user", "content": "two"}]])

    def test_a_signal_says_how_much_has_come(self):
        address = self.start_fake(Stuck)
        self.addCleanup(Stuck.over.set)
        message = b'[{"role": "user", "content": "one"}]'
        for flags, text in ((("--chat",), b"one\n"), (("--messages", "-"), message)):
            for number in (signal.SIGINT, signal.SIGTERM):
                with self.subTest(flags=flags, number=number):
                    process = harness.start("client", "--server", address, *flags, stdin=-1)
                    process.stdin.write(text)
                    process.stdin.close()
                    self.assertEqual(process.stdout.read(7), b"half an")
                    process.send_signal(number)
                    self.assertEqual(process.wait(), 128 + number)
                    self.assertEqual(process.stdout.read(), b"\n")
                    self.assertEqual(process.stderr.read(),
                                     b"shoal: interrupted after 7 bytes of the answer\n")


if __name__ == "__main__":
    harness.main()
