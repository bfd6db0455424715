"""Compares a whole model with the reference's answers: whole_model_test.py demo|smollm2 cpu|devices

The model is the bundled demo model, or SmolLM2-135M-Instruct (scripts/get-model smollm2; skipped if
it is not there). The devices are emulated, which takes seconds for every token.
"""
import json
import random
import sys
import unittest
from pathlib import Path

import numpy as np

import harness
from reference_answers import CLEAR_GAP, clear_stretch

NAME, PART = sys.argv.pop(1), sys.argv.pop(1)
FOLDER = harness.ROOT / "models" / NAME
PROMPTS = json.loads((harness.ORACLE / NAME / "expected.json").read_text())
RANKS = {"demo": (1, 2, 3, 8), "smollm2": (1, 2, 4)}[NAME]


class WholeModel(harness.TestCase):
    def test_tokenization(self):
        for prompt in PROMPTS:
            # A text made by a chat template contains its own special tokens. A plain text gets them
            # from the post-processor.
            flags = ("--no-special",) if prompt["kind"] == "chat" else ()
            with self.subTest(text=prompt["text"]):
                out = harness.run("tokenize", FOLDER, "--text", prompt["text"], "--json",
                                  *flags).stdout
                self.assertEqual(json.loads(out)["ids"], prompt["ids"])

    def test_logits_and_greedy_tokens(self):
        for ranks in RANKS:
            for prompt in PROMPTS:
                with self.subTest(ranks=ranks, text=prompt["text"]):
                    ids, greedy = prompt["ids"], prompt["greedy"]
                    rows = harness.logits(FOLDER, ids + greedy[:-1], "-tp", ranks)[len(ids) - 1 :]
                    for step, (token, gap) in enumerate(zip(greedy, prompt["gap"])):
                        if gap > CLEAR_GAP:
                            self.assertEqual(rows[step].argmax(), token,
                                             f"greedy token {step}, gap {gap}")
                    best = np.array([logit for _, logit in prompt["first_top"]])
                    ours = np.array([rows[0][token] for token, _ in prompt["first_top"]])
                    self.assertLessEqual(np.linalg.norm(ours - best) / np.linalg.norm(best), 4e-2)

    def test_generation_follows_the_reference_as_far_as_its_choices_are_clear(self):
        for prompt in PROMPTS:
            with self.subTest(text=prompt["text"]):
                out = harness.run("generate", FOLDER, "--prompt-ids",
                                  harness.ids_flag(prompt["ids"]), "--json", "-tp", 2,
                                  "--temperature", 0, "--max-tokens", len(prompt["greedy"])).stdout
                answer = json.loads(out)
                clear = next((i for i, gap in enumerate(prompt["gap"]) if gap <= CLEAR_GAP),
                             len(prompt["gap"]))
                self.assertEqual(answer["token_ids"][:clear], prompt["greedy"][:clear])
                if answer["token_ids"] == prompt["greedy"]:
                    self.assertEqual(answer["text"].strip(), prompt["answer"].strip())

    @unittest.skipIf(NAME == "demo", "e2e/same_bits/kernels/demo compares them")
    def test_every_kernel_set_gives_the_same_bits(self):
        vocab = json.loads((FOLDER / "config.json").read_text())["vocab_size"]
        draw = random.Random(2)
        ids = [draw.randrange(vocab) for _ in range(700)]
        best, *others = harness.kernel_sets()
        expected = harness.logits(FOLDER, ids, "--cpu-kernels", best)
        self.assertEqual(expected.shape, (len(ids), vocab))
        for kernels in others:
            # The plain loops would take minutes for all. No row depends on those that follow.
            some = ids[:64] if kernels == "reference" else ids
            with self.subTest(kernels=kernels):
                rows = harness.logits(FOLDER, some, "-tp", 2, "--cpu-kernels", kernels)
                self.assertTrue(rows.tobytes() == expected[:len(some)].tobytes())


class OnDevices(harness.TestCase):
    MODULE = Path(harness.SHOAL).parent / "fakes" / "libemulated_cuda_module.so"

    def check(self, prompt: dict, most: int, *flags):
        """Compares the first tokens, at most `most`, of the longest stretch whose choices are
        clear."""
        ids, greedy = clear_stretch([prompt])
        self.assertGreater(len(greedy), 1)
        # The whole start and each step may take as long as the test.
        out = harness.run("generate", FOLDER, "--prompt-ids", harness.ids_flag(ids), "--json",
                          "--temperature", 0, "--ignore-eos", "--max-tokens",
                          min(len(greedy), most), "--device", "cuda", "--cuda-module", self.MODULE,
                          "--kv-cache-memory", "64m", "--step-timeout", 10 * harness.GUARD, *flags,
                          guard=10 * harness.GUARD)
        self.assertEqual(json.loads(out.stdout)["token_ids"], greedy[:most])

    def test_greedy_tokens(self):
        for prompt in PROMPTS:
            with self.subTest(text=prompt["text"]):
                self.check(prompt, 5)

    def test_greedy_tokens_of_two_ranks(self):
        shortest = min(PROMPTS, key=lambda prompt: len(clear_stretch([prompt])[0]))
        self.check(shortest, 3, "-tp", 2, "--transport", "host-memfd")


if __name__ == "__main__":
    del globals()["OnDevices" if PART == "cpu" else "WholeModel"]
    if not (FOLDER / "config.json").exists():
        print(f"models/{NAME} is not here: scripts/get-model {NAME} brings it")
        sys.exit(harness.SKIPPED)
    harness.main()
