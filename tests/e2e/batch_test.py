"""Files of requests and prompts: `generate --jsonl` and `logits --jsonl`. Every wrong line is named,
every answer is told by its id, and a batch gives what its lines give alone.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import harness
from harness import DEMO, USAGE

TINY = harness.ORACLE / "llama-nine-heads"
SAMPLING = ("shoal generate: sampling from generation_config.json: temperature 0.7, top-p 0.95; seed 0 for each "
            'line that has no "seed" of its own; --temperature 0 takes the most likely token\n')
GOOD = {"prompt": "In the beginning", "max_tokens": 3, "temperature": 0}


class Batch(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, *lines) -> Path:
        """A file with these lines; those that are not text are written as JSON."""
        file = self.folder / "requests.jsonl"
        file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n"
                                for line in lines))
        return file

    def outcome(self, *args) -> tuple[int, list[dict], str]:
        """The exit code, the answers and stderr."""
        process = harness.start(*args)
        out, err = process.communicate(timeout=5 * harness.GUARD)
        return process.returncode, [json.loads(line) for line in out.splitlines()], err.decode()

    def check_summary(self, err: str, *, requests: str, tokens: int):
        """That this is all there is on stderr: "shoal generate: 2 requests, ..."."""
        self.assertRegex(err, rf"\Ashoal generate: {re.escape(requests)}, \d+ prompt tokens?, {tokens} "
                              r"generated tokens? in [\d.]+ s \(without the start\)(: [\d.]+ tokens/s)?\n\Z")


class Generate(Batch):
    def test_answers_repeat_the_id_and_keep_the_order(self):
        ids = ["a \u2603 \"b\"", 7, 18446744073709551615, -1.5, True, None]
        lines = [{"id": name, "max_tokens": 1 + 3 * (i % 2), "prompt_ids": [i], "ignore_eos": True}
                 for i, name in enumerate(ids)]
        file = self.write(*lines, {"prompt_ids": [9], "max_tokens": 1})
        code, answers, err = self.outcome("generate", DEMO, "--jsonl", file)
        self.assertEqual(code, 0, err)
        said, done = err.splitlines(keepends=True)
        self.assertEqual(said, SAMPLING)
        self.check_summary(done, requests="7 requests", tokens=16)
        self.assertEqual([answer.get("id") for answer in answers], [*ids, None])
        self.assertEqual(["id" in answer for answer in answers], [True] * 5 + [False] * 2)
        self.assertEqual([answer["prompt_token_ids"] for answer in answers],
                         [[i] for i in range(6)] + [[9]])
        self.assertEqual(list(answers[0])[:2], ["id", "line"])
        self.assertEqual([answer["line"] for answer in answers], list(range(1, 8)))

    def test_an_answer_has_its_sampling_which_a_line_takes(self):
        line = {"prompt_ids": [5, 6], "max_tokens": 6, "ignore_eos": True}
        own = {"temperature": 1.5, "top_k": 40, "seed": 2**64 - 1}
        file = self.write(line, {**line, **own})
        code, answers, err = self.outcome("generate", DEMO, "--jsonl", file, "--top-p", 0.5)
        self.assertEqual(code, 0, err)
        # The temperature is that of the model's file.
        usual = {"temperature": 0.7, "top_p": 0.5, "top_k": 0, "min_p": 0, "repetition_penalty": 1,
                 "presence_penalty": 0, "frequency_penalty": 0, "seed": 0}
        self.assertEqual([answer["sampling"] for answer in answers], [usual, {**usual, **own}])
        again = self.write(*({**line, **answer["sampling"]} for answer in answers))
        self.assertEqual(self.outcome("generate", DEMO, "--jsonl", again)[:2], (0, answers))
        alone = harness.run("generate", DEMO, "--prompt-ids", "5,6", "--max-tokens", 6,
                            "--ignore-eos", "--top-p", 0.5, "--json").stdout
        self.assertEqual({"line": 1, **json.loads(alone)}, answers[0])

    BAD = ['{"id":"open",', {"id": "typo", **GOOD, "max_token": 2}, {"id": [1], **GOOD},
           {"id": 3, **GOOD, "temperature": -1}, {"id": "long", "prompt": "word " * 3000,
                                                             "temperature": 0}]
    SAYS = ["line 2: not JSON at byte ", 'line 3: unknown field "max_token"; did you mean "max_tokens"?',
            'line 5: "id" must be a string, a number or a boolean', "line 6: temperature must be",
            "line 7: the prompt has more than"]

    def mixed(self) -> Path:
        return self.write({"id": "first", **GOOD}, self.BAD[0], self.BAD[1], "", *self.BAD[2:],
                          {"id": "last", **GOOD})

    def test_all_wrong_lines_are_named_and_nothing_runs(self):
        code, answers, err = self.outcome("generate", DEMO, "--jsonl", self.mixed())
        self.assertEqual((code, answers), (USAGE, []))
        lines = err.splitlines()
        self.assertRegex(lines[0], r"^shoal: error: --jsonl .*: 5 of 7 lines are wrong:$")
        self.assertEqual(len(lines), 7, err)
        for line, says in zip(lines[1:], self.SAYS):
            self.assertTrue(line.startswith("  " + says), err)
        self.assertEqual(lines[-1], "nothing was run; --keep-going runs the 2 other lines")

    def test_many_wrong_lines_are_counted(self):
        file = self.write(*[{**GOOD, "top_p": 2}] * 50)
        code, _, err = self.outcome("generate", DEMO, "--jsonl", file)
        self.assertEqual(code, USAGE)
        self.assertIn("50 of 50 lines are wrong", err)
        self.assertEqual(err.count("top_p must be"), 20)
        self.assertTrue(err.endswith("\n  and 30 more lines\nnothing was run; --keep-going names all\n"),
                        err)
        code, answers, _ = self.outcome("generate", DEMO, "--jsonl", file, "--keep-going")
        self.assertEqual((code, [answer["line"] for answer in answers]),
                         (1, list(range(1, 51))))
        # Long reasons leave room for fewer lines, and the count stays right.
        file = self.write(*[{**GOOD, "x" * 70: 2}] * 50)
        _, _, err = self.outcome("generate", DEMO, "--jsonl", file)
        named = err.count("unknown field")
        self.assertTrue(1 < named < 20, err)
        self.assertTrue(err.endswith(f"\n  and {50 - named} more lines\nnothing was run; "
                                     "--keep-going names all\n"), err)

    def test_a_prompt_beyond_the_cache_is_named_before_anything_runs(self):
        flags = ("--kv-cache-memory", "96k")
        file = self.write(GOOD, {"id": "big", "prompt_ids": [1] * 200, "max_tokens": 1, "temperature": 0})
        code, answers, err = self.outcome("generate", DEMO, "--jsonl", file, *flags)
        self.assertEqual((code, answers), (USAGE, []), err)
        self.assertIn("line 2: ", err)
        code, answers, err = self.outcome("generate", DEMO, "--jsonl", file, *flags,
                                          "--keep-going")
        self.assertEqual(code, 1, err)
        self.check_summary(err, requests="2 requests (1 done, 1 failed)", tokens=3)
        self.assertEqual(len(answers[0]["token_ids"]), 3)
        self.assertEqual((answers[1]["id"], answers[1]["line"]), ("big", 2))

    def test_keep_going_runs_the_good_lines(self):
        code, answers, err = self.outcome("generate", DEMO, "--jsonl", self.mixed(),
                                          "--keep-going", "-tp", 2)
        self.assertEqual((code, len(answers)), (1, 7), err)
        self.check_summary(err, requests="7 requests (2 done, 5 failed)", tokens=6)
        [alone] = harness.generate_jsonl(DEMO, [GOOD])
        for at, name in ((0, "first"), (6, "last")):
            self.assertEqual((answers[at]["id"], answers[at]["token_ids"]),
                             (name, alone["token_ids"]))
        self.assertEqual([answer.get("id") for answer in answers[1:6]],
                         [None, "typo", None, 3, "long"])
        self.assertEqual([answer["line"] for answer in answers], [1, 2, 3, 5, 6, 7, 8])
        for answer, says in zip(answers[1:6], self.SAYS):
            # Its number is in "line", and not in the message too.
            self.assertTrue(answer["error"]["message"].startswith(says.partition(": ")[2]), answer)
            self.assertEqual(answer["error"]["code"], "INVALID_ARGUMENT")
        self.assertEqual(answers[4]["error"]["field"], "temperature")
        self.assertNotIn("field", answers[1]["error"])

    def test_the_readme_shows_an_error_as_it_is(self):
        line = re.search(r'`(\{"id":"a","line":3,"error":.*\}\})`',
                         (harness.ROOT / "README.md").read_text())[1]
        file = self.write(GOOD, {**GOOD, "wibble": 1}, {"id": "a", **GOOD, "top_p": 2})
        _, answers, _ = self.outcome("generate", DEMO, "--jsonl", file, "--keep-going")
        self.assertIn("top_p must be", answers[2]["error"].pop("message"))
        shown = json.loads(line)
        shown["error"].pop("message")
        self.assertEqual(answers[2], shown)
        # One about a field that no line can have names none.
        self.assertEqual(sorted(answers[1]["error"]), ["code", "message"])

    def test_keep_going_without_a_good_line_or_a_bad_one(self):
        code, answers, err = self.outcome("generate", DEMO, "--jsonl", self.write("[]"),
                                          "--keep-going")
        self.assertEqual((code, err), (1, ""))
        self.assertEqual(answers[0]["line"], 1)
        code, answers, err = self.outcome("generate", DEMO, "--jsonl", self.write(GOOD),
                                          "--keep-going")
        self.assertEqual((code, len(answers)), (0, 1), err)
        self.check_summary(err, requests="1 request", tokens=3)

    def test_the_log_has_the_summary(self):
        file = self.write(*[{"prompt_ids": [1, 2], "max_tokens": 4, "ignore_eos": True}] * 3, "[]")
        words = ("generate", DEMO, "--jsonl", file, "--keep-going")
        # A log of JSON has nothing else, and below this level no line for it.
        self.assertEqual(self.outcome(*words, "--log-format", "json")[2], "")
        _, _, err = self.outcome(*words, "--log-format", "json", "--log-level", "info")
        said = [json.loads(line)["message"] for line in err.splitlines()]
        self.assertEqual(len([one for one in said if "12 generated tokens in" in one]), 1, said)
        _, _, err = self.outcome(*words, "--log-level", "info")
        self.assertNotIn("shoal generate: ", err)
        self.assertRegex(err, r"INFO front .*\] 4 requests \(3 done, 1 failed\), 6 prompt tokens, "
                              r"12 generated tokens in [\d.]+ s \(without the start\)(: [\d.]+ tokens/s)?\n")


    def test_the_log_says_at_the_end_who_made_the_others_wait(self):
        long = {"prompt": "In", "max_tokens": 64, "ignore_eos": True}
        for request in (("--prompt", "In", "--max-tokens", 64, "--ignore-eos"),
                        ("--jsonl", self.write(long))):
            # Each rank tells of its steps after the 12th one, because that takes so long, and the front
            # has read it long before the 64th one is done.
            with self.subTest(request[0]), harness.planted("1:step-12:compute-2"):
                process = harness.start("generate", DEMO, *request, "-tp", 2, "--threads-per-rank", 1,
                                        "--log-level", "info")
                err = process.communicate(timeout=5 * harness.GUARD)[1].decode()
                self.assertEqual(process.returncode, 0, err)
                self.assertRegex(err, r"INFO front .*\] in the last minute of steps rank 1 makes the "
                                      r"others wait \d+ % of the step\n")


    def test_a_file_without_a_line_is_said(self):
        for words in (("generate",), ("generate", "--keep-going")):
            for file in (os.devnull, self.write("", " ")):
                self.assertEqual(self.outcome(*words, DEMO, "--jsonl", file),
                                 (0, [], "shoal generate: 0 requests\n"))
        out = self.folder / "out"
        self.assertEqual(self.outcome("logits", DEMO, "--jsonl", os.devnull, "--out-dir", out),
                         (0, [], "shoal logits: 0 prompts\n"))
        self.assertFalse(out.exists())


class Ended(Batch):
    """A batch that ends early: a rank stands still in a step in which only the first line, a long
    one, is left."""
    LONG = {"id": "long", "prompt_ids": [1], "max_tokens": 400, "ignore_eos": True}
    SHORT = {"prompt_ids": [2], "max_tokens": 2, "ignore_eos": True}

    def setUp(self):
        super().setUp()
        file = self.write(self.LONG, *[self.SHORT] * 20, {**self.LONG, "id": "last"})
        with harness.planted("0:step-40:stop"):
            self.process = harness.start("generate", DEMO, "--jsonl", file, "-tp", 2,
                                         "--max-restarts", 0, "--step-timeout", 3600)
        self.addCleanup(lambda: self.process.poll() is None and self.process.kill())
        self.rank = harness.stopped_rank(self.process.pid)

    def check(self, out: bytes, code: str, says: str):
        answers = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(len(answers), 22)
        self.assertEqual([len(answer["token_ids"]) for answer in answers[1:-1]], [2] * 20)
        for answer, name, line in (answers[0], "long", 1), (answers[-1], "last", 22):
            self.assertEqual((answer["id"], answer["line"]), (name, line))
            self.assertEqual(answer["error"]["code"], code, answer)
            self.assertIn(says, answer["error"]["message"])

    def test_lost_ranks_leave_what_is_done(self):
        os.kill(self.rank, signal.SIGKILL)
        out, err = self.process.communicate()
        self.assertEqual(self.process.returncode, harness.WORKER_DIED, err)
        self.check(out, "ABORTED", "was killed by signal 9")
        self.assertIn(b"was killed by signal 9", err)

    def test_a_signal_leaves_what_is_done(self):
        os.kill(self.process.pid, signal.SIGTERM)
        # Nobody waits for the step, which does not end, nor for its time-out of an hour.
        out, err = self.process.communicate()
        self.assertEqual(self.process.returncode, 128 + signal.SIGTERM)
        self.check(out, "CANCELLED", "SIGTERM ended the batch before the answer")
        said, done, error = err.decode().splitlines(keepends=True)
        self.assertEqual(said, SAMPLING)
        self.check_summary(done, requests="22 requests (20 done, 2 failed)", tokens=40)
        self.assertEqual(error, "shoal: error: SIGTERM ended the batch: 20 of 22 lines have an "
                                "answer\n")

    def test_a_second_signal_does_not_wait(self):
        os.kill(self.process.pid, signal.SIGINT)
        out = b"".join(self.process.stdout.readline() for _ in range(22))
        self.check(out, "CANCELLED", "SIGINT ended the batch before the answer")
        os.kill(self.process.pid, signal.SIGINT)
        self.process.communicate()
        self.assertEqual(self.process.returncode, 128 + signal.SIGINT)


class Logits(Batch):
    PROMPTS = [{"id": "text", "prompt": "In the beginning God"}, "", {"prompt_ids": [5]},
               {"id": 2, "prompt_ids": list(range(1, 90))}, {"prompt_ids": [7, 8, 9]}]

    def test_a_file_gives_the_bits_of_single_runs(self):
        file, out = self.write(*self.PROMPTS), self.folder / "out"
        for flags in ((), ("-tp", 2, "--chunk", 7), ("--decode-from", 2)):
            code, answers, err = self.outcome("logits", DEMO, "--jsonl", file, "--out-dir", out,
                                              *flags)
            self.assertEqual((code, err), (0, ""))
            self.assertEqual([answer["line"] for answer in answers], [1, 3, 4, 5])
            self.assertEqual([answer.get("id") for answer in answers], ["text", None, 2, None])
            self.assertEqual(sorted(path.name for path in out.iterdir()),
                             ["1.npy", "3.npy", "4.npy", "5.npy"])
            for prompt, answer in zip(filter(None, self.PROMPTS), answers):
                with self.subTest(prompt=prompt, flags=flags):
                    bits = Path(answer["file"]).read_bytes()
                    ids = prompt.get("prompt_ids") or self.ids(prompt["prompt"])
                    self.assertTrue(bits == harness.logits_file(DEMO, ids))
                    self.assertEqual((answer["prompt_token_ids"], answer["tokens"]), (ids, len(ids)))
                    matrix = np.load(answer["file"])
                    self.assertEqual((answer["dtype"], answer["shape"]),
                                     (str(matrix.dtype), list(matrix.shape)))
                    self.assertEqual(len(matrix), len(ids))

    def ids(self, text: str) -> list[int]:
        out = harness.run("tokenize", DEMO, "--text", text).stdout
        return [int(one) for one in out.split(b",")]

    def test_a_prompt_is_text_too(self):
        text = "In the beginning God"
        expected = harness.logits_file(DEMO, self.ids(text))
        out = self.folder / "x.npy"
        harness.run("logits", DEMO, "--prompt", text, "--out", out)
        self.assertTrue(out.read_bytes() == expected)
        out.unlink()
        process = harness.start("logits", DEMO, "--out", out, stdin=-1)
        written, says = process.communicate(text.encode() + b"\n")
        self.assertEqual((written, process.returncode), (b"", 0), says)
        self.assertTrue(out.read_bytes() == expected)
        # It says what it has written, and in Python how to read it.
        found = re.fullmatch(r"shoal logits: wrote float32 (\[\d+, \d+\]): raw logits; row i predicts the "
                             r"token after token i; Python reads it with numpy\.load\((\".*\")\)\n", says.decode())
        self.assertIsNotNone(found, says)
        matrix = np.load(json.loads(found[2]))
        self.assertEqual((matrix.dtype, list(matrix.shape)), (np.float32, json.loads(found[1])))

    def test_the_line_that_makes_a_prompt_of_messages_works(self):
        messages = self.folder / "messages.json"
        messages.write_text('[{"role": "user", "content": "Hello"}]')
        _, _, err = self.outcome("logits", DEMO, "--jsonl", self.write({"messages": []}), "--out-dir",
                                 self.folder / "out")
        line = re.search(r"this makes one of chat messages: (echo .*)", err)[1]
        for name, value in (("shoal", " ".join([*harness.EMULATOR, harness.SHOAL])), ("MODEL", DEMO),
                            ("FILE", messages)):
            line = line.replace(name, str(value), 1)
        made = json.loads(subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout)
        ids = harness.run("render", DEMO, "--messages", messages, "--ids").stdout
        self.assertEqual(made, {"prompt_ids": [int(one) for one in ids.split(b",")]})

    def test_a_row_is_about_the_token_after_it(self):
        """And logprobs are natural, of that row as it is, whatever the temperature."""
        ids = [0, 1151, 262]
        row = harness.logits(DEMO, ids)[-1].astype(np.float64)
        expected = row - row.max() - np.log(np.sum(np.exp(row - row.max())))
        [answer] = harness.generate_jsonl(DEMO, [{"prompt_ids": ids, "max_tokens": 1, "seed": 3,
                                                  "temperature": 2, "logprobs": 2}])
        [token] = answer["logprobs"]
        for name, logprob in ((token["token_id"], token["logprob"]), *token["top"]):
            self.assertAlmostEqual(logprob, expected[name], 4)
        self.assertEqual(token["top"][0][0], int(np.argmax(row)))

    def test_a_chunk_is_bounded_by_what_crosses_the_channel_at_once(self):
        """256 MiB, which are 64 tokens of this vocabulary."""
        model, vocab = self.folder / "model", 1 << 20
        shutil.copytree(TINY, model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "vocab_size": vocab}))
        flags = ("logits", model, "--prompt-ids", harness.ids_flag([1] * 65), "--out",
                 self.folder / "x.npy", "--chunk")
        code, _, err = self.outcome(*flags, 65)
        self.assertEqual(code, USAGE, err)
        self.assertIn(f"--chunk must be in [1, 64] with {vocab} logits a token, not 65", err)
        # A chunk that fits comes as far as the weights, which have no such vocabulary.
        self.assertEqual(self.outcome(*flags, 64)[0], harness.BAD_MODEL)

    def test_wrong_lines_are_named_and_nothing_is_written(self):
        vocab = json.loads((TINY / "config.json").read_text())["vocab_size"]
        file = self.write({"prompt_ids": [1]}, {"prompt_ids": [vocab]}, {"prompt_ids": []},
                          {"prompt_ids": [1], "max_tokens": 3}, {"prompt_ids": [1] * 1000}, {})
        out = self.folder / "out"
        code, answers, err = self.outcome("logits", TINY, "--jsonl", file, "--out-dir", out)
        self.assertEqual((code, answers), (USAGE, []), err)
        self.assertIn("5 of 6 lines are wrong:", err)
        for line in range(2, 7):
            self.assertIn(f"\n  line {line}: ", err)
        self.assertFalse(out.exists())

    def test_a_folder_that_cannot_be_written_is_reported_before_the_start(self):
        file = self.write({"prompt_ids": [1]})
        for bad in (file, self.folder / "no" / "where"):
            code, _, err = self.outcome("logits", TINY, "--jsonl", file, "--out-dir", bad)
            self.assertEqual(code, USAGE)
            self.assertIn(f"--out-dir {bad} cannot be made or written", err)


if __name__ == "__main__":
    harness.main()
