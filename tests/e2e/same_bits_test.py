"""The same bits, however and wherever a model is run: same_bits_test.py PART CASE

PART is logits, kernels, generate or emulated. CASE is a folder of tests/data/oracle, or demo for the
bundled model. Files and answers are compared for equality, without a tolerance anywhere
(docs/architecture.md, section 5). Under a sanitizer, which looks for other things, settings are
combined in pairs only (breadth.py); the release build's run tries every way.

tests/data/same_bits.json has what the logits and the answers of some cases hash to on every
processor. If they are meant to change, "same_bits_test.py expect" prints the new ones.
"""
import contextlib
import json
import os
import signal
import sys
import unittest

import breadth
import harness
from bits_cases import HASHED, HASHES, BitsCase, drawn, hash_of
from http_client import sum_of_metrics

PART, CASE = sys.argv.pop(1), sys.argv.pop(1) if len(sys.argv) > 1 else HASHED[0]
MODEL = BitsCase(CASE)
FOLDER, EXPECTED, CONFIG = MODEL.folder, MODEL.expected, MODEL.config
prompt_ids, mixed_requests = MODEL.prompt_ids, MODEL.mixed_requests


def ranks() -> list[int]:
    return [1, 2, 3, 5, 8] if CASE == "demo" else EXPECTED["tensor_parallel_sizes"]


def other_type() -> str:
    """A data type that the model is not stored in."""
    stored = CONFIG.get("dtype") or CONFIG["torch_dtype"]
    return "float32" if stored != "float32" else "bfloat16"


