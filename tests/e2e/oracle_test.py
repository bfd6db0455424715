"""Compares the program with the answers of the reference implementation: oracle_test.py CASE

CASE is a folder of tests/data/oracle, whose README.md defines the tolerances.
"""
import json
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

import breadth
import harness
from reference_answers import CLEAR_GAP

CASE = sys.argv.pop(1)
FOLDER = harness.ORACLE / CASE
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def jsonl(command: str, values: list, *flags) -> list[dict]:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(value) + "\n" for value in values))
        file.flush()
        out = harness.run(command, FOLDER, "--jsonl", file.name, *flags).stdout.decode()
    return [json.loads(line) for line in out.split("\n") if line]


class Model(harness.TestCase):
    """Logits and greedy tokens, for every number of ranks that the case lists."""

    def distances(self, ours: np.ndarray, reference: np.ndarray) -> np.ndarray:
        """For each row: |ours - reference| / |reference|."""
        self.assertEqual(ours.shape, reference.shape)
        ours, reference = ours.astype(np.float64), reference.astype(np.float64)
        return np.linalg.norm(ours - reference, axis=1) / np.linalg.norm(reference, axis=1)

    def check_distances(self, ours: np.ndarray, reference: np.ndarray):
        distance = self.distances(ours, reference)
        config = json.loads((FOLDER / "config.json").read_text())
        if (config.get("dtype") or config["torch_dtype"]) == "float32":
            self.assertLessEqual(distance.max(), 1e-4)
        else:
            self.assertLessEqual(distance.mean(), 1.5e-2)
            self.assertLessEqual(distance.max(), 4e-2)

    def check_prompt(self, prompt: dict, ranks: int):
        # Feed the reference's tokens, because otherwise one wrong choice would make all later ones
        # wrong.
        ids, greedy = prompt["ids"], prompt["greedy"]
        ours = harness.logits(FOLDER, ids + greedy[:-1], "-tp", ranks)
        reference = np.load(FOLDER / prompt["logits"])
        self.check_distances(ours[: len(ids)], reference)
        choices = ours[len(ids) - 1 :].argmax(axis=1)
        for step, (token, gap) in enumerate(zip(greedy, prompt["gap"])):
            if gap > CLEAR_GAP:
                self.assertEqual(choices[step], token, f"greedy token {step}, gap {gap}")

    def test_logits_and_greedy_tokens(self):
        sizes = EXPECTED["tensor_parallel_sizes"]
        # Under a sanitizer only the smallest and the largest number. The release build tries all,
        # and same_bits_test.py compares the others with one rank.
        for ranks in (sizes[0], sizes[-1]) if breadth.NARROW else sizes:
            for k, prompt in enumerate(EXPECTED["prompts"]):
                with self.subTest(ranks=ranks, prompt=k):
                    self.check_prompt(prompt, ranks)

    @unittest.skipUnless("stretched" in EXPECTED, "the case has no rope scaling")
    def test_logits_at_three_times_the_original_length(self):
        stretched = EXPECTED["stretched"]
        ids = stretched["ids"]
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder)
            for file in FOLDER.iterdir():
                (model / file.name).symlink_to(file)
            config = {**json.loads((FOLDER / "config.json").read_text()), **stretched["config"]}
            (model / "config.json").unlink()
            (model / "config.json").write_text(json.dumps(config))
            self.assertEqual(len(ids), 3 * stretched["original"])
            if stretched["config"]:
                # Without the flag the length that the file gives is the limit, as ever.
                refused = harness.run("logits", model, "--prompt-ids", harness.ids_flag(ids),
                                      "--out", "/dev/null", code=harness.USAGE)
                self.assertIn(f"the {stretched['original']} of --max-model-len",
                              refused.stderr.decode())
            refused = harness.run("logits", model, "--prompt-ids", 1, "--out", "/dev/null",
                                  "--max-model-len", stretched["limit"] + 1, code=harness.USAGE)
            self.assertIn(f"[2, {stretched['limit']}]", refused.stderr.decode())
            reference = np.load(FOLDER / stretched["logits"])
            for ranks in (1, EXPECTED["tensor_parallel_sizes"][-1]):
                ours = harness.logits(model, ids, "-tp", ranks, "--max-model-len",
                                      stretched["limit"])
                self.check_distances(ours[stretched["first_row"]:], reference)

    def test_one_rank_too_many_says_what_the_limit_is(self):
        heads = json.loads((FOLDER / "config.json").read_text())["num_attention_heads"]
        limit = min(16, heads)
        result = harness.run("logits", FOLDER, "--prompt-ids", 1, "--out", "/dev/null", "-tp",
                             limit + 1, code=harness.USAGE)
        self.assertIn(str(limit), result.stderr.decode())


class Tokens(harness.TestCase):
    """Checks tokenize and detokenize, each entry exactly."""

    def test_tokenize(self):
        entries = EXPECTED["tokenize"]
        for key, flags in (("ids", ()), ("ids_without_special", ("--no-special",))):
            answers = jsonl("tokenize", [entry["text"] for entry in entries], *flags)
            self.assertEqual(len(answers), len(entries))
            for entry, answer in zip(entries, answers):
                with self.subTest(text=entry["text"], kind=key):
                    self.assertEqual(answer["ids"], entry[key])

    def test_detokenize(self):
        entries = EXPECTED["detokenize"]
        for key, flags in (("text", ()), ("text_without_special", ("--skip-special",))):
            answers = jsonl("detokenize", [entry["ids"] for entry in entries], *flags)
            self.assertEqual(len(answers), len(entries))
            for entry, answer in zip(entries, answers):
                with self.subTest(ids=entry["ids"], kind=key):
                    self.assertEqual(answer["text"], entry[key])

    def test_tokenizer_json_alone_is_enough(self):
        entry = next(e for e in EXPECTED["tokenize"] if e["text"] == "Hello, world!")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "tokenizer.json").write_bytes((FOLDER / "tokenizer.json").read_bytes())
            out = harness.run("tokenize", folder, "--text", entry["text"], "--json").stdout
        self.assertEqual(json.loads(out)["ids"], entry["ids"])


if __name__ == "__main__":
    harness.main()
