"""`shoal generate --chat`: the conversation of `shoal client --chat` without a server."""
import fcntl
import json
import os
import re
import signal
import tempfile
from pathlib import Path

import harness
from harness import DEMO, USAGE
from terminal import Terminal

INTERRUPTED = 130


class ChatCase(harness.TestCase):
    SAMPLING = ("--max-tokens", 12, "--seed", 7)
    SAMPLED = ("shoal generate: sampling from generation_config.json: temperature 0.7, top-p 0.95; seed {}; "
               "--temperature 0 takes the most likely token\n")
    CUT_OFF = "shoal generate: finish reason length: the answer stopped at --max-tokens 12\n"
    ENDLESS = ("--ignore-eos", "--max-tokens", 400, "--max-restarts", 0, "--step-timeout", 3600)

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def messages(self, *texts: str) -> Path:
        path = self.folder / "messages.json"
        path.write_text(json.dumps([{"role": ("user", "assistant")[i % 2], "content": text}
                                    for i, text in enumerate(texts)]))
        return path

    def answer(self, *texts: str) -> str:
        """What `generate` answers to such a conversation."""
        out = harness.run("generate", DEMO, "--messages", self.messages(*texts), *self.SAMPLING).stdout
        return out.decode().removesuffix("\n")

    def chat(self, text: str, *flags) -> tuple[int, str, str]:
        process = harness.start("generate", DEMO, "--chat", *flags, stdin=-1)
        out, err = process.communicate(text.encode())
        return process.returncode, out.decode(), err.decode()


class Answers(ChatCase):
    def test_a_conversation_through_a_pipe(self):
        first = self.answer("In the beginning")
        second = self.answer("In the beginning", first, "And then?")
        for flags in ((), ("-tp", 2)):
            self.assertEqual(self.chat("In the beginning\n\n \nAnd then?", *self.SAMPLING, *flags),
                             (0, f"{first}\n{second}\n", self.SAMPLED.format(7) + 2 * self.CUT_OFF))
        # A file can begin the conversation; its last question is answered first.
        path = self.messages("In the beginning")
        self.assertEqual(self.chat("And then?\r\n", "--messages", path, *self.SAMPLING),
                         (0, f"{first}\n{second}\n", self.SAMPLED.format(7) + 2 * self.CUT_OFF))
        self.assertEqual(self.chat(""), (0, "", self.SAMPLED.format(0)))

    def test_an_error_leaves_the_conversation_as_it_was(self):
        first = self.answer("In the beginning")
        second = self.answer("In the beginning", first, "And then?")
        code, out, err = self.chat(f"In the beginning\n{'far too long ' * 2000}\nAnd then?\n",
                                   *self.SAMPLING)
        self.assertEqual((code, out), (USAGE, f"{first}\n{second}\n"))
        self.assertRegex(err, rf"\A{self.SAMPLED.format(7)}{self.CUT_OFF}shoal: error: the prompt has.*\n"
                              rf"{self.CUT_OFF}\Z")

    def test_the_flags_about_the_template_count(self):
        own = self.folder / "own.jinja"
        own.write_text("{{ raise_exception(messages[0].content + ' and ' + more) }}")
        code, out, err = self.chat("this", "--chat-template", own, "--chat-template-kwargs",
                                   '{"more": "that"}')
        self.assertEqual((code, out), (USAGE, ""))
        self.assertIn("this and that", err)

    def test_refusals(self):
        wrong = self.folder / "wrong.json"
        wrong.write_text('{"role": "user"}')
        for flags, said in ((("--json",), "--json"),
                            (("--messages", "-"), "name a file"),
                            (("--messages", wrong), "JSON list"),
                            (("--prompt", "x"), "not --prompt and --chat"),
                            (("--chat-template-kwargs", "{"), "kwargs")):
            code, out, err = self.chat("Hello\n", *flags)
            self.assertEqual((code, out), (USAGE, ""), f"{flags}: {err}")
            self.assertIn(said, err)


class Ends(ChatCase):
    """The rank stops itself in the answer, so that it cannot be over before it is ended."""

    def stuck(self):
        with harness.planted("0:step-40:stop"):
            process = harness.start("generate", DEMO, "--chat", *self.ENDLESS, stdin=-1)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        process.stdin.write(b"In the beginning\n")
        process.stdin.flush()
        return process, harness.stopped_rank(process.pid)

    def test_a_signal_in_a_pipe_ends_and_says_how_much_has_come(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process, _ = self.stuck()
            begun = os.read(process.stdout.fileno(), 1)
            process.send_signal(number)
            out, err = process.communicate()
            self.assertEqual(process.returncode, 128 + number, err)
            self.assertTrue(out.endswith(b"\n"), out)
            come = len(begun + out) - 1
            self.assertRegex(err.decode(),
                             rf"\A{self.SAMPLED.format(0)}shoal: interrupted after {come} bytes? of the answer\n\Z")

    def test_a_signal_ends_it_also_if_nobody_reads_its_answer(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        room = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ) - 10
        self.assertEqual(os.write(writer, b"." * room), room)
        with harness.planted("0:step-40:stop"):
            process = harness.start("generate", DEMO, "--chat", *self.ENDLESS, stdin=-1, stdout=writer)
        os.close(writer)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        process.stdin.write(b"In the beginning\n")
        process.stdin.flush()
        harness.stopped_rank(process.pid)
        process.terminate()
        err = process.communicate()[1]
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, err)

    def test_no_turn_follows_once_the_ranks_are_lost(self):
        process, rank = self.stuck()
        os.kill(rank, signal.SIGKILL)
        out, err = process.communicate(b"And then?\n")
        self.assertEqual(process.returncode, harness.WORKER_DIED, err)
        self.assertEqual(err.count(b"shoal: error: "), 1, err)
        self.assertTrue(out.endswith(b"\n"), out)

    def test_ctrl_c_stops_the_answer_and_ctrl_d_ends(self):
        with harness.planted("0:step-60:stop"):
            terminal = Terminal("generate", DEMO, "--chat", *self.ENDLESS)
        terminal.wait_for("> $")
        terminal.type("In the beginning\n")
        terminal.wait_for(r"beginning\n.{20}")
        terminal.type("\x03")
        terminal.wait_for(r"beginning\n.*\n> $")
        answer = re.search(r"beginning\n(.*)\n> $", terminal.shown, re.DOTALL)[1]
        self.assertGreaterEqual(len(answer), 20)
        terminal.type("\x04")
        self.assertEqual(terminal.code(), 0)

    def test_ctrl_c_twice_at_the_prompt_ends(self):
        terminal = Terminal("generate", DEMO, "--chat")
        terminal.wait_for(r"sampling from generation_config.json: temperature 0.7, .*\n> $")
        terminal.type("\x03")
        terminal.wait_for("once more, ends")
        terminal.type("\x03")
        self.assertEqual(terminal.code(), INTERRUPTED)


if __name__ == "__main__":
    harness.main()