def settings(tokens: int) -> list[list]:
    """The values for each argument of flags_of(), for a prompt of `tokens` tokens."""
    return [ranks()[:3], [1, 2], ["shm", "tcp"], [None, 7, 64], [None, tokens // 2, tokens - 1]]


def flags_of(ranks_: int, threads: int, transport: str, chunk: int | None, decode_from: int | None,
             *more) -> tuple:
    return ("-tp", ranks_, "--threads-per-rank", threads, "--transport", transport,
            *(("--chunk", chunk) if chunk else ()),
            *(("--decode-from", decode_from) if decode_from else ()), *more)


TYPE_VARIANTS = [("-tp", 2, "--chunk", 7),
                 ("-tp", ranks()[-1], "--transport", "tcp", "--decode-from", 50)]


class Logits(harness.TestCase):
    def check(self, ids: list[int], variants: list[tuple], *common):
        expected = harness.logits_file(FOLDER, ids, "-tp", 1, "--threads-per-rank", 1, *common)
        self.assertGreater(len(expected), 4 * len(ids) * CONFIG["vocab_size"])
        for flags in variants:
            with self.subTest(flags=" ".join(map(str, flags))):
                # Not assertEqual: nobody wants to read a megabyte of difference.
                self.assertTrue(harness.logits_file(FOLDER, ids, *flags, *common) == expected)


class Pairs(Logits):
    """What EveryWay tries, in combinations of which every two settings meet."""

    def test_pairs(self):
        ids = prompt_ids()
        self.check(ids, [flags_of(*way) for way in breadth.pairs(settings(len(ids)))])

    def test_data_types(self):
        self.check(prompt_ids(), TYPE_VARIANTS, "--dtype", other_type())


class EveryWay(Logits):
    """Ranks, threads, transports, chunks and decode, alone and together."""

    def test_ranks(self):
        self.check(prompt_ids(), [("-tp", t, "--threads-per-rank", 1) for t in ranks()[1:]])

    def test_threads(self):
        self.check(prompt_ids(), [("-tp", t, "--threads-per-rank", n)
                                  for t, n in ((1, 2), (1, 3), (2, 2), (2, 3))])

    def test_transports(self):
        self.check(prompt_ids(), [("-tp", t, "--transport", "tcp") for t in ranks()[1:]])

    def test_chunks(self):
        # One token at a time is 391 steps of the demo: once, on two ranks, is enough there.
        self.check(prompt_ids(),
                   [("-tp", t, "--chunk", n) for t in (1, 2) for n in (1, 7, 64, 100000)])

    def test_decode(self):
        last = len(prompt_ids()) - 1
        self.check(prompt_ids(), [("-tp", t, "--decode-from", k)
                                  for t, k in ((1, last), (2, last // 2), (2, 1), (1, 0))])

    def test_all_at_once(self):
        most = ranks()[-1]
        self.check(prompt_ids(), [("-tp", most, "--threads-per-rank", 2, "--transport",
                                   "tcp", "--chunk", 7, "--decode-from", 60),
                                  ("-tp", 3 if 3 in ranks() else 2, "--threads-per-rank", 3,
                                   "--chunk", 64, "--decode-from", 77)])

    def test_data_types(self):
        # Each type has its own bits, and they too do not depend on how the model is run.
        self.check(prompt_ids(), TYPE_VARIANTS, "--dtype", other_type())


@contextlib.contextmanager
def kernel_sets_of_ranks(*sets: str):
    """Ranks use these sets in turn, and each takes the next one when it is started again."""
    os.environ["SHOAL_TEST_KERNEL_SETS"] = ",".join(sets)
    try:
        yield
    finally:
        del os.environ["SHOAL_TEST_KERNEL_SETS"]


class EveryKernelSet(Logits):
    """The sets of kernels, alone and mixed, give the bits that are committed for every machine."""

    def test_kernel_sets(self):
        ids = prompt_ids()[:90]
        expected = harness.logits_file(FOLDER, ids, "--cpu-kernels", "reference")
        if CASE in HASHED:
            self.assertEqual(hash_of(expected), MODEL.hashes()["logits"],
                             f"the logits of {CASE} have changed; see {HASHES}")
        for kernels in harness.kernel_sets():
            for flags in (("-tp", 2, "--chunk", 7),
                          ("-tp", 3 if 3 in ranks() else 4, "--threads-per-rank", 2),
                          ("-tp", 2, "--transport", "tcp", "--decode-from", 40)):
                with self.subTest(kernels=kernels, flags=flags):
                    self.assertTrue(expected == harness.logits_file(
                        FOLDER, ids, *flags, "--cpu-kernels", kernels))

    def test_ranks_with_different_sets(self):
        ids = prompt_ids()[:90]
        expected = harness.logits_file(FOLDER, ids)
        with kernel_sets_of_ranks(*harness.kernel_sets()):
            self.assertTrue(expected == harness.logits_file(FOLDER, ids, "-tp", ranks()[-1]))

    def test_data_types(self):
        ids = prompt_ids()[:90]
        files = [harness.logits_file(FOLDER, ids, "-tp", 2, "--dtype", other_type(),
                                     "--cpu-kernels", kernels) for kernels in harness.kernel_sets()]
        self.assertEqual(len(set(files)), 1)


class Emulated(Logits):
    """What another processor gives under an emulator is what is committed."""

    @staticmethod
    def drawn_ways(tokens: int) -> list[tuple]:
        """Combinations of which every two settings meet, and of them the next one in each run."""
        ways = [flags_of(*way, "--cpu-kernels", kernels) for kernels, *way in breadth.pairs(
            [harness.kernel_sets(), *settings(tokens)])]
        return ways if breadth.FULL else [ways[breadth.day() % len(ways)]]

    def test_logits_and_answers(self):
        ids = prompt_ids()[:90]
        expected = MODEL.hashes()
        best, *others = harness.kernel_sets()
        # An emulator of a processor without FEAT_BF16 would leave this set out without a word.
        self.assertEqual(best, "neon-bf16")
        ways = [("-tp", n, "--cpu-kernels", best) for n in (1, 2, 3)]
        for name in others:
            ways += [("-tp", 2, "--transport", "tcp", "--threads-per-rank", 2, "--chunk", 7,
                      "--cpu-kernels", name),
                     ("-tp", 3, "--decode-from", 40, "--cpu-kernels", name)]
        for flags in [*ways, *self.drawn_ways(len(ids))]:
            with self.subTest(flags=flags):
                self.assertEqual(hash_of(harness.logits_file(FOLDER, ids, *flags)),
                                 expected["logits"])
        with self.subTest("ranks with different sets"), kernel_sets_of_ranks(best, *others):
            self.assertEqual(hash_of(harness.logits_file(FOLDER, ids, "-tp", 3)),
                             expected["logits"])
        for flags in [("-tp", n) for n in (1, 2, 3)] + [("-tp", 2, "--cpu-kernels", name)
                                                        for name in others]:
            with self.subTest(answers=flags):
                self.assertEqual(hash_of(harness.generate_jsonl(FOLDER, mixed_requests(), *flags)),
                                 expected["answers"])


class Generate(harness.TestCase):
    """One running batch answers what each request alone would get, logprobs to the bit."""

    @classmethod
    def setUpClass(cls):
        cls.requests = mixed_requests()
        if breadth.NARROW:  # one after the other in one process, instead of a process for each
            cls.alone = harness.generate_jsonl(FOLDER, cls.requests, "--max-num-seqs", 1)
        else:
            cls.alone = [harness.generate_jsonl(FOLDER, [request])[0] for request in cls.requests]

    def check_batch(self, *flags, before=()):
        """before: requests that come first, and whose answers are not looked at."""
        answers = harness.generate_jsonl(FOLDER, [*before, *self.requests], *flags)[len(before):]
        self.assertEqual(len(answers), len(self.requests))
        for request, alone, answer in zip(self.requests, self.alone, answers):
            with self.subTest(request=request, flags=flags):
                self.assertEqual(answer, alone)

    def test_the_answers_are_what_was_asked_for(self):
        for request, answer in zip(self.requests, self.alone):
            with self.subTest(request=request):
                count = answer["usage"]["completion_tokens"]
                self.assertEqual(len(answer["token_ids"]), count)
                self.assertEqual(answer["usage"]["prompt_tokens"], len(answer["prompt_token_ids"]))
                if "prompt_ids" in request:
                    self.assertEqual(answer["prompt_token_ids"], request["prompt_ids"])
                if request.get("ignore_eos"):
                    self.assertEqual((count, answer["finish_reason"]),
                                     (request["max_tokens"], "length"))
                self.assertLessEqual(count, request["max_tokens"])
                self.assertEqual("logprobs" in answer and answer["logprobs"] is not None,
                                 "logprobs" in request)
                for token, entry in zip(answer["token_ids"], answer.get("logprobs") or []):
                    self.assertEqual(entry["token_id"], token)
                    self.assertEqual(len(entry["top"]), request["logprobs"])
                    self.assertTrue(-1e30 < entry["logprob"] <= 0)
                    self.assertEqual(entry["top"],
                                     sorted(entry["top"], key=lambda pair: (-pair[1], pair[0])))

    def test_one_batch(self):
        self.check_batch()

    def test_ranks(self):
        for t in ranks()[-1:] if breadth.NARROW else ranks()[1:]:
            self.check_batch("-tp", t)

    def test_threads_and_tcp(self):
        self.check_batch("-tp", 2, "--threads-per-rank", 2, "--transport", "tcp")

    def test_small_steps(self):
        self.check_batch("-tp", 2, "--max-num-batched-tokens", 16)
        self.check_batch("--max-num-batched-tokens", 5, "--max-num-seqs", 4)

    def test_preemption(self):
        # A KV cache of little more than one request's worst case: running
        # requests are put back and prefilled again.
        head_dim = CONFIG.get("head_dim") or CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
        bytes_per_value = 4 if (CONFIG.get("dtype") or CONFIG["torch_dtype"]) == "float32" else 2
        token_bytes = 2 * bytes_per_value * \
            CONFIG["num_hidden_layers"] * CONFIG["num_key_value_heads"] * head_dim
        model_len = 112
        # After many short answers others are expected to be short too, and too many run at once.
        short = [{"prompt_ids": [5], "max_tokens": 1}] * 80
        self.check_batch("--max-model-len", model_len, "--kv-cache-memory",
                         token_bytes * (model_len + 64), before=short)
        # Ranks that share KV heads keep copies: the total grows with them.
        self.check_batch("-tp", 2, "--max-model-len", model_len,
                         "--kv-cache-memory", 2 * token_bytes * (model_len + 64), before=short)

    def test_kernel_sets(self):
        if CASE in HASHED:
            self.assertEqual(hash_of(self.alone), MODEL.hashes()["answers"],
                             f"the answers of {CASE} have changed; see {HASHES}")
        for kernels in harness.kernel_sets()[:1] if breadth.NARROW else harness.kernel_sets():
            self.check_batch("-tp", 2, "--cpu-kernels", kernels)
        with kernel_sets_of_ranks(*harness.kernel_sets()):
            self.check_batch("-tp", ranks()[-1])

    @unittest.skipUnless(CASE == "demo", "a smaller model would be done before the kill")
    def test_a_killed_rank_comes_back_with_another_set(self):
        # "reference" is what the ranks begin on. Where there is no other set, it has to do.
        sets = [name for name in harness.kernel_sets() if name != "reference"] or ["reference"]
        for kernels in sets if breadth.FULL else [sets[breadth.day() % len(sets)]]:
            with self.subTest(second=kernels), kernel_sets_of_ranks("reference", kernels):
                self.check_kill(kernels)

    def check_kill(self, second: str):
        """A stream that begins on the plain loops, which are slow, goes on with the same bits."""
        request = ("--prompt-ids", "5,6,7,8,9", "--max-tokens", 120, "--ignore-eos",
                   "--temperature", 1, "--seed", 3, "--logprobs", 3, "--json")
        expected = json.loads(harness.run("generate", FOLDER, *request, "--cpu-kernels",
                                          "auto").stdout)
        with harness.planted("1:step-9:stop"):  # so that the answer cannot be over
            server = self.serve(FOLDER, "-tp", 2, "--threads-per-rank", 1)
        self.assertEqual(server.wait_ready()["kernels"], second, "that of the last rank")
        client = server.client(*request)
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        os.kill(harness.stopped_rank(server.pid), signal.SIGKILL)
        self.assertEqual(client.wait(), 0, err.rest())
        answer = json.loads(out.rest())
        self.assertEqual(answer["text"], expected["text"])
        self.assertEqual(drawn([answer]), drawn([expected]))
        self.assertEqual(len(expected["logprobs"]), 120)
        self.assertEqual(sum_of_metrics(server, "shoal_recovered_requests_total"), 1)
        self.assertIn("the ranks run again over", server.err.text())
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())

    def test_run_twice(self):
        self.check_batch("--seed", 99)  # every request that draws has a seed of its own


def print_hashes():
    """Prints what same_bits.json must contain, computed on this machine."""
    hashes = {}
    for model in map(BitsCase, HASHED):
        hashes[model.name] = {
            "logits": hash_of(harness.logits_file(model.folder, model.prompt_ids()[:90])),
            "answers": hash_of(harness.generate_jsonl(model.folder, model.mixed_requests()))}
    print(json.dumps(hashes, indent=1))


if __name__ == "__main__":
    if PART == "expect":
        print_hashes()
        sys.exit()
    wanted = {"logits": ["Pairs" if breadth.NARROW else "EveryWay"],
              "kernels": ["EveryKernelSet"], "generate": ["Generate"], "emulated": ["Emulated"]}[PART]
    sys.argv[1:] = sys.argv[1:] or wanted
    harness.main()
