"""What the documentation says of flags, compared with the flags themselves (`shoal help --json`):
those in command lines of shoal, those with which a piece of code begins, and defaults in tables.
The help's examples run. And how the program speaks to a terminal, through pipes and as a client.
"""
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import tempfile
import termios
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

import harness
from harness import UNAVAILABLE, USAGE
from ports import free_ports

# Flags in the documentation that are of other programs.
OF_OTHERS = {"--all": "scripts/test", "--mca": "mpirun", "--of-file": "the test programs"}
ESCAPE = "\x1b["


def commands() -> dict[str, dict]:
    listed = json.loads(harness.run("help", "--json").stdout)["commands"]
    return {command["name"]: command for command in listed}


def flags(command: dict) -> set[str]:
    names = {name for flag in command["flags"] for name in flag["names"]}
    return names | ({"-tp"} if "--tensor-parallel-size" in names else set())


def documents() -> list[Path]:
    found = [path for folder in ("docs", "examples", "deploy", "tests")
             for path in (harness.ROOT / folder).rglob("*.md") if "data" not in path.parts]
    return sorted(found + list(harness.ROOT.glob("*.md")))


def code_of(text: str) -> list[str]:
    """The blocks and spans of code. Lines that a backslash joins are one."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```[^\n]*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return lines + [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", rest)]


def command_lines(code: str) -> list[list[str]]:
    """The words after `shoal` of each of its command lines in a line of code."""
    found = []
    for part in re.findall(r"(?:^|[\s/(])shoal ((?:[^|;#&()]|\|(?=\S))+)", code):
        found.append(part.split(" -- ")[0].split())
    return found


class Flags(harness.TestCase):
    def test_flags_in_command_lines_of_the_documentation(self):
        table, seen = commands(), 0
        for path in documents():
            for code in code_of(path.read_text()):
                for words in command_lines(code):
                    name = " ".join(words[:2]) if words[:1] == ["bench"] else words[0]
                    if name not in table:
                        continue
                    given = [word.split("=")[0].replace("_", "-") for word in words
                             if re.match(r"--?[a-z]", word)]
                    for flag in given:
                        seen += 1
                        self.assertIn(flag, flags(table[name]), f"{path}: {code}")
        self.assertGreaterEqual(seen, 40)

    def test_flags_alone_in_the_documentation(self):
        every = {flag for command in commands().values() for flag in flags(command)}
        every |= {"--version", "--man", "--completion"}
        unused = set(OF_OTHERS)
        for path in documents():
            for code in code_of(path.read_text()):
                match = re.match(r"(--[a-z][a-z-]*)", code)
                if match and match[1] in OF_OTHERS:
                    unused.discard(match[1])
                elif match:
                    self.assertIn(match[1], every, path)
        self.assertEqual(unused, set(), "OF_OTHERS names what no page has")

    def test_tables_of_the_documentation_have_the_defaults(self):
        serve = {name: flag for flag in commands()["serve"]["flags"] for name in flag["names"]}
        checked = 0
        for path in documents():
            header = []
            for line in path.read_text().splitlines():
                cells = [cell.strip() for cell in line.strip("|").split("|")]
                if not line.startswith("|"):
                    header = []
                elif not header:
                    header = [cell.lower() for cell in cells]
                elif (match := re.match(r"`(--[a-z-]+)", cells[0])) and "default" in header:
                    said = cells[header.index("default")]
                    default = serve[match[1]]["default"]
                    number = re.fullmatch(r"([\d,]+)(?: (s|KiB|MiB))?", said)
                    if number:
                        unit = {"KiB": 2**10, "MiB": 2**20}.get(number[2], 1)
                        said = str(int(number[1].replace(",", "")) * unit)
                    self.assertIn(said, (default, "none" if default in (None, "0") else default,
                                         "`--max-num-seqs` + 1024" if default is None else default),
                                  f"{path}: {line}")
                    checked += 1
        self.assertGreaterEqual(checked, 8)

    def test_printed_defaults_are_those_of_the_configuration(self):
        shown = json.loads(harness.run("serve", "m", "--print-config", "--json").stdout)
        for flag in commands()["serve"]["flags"]:
            key = flag["names"][0].removeprefix("--")
            if key not in shown:
                continue
            value = shown[key]["value"]
            value = {True: "true", False: "false"}.get(value, value)
            value = ",".join(value) if isinstance(value, list) else value
            if flag["names"][0] != "--port":  # decided after all flags are read
                self.assertEqual(value, flag["default"], flag)


class Examples(harness.TestCase):
    def test_examples_run(self):
        """All but those that need a server or run for long; a test of the parser reads those."""
        table, ran = commands(), 0
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            (here / "prompt.txt").write_text("In the beginning")
            (here / "messages.json").write_text('[{"role": "user", "content": "Hello"}]')
            (here / "requests.jsonl").write_text('{"prompt_ids": [1, 2], "max_tokens": 2}\n')
            (here / "prompts.jsonl").write_text('{"id": "a", "prompt": "In"}\n{"prompt_ids": [1]}\n')
            (here / "shoal.yaml").write_text("max-num-seqs: 16\n")
            for command in table.values():
                for example in command["examples"]:
                    words = [word.replace("MODEL", str(harness.DEMO))
                             for word in shlex.split(example["words"])]
                    if command["name"].split()[0] in ("client", "bench", "shmtest") or (
                            command["name"] == "serve" and "--print-config" not in words):
                        continue
                    code = (0, 1) if command["name"] == "doctor" else (0,)
                    process = harness.start(*words, cwd=here, stdin=-1)
                    out, err = process.communicate(b"Hello\n")
                    self.assertIn(process.returncode, code, f"{words}: {err.decode()}")
                    self.assertNotEqual((out, "--out" in words), (b"", False), words)
                    ran += 1
            self.assertTrue((here / "logits.npy").exists())
            self.assertTrue((here / "logits" / "2.npy").exists())
        self.assertGreaterEqual(ran, 14)


class OnATerminal(harness.TestCase):
    def shown(self, *args, columns: int = 90, meanwhile=lambda process, text: None,
              **environment) -> str:
        """What the program prints on a terminal of this width, until it ends. meanwhile() is called
        once, with the process and with the list of what has been printed, which grows."""
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        before = dict(os.environ)
        os.environ.update({"TERM": "xterm", **environment})
        for name in {"COLUMNS", "NO_COLOR", "CLICOLOR_FORCE"} - environment.keys():
            os.environ.pop(name, None)
        try:
            process = harness.start(*args, stdin=inner, stdout=inner, stderr=inner)
        finally:
            os.environ.clear()
            os.environ.update(before)
        os.close(inner)
        text = []

        def read():
            try:
                while data := os.read(outer, 65536):
                    text.append(data)
            except OSError:
                pass  # the other end is closed

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        self.addCleanup(lambda: process.poll() is None and process.kill())
        meanwhile(process, text)
        process.wait()
        reader.join(harness.GUARD)
        os.close(outer)
        return b"".join(text).decode().replace("\r\n", "\n")

    def test_help_is_as_wide_as_the_terminal_and_its_headings_are_bold(self):
        for columns in (60, 90, 140):
            text = self.shown("serve", "--help", columns=columns)
            self.assertIn(f"{ESCAPE}1mMemory:{ESCAPE}0m\n", text)
            longest = max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in text.splitlines())
            self.assertLessEqual(longest, columns)
            self.assertGreater(longest, columns - 12)
        self.assertLessEqual(max(map(len, self.shown("serve", "--help", COLUMNS="50",
                                                     NO_COLOR="1").splitlines())), 50)

    def test_colours_only_if_the_reader_wants_them(self):
        self.assertIn(f"shoal: {ESCAPE}1;31merror:{ESCAPE}0m unknown", self.shown("serve", "--x"))
        for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            self.assertNotIn(ESCAPE, self.shown("serve", "--x", **environment))
            self.assertNotIn(ESCAPE, self.shown("serve", "--help", **environment))
        for words in (("serve", "--help"), ("--help",), ("help", "--man")):
            self.assertNotIn(ESCAPE.encode(), harness.run(*words).stdout)

    def test_a_log_on_a_terminal_has_short_times_and_a_pipe_whole_ones(self):
        words = ("generate", harness.DEMO, "--prompt", "In", "--max-tokens", 1, "-tp", 2,
                 "--log-level", "info")
        self.assertRegex(self.shown(*words),
                         r"(?m)(^|\x1b\[K)\d\d:\d\d:\d\d\.\d{3} INFO (front|rank \d) \[\d+\] ")
        process = harness.start(*words)
        err = process.communicate()[1].decode()
        self.assertRegex(err, r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z INFO (front|rank \d) ")

    def served(self, said: bytes, *flags) -> str:
        """What a server prints on a terminal. It is stopped once it has said this."""
        def stop(process, text: list[bytes]):
            harness.wait_until(lambda: said in b"".join(text), f"{said} on the terminal")
            process.terminate()

        return self.shown("serve", harness.DEMO, "--grpc-port", 0, *flags, meanwhile=stop,
                          NO_COLOR="1")

    def test_a_server_says_how_to_ask_it(self):
        self.assertRegex(self.served(b" try: "),
                         r'READY grpc=(\S+) http=(\S+) (?s:.)* INFO front \[\d+\] try: curl '
                         r'http://\2/v1/models, or shoal client --server \1 --prompt "Hello"\n')
        self.assertRegex(self.served(b" try: ", "--port", -1), r"try: shoal client --server \S+ --p")
        # This one needs a key.
        self.assertNotIn("try: ", self.served(b"READY ", "--api-key", "s3cret"))
        process = harness.start("serve", harness.DEMO, "--grpc-port", 0)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.assertTrue(process.stdout.readline().startswith(b"READY "))
        process.terminate()
        self.assertNotIn(b"try: ", process.communicate()[1])

    def test_generate_says_what_it_takes_from_the_file_of_the_model(self):
        words = ("generate", harness.DEMO, "--prompt-ids", 1, "--max-tokens", 1)
        says = ("sampling from generation_config.json: temperature 0.7, top-p 0.95; seed 0; "
                "--temperature 0 takes the most likely token\n")
        self.assertIn(f"shoal generate: {says}", self.shown(*words))
        self.assertNotIn("sampling from", self.shown(*words, "--temperature", 0))
        # A pipe gets it too, as of a batch (batch_test.py).
        self.assertEqual(harness.run(*words).stderr.decode(), f"shoal generate: {says}")
        self.assertEqual(harness.run(*words, "--temperature", 1, "--top-p", 1).stderr, b"")
        self.assertEqual(harness.run(*words, "--log-format", "json").stderr, b"")
        err = harness.start(*words, "--log-level", "info").communicate()[1].decode()
        self.assertRegex(err, rf"INFO front \[\d+\] {re.escape(says)}")

    @staticmethod
    def go_on_once_it_says_how_far(process, text: list[bytes]):
        rank = harness.stopped_rank(process.pid)
        said = rb"\r\x1b\[K0 of 2 requests, [\d.]+ tokens/s\r"
        harness.wait_until(lambda: re.search(said, b"".join(text)), "how far it is")
        os.kill(rank, signal.SIGCONT)

    def test_a_batch_says_how_far_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "requests.jsonl"
            file.write_text('{"prompt_ids": [1], "max_tokens": 400, "ignore_eos": true}\n' * 2)
            with harness.planted("0:step-50:stop"):  # until it has said so
                text = self.shown("generate", harness.DEMO, "--jsonl", file, "--step-timeout",
                                  5 * harness.GUARD, meanwhile=self.go_on_once_it_says_how_far)
        # The line is gone before an answer or the summary is written.
        self.assertRegex(text, r"\r\x1b\[K\{\"line\":1,")
        self.assertRegex(text, r"\nshoal generate: 2 requests, 2 prompt tokens, 800 generated tokens "
                               r"in [\d.]+ s \(without the start\)(: [\d.]+ tokens/s)?\n$")

    def test_a_bench_says_what_it_times(self):
        words, (outer, inner) = ("bench", "collectives", "--transport", "tcp"), pty.openpty()
        self.addCleanup(os.close, outer)
        for flags, stderr, says in (((), inner, b"\r\x1b[Kround 1 of 3: tcp"),
                                    (("--log-level", "info"), -1, b"] round 1 of 3: tcp\n")):
            process = harness.start(*words, *flags, stderr=stderr)
            self.addCleanup(process.communicate)
            self.addCleanup(process.kill)
            shown = b""
            while says not in shown:
                shown += os.read(outer if stderr == inner else process.stderr.fileno(), 4096)
        os.close(inner)


class Pipes(harness.TestCase):
    def without_a_reader(self, *args, **popen) -> tuple[int, bytes]:
        """The exit code and stderr, if nobody reads stdout."""
        reader, writer = os.pipe()
        os.close(reader)
        process = harness.start(*args, stdout=writer, **popen)
        os.close(writer)
        return process.wait(), process.communicate()[1]

    def test_a_reader_that_has_left_hears_no_error(self):
        prompt = ("--prompt", "In the beginning", "--max-tokens", 5, "--temperature", 0)
        server = self.serve(harness.DEMO)
        ready = server.wait_ready()
        with tempfile.NamedTemporaryFile("w", suffix=".json") as messages:
            messages.write('[{"role": "user", "content": "x"}]')
            messages.flush()
            for words in (("tokenize", harness.DEMO, "--text", "x"), ("help", "--json"),
                          ("generate", harness.DEMO, *prompt),
                          ("generate", harness.DEMO, *prompt, "--json"),
                          ("client", "--server", ready["grpc"], *prompt),
                          ("client", "--server", ready["grpc"], *prompt, "--json"),
                          ("client", "--server", ready["http"], "--messages", messages.name),
                          ("client", "--server", ready["http"], "--messages", messages.name,
                           "--json")):
                code, err = self.without_a_reader(*words)
                self.assertEqual((code, err), (-signal.SIGPIPE, b""), words)

    def test_a_broken_pipe_is_an_error_where_sigpipe_was_ignored(self):
        code, err = self.without_a_reader("tokenize", harness.DEMO, "--text", "x",
                                          restore_signals=False)  # Python ignores it
        self.assertEqual((code, err), (harness.OUTPUT, b"shoal: error: write the output to stdout: "
                                       b"Broken pipe\n"))

    def test_junit_is_written_also_if_nobody_reads_the_table(self):
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "shm.xml")
            code, err = self.without_a_reader("shmtest", "--matrix", "4k", "--junit", report, "--",
                                              "true")
            if b"namespace" in err:
                self.skipTest(err.decode())
            self.assertEqual(code, -signal.SIGPIPE, err)
            self.assertEqual(len(ElementTree.parse(report).findall(".//testcase")), 1)

    def test_a_pipe_that_another_program_made_non_blocking_is_read_to_its_end(self):
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        process = harness.start("tokenize", harness.DEMO, "--file", "-", stdin=reader)
        os.close(reader)
        harness.wait_until(lambda: process.poll() is not None or
                           Path(f"/proc/{process.pid}/stat").read_text().split(") ")[-1][0] == "S",
                           "a reader that waits")
        os.write(writer, b"x")
        os.close(writer)
        ids = harness.run("tokenize", harness.DEMO, "--text", "x").stdout
        self.assertEqual(process.communicate(), (ids, b""))

    def test_ids_from_a_pipe(self):
        for text in ("In the beginning", ""):
            ids = harness.run("tokenize", harness.DEMO, "--text", text, "--no-special").stdout
            process = harness.start("detokenize", harness.DEMO, "--ids", "-", stdin=-1)
            self.assertEqual(process.communicate(ids),
                             (text.encode() + b"\n", b""))
            self.assertEqual(process.returncode, 0)
        for bad in (b"", b"1,x\n", b"1\n2\n"):
            process = harness.start("detokenize", harness.DEMO, "--ids", "-", stdin=-1)
            err = process.communicate(bad)[1].decode()
            self.assertEqual(process.returncode, USAGE, bad)
            self.assertIn("the ids on stdin must be token ids such as 1,2,3", err)


class Client(harness.TestCase):
    def test_it_waits_for_a_server_and_reads_a_prompt_from_stdin(self):
        [port, http] = free_ports(2)
        ask = ("--temperature", 0, "--max-tokens", 3)
        waiting = [
            harness.start("client", "--server", f"127.0.0.1:{port}", "--wait", 120, *ask, stdin=-1),
            harness.start("client", "--server", f"127.0.0.1:{http}", "--wait", 120, "--messages",
                          "-", *ask, stdin=-1)]
        for one, text in zip(waiting, (b"In the beginning\n",
                                       b'[{"role": "user", "content": "x"}]')):
            one.stdin.write(text)
            one.stdin.close()
            one.stdin = None
        server = self.serve(harness.DEMO, "--grpc-port", port, "--port", http)
        server.wait_ready()
        out, err = waiting[0].communicate()
        self.assertEqual(waiting[0].returncode, 0, err)
        wanted = harness.run("generate", harness.DEMO, "--prompt", "In the beginning", *ask).stdout
        self.assertEqual(out, wanted)
        piped = harness.start("generate", harness.DEMO, "--prompt", "-", *ask, stdin=-1)
        self.assertEqual(piped.communicate(b"In the beginning\n")[0], wanted)
        err = waiting[1].communicate()[1]
        self.assertNotIn(b"no server", err)
        server.process.terminate()
        self.assertEqual(server.end(), 0)

    def test_it_waits_no_longer_than_it_is_told_to(self):
        for ask in (("--prompt", "x"), ("--chat-template-kwargs", "{}", "--messages", "-")):
            begun = time.monotonic()
            client = harness.start("client", "--server", "127.0.0.1:1", "--wait", 1, *ask, stdin=-1)
            err = client.communicate(b'[{"role": "user", "content": "x"}]')[1].decode()
            self.assertEqual(client.returncode, UNAVAILABLE, err)
            self.assertIn("no server answers at 127.0.0.1:1", err)
            self.assertGreaterEqual(time.monotonic() - begun, 1)


if __name__ == "__main__":
    harness.main()
