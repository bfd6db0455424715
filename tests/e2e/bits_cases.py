"""The models, prompts and requests whose bits are committed, for the tests that compare bits.

tests/data/same_bits.json has what the logits and the answers of some models hash to on every
processor and with every compiler. "same_bits_test.py expect" prints it anew.
"""
import hashlib
import json
import random

import numpy as np

import harness

HASHED = ["llama-linear-bias-f32", "llama3-gqa-tied-sharded", "llama2-mha-f16", "mistral-window",
          "qwen3-norm-yarn", "demo"]
HASHES = harness.ROOT / "tests" / "data" / "same_bits.json"


def hash_of(data) -> str:
    return hashlib.sha256(data if isinstance(data, bytes)
                          else json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]


def drawn(answers: list[dict]) -> list[tuple]:
    """Tokens and logprobs, as float32, because not all programs print them with the same
    number of digits."""
    return [(answer["token_ids"],
             [(entry["token_id"], np.float32(entry["logprob"]),
               [(other, np.float32(value)) for other, value in entry["top"]])
              for entry in answer["logprobs"] or []]) for answer in answers]


class BitsCase:
    """A folder of tests/data/oracle, or "demo" for the bundled model."""

    def __init__(self, name: str):
        self.name = name
        self.folder = harness.DEMO if name == "demo" else harness.ORACLE / name
        self.expected = json.loads((harness.ORACLE / name / "expected.json").read_text())
        self.config = json.loads((self.folder / "config.json").read_text())

    def hashes(self) -> dict[str, str]:
        """The hashes of the file that `shoal logits` writes for prompt_ids()[:90], and of the
        answers to mixed_requests(). Only the models of HASHED have such hashes."""
        return json.loads(HASHES.read_text())[self.name]

    def prompt_ids(self) -> list[int]:
        """Several KV blocks, attention chunks and prefill pieces long, and a multiple of none."""
        if self.name != "demo":
            return self.expected["prompts"][1]["ids"]
        return [random.Random(1).randrange(4, self.config["vocab_size"]) for _ in range(391)]

    def mixed_requests(self) -> list[dict]:
        """Every kind of sampling beside every other, with lengths that start and end anywhere."""
        draw = random.Random(7)
        below = self.config["vocab_size"]
        ids = lambda n: [draw.randrange(3, below) for _ in range(n)]  # noqa: E731
        return [
            {"prompt_ids": ids(5), "max_tokens": 24, "temperature": 0,
             "logprobs": 3, "ignore_eos": True},
            {"prompt_ids": ids(41), "max_tokens": 9, "temperature": 0},
            {"prompt_ids": ids(17), "max_tokens": 30, "temperature": 1,
             "seed": 11, "logprobs": 5, "ignore_eos": True},
            {"prompt_ids": ids(2), "max_tokens": 30, "temperature": 0.8, "seed": 12,
             "top_k": 20, "top_p": 0.9, "ignore_eos": True},
            {"prompt_ids": ids(33), "max_tokens": 13, "temperature": 1.3,
             "seed": 13, "top_p": 0.7, "logprobs": 1},
            {"prompt_ids": ids(9), "max_tokens": 20, "temperature": 1,
             "seed": 14, "min_p": 0.05, "ignore_eos": True},
            {"prompt_ids": ids(12), "max_tokens": 26, "temperature": 0.9, "seed": 15,
             "repetition_penalty": 1.3, "logprobs": 2, "ignore_eos": True},
            {"prompt_ids": ids(25), "max_tokens": 21, "temperature": 0, "presence_penalty": 0.7,
             "frequency_penalty": 0.4, "ignore_eos": True},
            {"prompt_ids": ids(7), "max_tokens": 28, "temperature": 1,
             "seed": 16, "stop": ["e"], "logprobs": 0},
            {"prompt_ids": ids(64), "max_tokens": 16, "temperature": 1,
             "seed": 17, "stop_token_ids": [5, 300, 301, 302]},
            {"prompt_ids": ids(1), "max_tokens": 1, "temperature": 1, "seed": 18, "logprobs": 8},
            {"prompt": "In the beginning", "max_tokens": 25, "temperature": 0.7, "seed": 19, "top_k": 5,
             "ignore_eos": True},
            {"prompt_ids": ids(50), "max_tokens": 30, "temperature": 1,
             "seed": 2**63, "top_k": 3, "ignore_eos": True},
            {"prompt_ids": ids(3), "max_tokens": 30, "temperature": 0,
             "logprobs": 2, "ignore_eos": True},
        ]
