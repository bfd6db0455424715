"""What the program says to a user who has made a mistake."""
import json
import shutil
import tempfile
from pathlib import Path

import harness
from harness import BAD_MODEL, NO_MODEL, UNAVAILABLE, USAGE


class Errors(harness.TestCase):
    """An error says what is wrong and what to do, in one style, without codes and places."""

    def error(self, code: int, *args, stdin: bytes = b"") -> str:
        process = harness.start(*args, stdin=-1)
        out, err = process.communicate(stdin)
        self.assertEqual(process.returncode, code, err)
        self.assertEqual(out, b"")
        return err.decode()

    def test_no_codes_and_places(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = Path(folder) / "broken.json"
            broken.write_text("{")
            (Path(folder) / "ids.jsonl").write_text('{"prompt_ids": [99999999]}\n')
            refused = shutil.copytree(harness.DEMO, Path(folder) / "refused")
            config = json.loads((refused / "config.json").read_text())
            (refused / "config.json").write_text(json.dumps({**config, "model_type": "gemma2"}))
            cases = [
                (USAGE, "serve", "m", "--wibble"),
                (USAGE, "serve", "m", "--config", "/nowhere.yaml"),
                (NO_MODEL, "serve", "/nowhere"),
                (NO_MODEL, "tokenize", "/nowhere", "--text", "x"),
                (USAGE, "generate", harness.DEMO, "--messages", broken),
                (USAGE, "generate", harness.DEMO, "--prompt", "x", "--top-p", 2),
                (USAGE, "client", "--messages", broken),
                (USAGE, "client", "--prompt", "x", "--ssl-ca-certs", "/nowhere"),
                (USAGE, "client", "--prompt", "x", "--api-key-file", "/nowhere"),
                (UNAVAILABLE, "client", "--prompt", "x", "--server", "127.0.0.1:1"),
                (USAGE, "serve", harness.DEMO, "--ssl-certfile", "/nowhere", "--grpc-port", 0),
                (USAGE, "shmtest", "true"),
                (USAGE, "doctor", "--transport", "pigeon"),
                (USAGE, "doctor", "--nccl-version", "2.11"),
                (NO_MODEL, "logits", "/nowhere", "--prompt-ids", 1, "--out", broken),
                (USAGE, "logits", harness.DEMO, "--jsonl", Path(folder) / "ids.jsonl",
                 "--out-dir", folder),
                (USAGE, "detokenize", harness.DEMO, "--ids", "1,99999999"),
                (USAGE, "render", harness.DEMO, "--messages", broken),
                (NO_MODEL, "bench", "decode", "/nowhere"),
                (BAD_MODEL, "generate", refused, "--prompt", "x"),
                (BAD_MODEL, "logits", refused, "--prompt", "x", "--out", broken),
                (USAGE, "bench", "collectives", "--sizes", "many"),
                (USAGE, "version", "wibble"),
            ]
            for code, *words in cases:
                text = self.error(code, *words)
                self.assertRegex(text, r"^shoal: error: \S", words)
                self.assertNotRegex(text, r"^shoal: error: [A-Z]{5,}:|[A-Z]+_[A-Z]+|\.cc:\d|"
                                    r"\[front\]|\bUNKNOWN\b", words)
                debug = self.error(code, *words, "--log-level", "debug")
                if code != UNAVAILABLE:  # this one is no status but a sentence of its own
                    self.assertRegex(debug, r"(?m)^shoal: error: [A-Z_]+: ", words)

    def test_the_report_of_doctor_has_no_codes_and_places_either(self):
        for flags, begin in (((), r"(?![A-Z_]+: )"), (("--log-level", "debug"), r"NOT_FOUND: ")):
            process = harness.start("doctor", "/nowhere", *flags)
            out, err = process.communicate()
            self.assertEqual(process.returncode, NO_MODEL, err)
            self.assertNotIn(b"shoal: error", err)
            self.assertRegex(out.decode(), r"\ANO: \d+ ranks? could not be started: " + begin)
            if not flags:
                self.assertNotRegex(out.decode(), r"[A-Z]+_[A-Z]+|\.cc:\d|\[front\]")

    def test_json_errors_keep_their_codes(self):
        line = json.loads(self.error(USAGE, "serve", "m", "--wibble", "--log-format", "json"))
        self.assertEqual(line["level"], "ERROR")
        self.assertTrue(line["message"].startswith("INVALID_ARGUMENT: unknown flag"), line)
        line = json.loads(self.error(UNAVAILABLE, "client", "--prompt", "x", "--server",
                                     "127.0.0.1:1", "--log-format", "json"))
        self.assertIn("no server answers", line["message"])
        # The report of doctor is for people. The log contains the error for those who collect it.
        process = harness.start("doctor", "/nowhere", "--log-format", "json")
        out, err = process.communicate()
        self.assertRegex(out, rb"\ANO: \d+ ranks? could not be started: ")
        self.assertTrue(json.loads(err)["message"].startswith("NOT_FOUND: "), err)

    def test_what_to_do(self):
        hub = "HuggingFaceTB/SmolLM2-135M-Instruct"
        folder = hub.split("/")[1]
        # Files of the root have no slash in their names.
        download = (f'\n  hf download {hub} --exclude "*/*" --local-dir {folder} '
                    f"&& shoal serve {folder}\n")
        self.assertTrue(self.error(NO_MODEL, "serve", hub).endswith(download))
        self.assertIn(download, self.error(NO_MODEL, "tokenize", hub, "--text", "x"))
        self.assertNotIn("hf download", self.error(NO_MODEL, "serve", "/nowhere/x"))
        self.assertIn("did you mean --prompt \"hello there\"?",
                      self.error(USAGE, "client", "hello there"))
        self.assertIn("-- is missing before the command: shoal shmtest --jobs 2 -- true",
                      self.error(USAGE, "shmtest", "--jobs", "2", "true"))
        for server in ("localhost", "http://localhost"):
            for first, second, kind in (("50051 (gRPC) for a prompt", "8000", ("--prompt", "x")),
                                        ("8000 (HTTP) for --chat and --messages", "50051", ("--chat",))):
                said = self.error(USAGE, "client", "--server", server, *kind)
                self.assertIn("--server must be HOST:PORT", said)
                self.assertIn(f"use --server localhost:{first}, or localhost:{second} (", said)
        self.assertIn("use --kv-cache-memory",
                      self.error(USAGE, "serve", "m", "--mem-fraction-static", "0.9"))

    def test_a_number_that_is_too_large_is_shown_in_our_words(self):
        with tempfile.TemporaryDirectory() as folder:
            messages = Path(folder) / "messages.json"
            messages.write_text('[{"role": "user", "content": 1e400}]')
            model = shutil.copytree(harness.DEMO, Path(folder) / "model")
            config = (model / "config.json").read_text()
            (model / "config.json").write_text('{"rope_theta": 1e400, ' + config.lstrip()[1:])
            for code, stdin, *words in (
                    (USAGE, b'{"prompt":"In","max_tokens":1,"temperature":1e400}\n', "generate", harness.DEMO,
                     "--jsonl", "-"),
                    (USAGE, b"", "render", harness.DEMO, "--messages", messages),
                    (BAD_MODEL, b"", "generate", model, "--prompt", "x")):
                text = self.error(code, *words, stdin=stdin)
                self.assertRegex(text, r"byte \d+: the number 1e400 is too large", words)
                self.assertNotIn("json.exception", text, words)

    def test_a_prompt_is_needed(self):
        for words in (("client",), ("generate", harness.DEMO), ("client", "--prompt", "-")):
            self.assertIn("or a prompt on stdin, which is empty", self.error(USAGE, *words))


if __name__ == "__main__":
    harness.main()
