"""The model on emulated devices, through the program itself: device_model_test.py PART [CASE]

The module is that of tests/emulator: the real kernels, compiled for the host. PART is oracle,
stream or same-bits, with a folder of tests/data/oracle as CASE; or batch, refusals, or choice.
"""
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

import breadth
import harness
from emulated_gpu import FAKES, MODULE, ON_DEVICES, emulated, gpu
from reference_answers import CLEAR_GAP, clear_stretch

PART = sys.argv.pop(1)
CASE = sys.argv.pop(1) if PART in ("oracle", "stream", "same-bits") else "llama-nine-heads"
FOLDER = harness.ORACLE / CASE
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
# Eight ranks of emulated devices in a sanitizer's build take both processors for minutes, so that
# tests beside them run into their time-outs. What sanitizers look for shows with two.
MOST_RANKS = 2 if breadth.SANITIZED else 8
PROMPT = ("--prompt-ids", harness.ids_flag(EXPECTED["prompts"][0]["ids"]))


def with_wide_heads(folder: str) -> Path:
    """The model with head_dim 512 in its config.json. Its weights have other shapes."""
    model = Path(folder) / "wide"
    shutil.copytree(FOLDER, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "head_dim": 512}))
    return model


def sizes() -> list[int]:
    return [size for size in EXPECTED["tensor_parallel_sizes"] if size <= MOST_RANKS]


class Oracle(harness.TestCase):
    """Logits and greedy tokens beside the reference implementation's."""

    def test_logits_and_greedy_tokens(self):
        for k, prompt in enumerate(EXPECTED["prompts"]):
            with self.subTest(prompt=k), emulated():
                ids, greedy = prompt["ids"], prompt["greedy"]
                ours = harness.logits(FOLDER, ids + greedy[:-1], *ON_DEVICES)
                reference = np.load(FOLDER / prompt["logits"]).astype(np.float64)
                rows = ours[: len(ids)].astype(np.float64)
                distance = (np.linalg.norm(rows - reference, axis=1)
                            / np.linalg.norm(reference, axis=1))
                config = json.loads((FOLDER / "config.json").read_text())
                is_float32 = (config.get("dtype") or config["torch_dtype"]) == "float32"
                self.assertLessEqual(distance.mean(), 1e-4 if is_float32 else 1.5e-2)
                self.assertLessEqual(distance.max(), 1e-4 if is_float32 else 4e-2)
                choices = ours[len(ids) - 1 :].argmax(axis=1)
                clear = 0
                for step, (token, gap) in enumerate(zip(greedy, prompt["gap"])):
                    if gap > CLEAR_GAP:
                        clear += 1
                        self.assertEqual(choices[step], token, f"greedy token {step}, gap {gap}")
                self.assertGreater(clear, 0)


class Stream(harness.TestCase):
    """The reference's greedy tokens by one rank, as far as rounding cannot change them."""

    def setUp(self):
        super().setUp()
        ids, self.greedy = clear_stretch(EXPECTED["prompts"])
        self.request = ("--prompt-ids", harness.ids_flag(ids), "--max-tokens", len(self.greedy),
                        "--ignore-eos", "--temperature", 0, "--json")
        self.assertGreaterEqual(len(self.greedy), 4)

    def test_generate(self):
        with emulated():
            out = harness.run("generate", FOLDER, *self.request, *ON_DEVICES).stdout
        self.assertEqual(json.loads(out)["token_ids"], self.greedy)

    def test_serve_although_the_rank_is_killed(self):
        with emulated(), harness.planted("0:step-3:stop"):
            server = self.serve(FOLDER, *ON_DEVICES, "--kv-cache-memory", "4m", "--step-timeout",
                                5 * harness.GUARD)
            self.assertEqual(server.wait_ready()["kernels"], "cuda")
        client = server.client(*self.request)
        os.kill(harness.stopped_rank(server.pid), signal.SIGKILL)
        out, err = client.communicate(timeout=5 * harness.GUARD)
        self.assertEqual(client.returncode, 0, err)
        self.assertEqual(json.loads(out)["token_ids"], self.greedy)
        self.assertRegex(server.err.text(), r"starting the ranks again \(1 of \d+\)")
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.end(), 0)


class SameBits(harness.TestCase):
    """The number of ranks, the rung, the pieces of a prompt and the device's schedule."""

    def test_pairs(self):
        ids = EXPECTED["prompts"][1]["ids"][: 8 if breadth.SANITIZED else None]
        with emulated():
            expected = harness.logits_file(FOLDER, ids, *ON_DEVICES)
        self.assertGreater(len(expected), 4 * len(ids))
        few = 3 if 3 in sizes() else 2
        # If no device reaches another one, no pair of them is tried before the start.
        ways = [((2, "cuda-ipc"), {}, ("--chunk", 13)),
                ((few, "host-memfd"), {"PEERS": "none", "ORDER": "reverse"},
                 ("--decode-from", len(ids) - 3)),
                ((sizes()[-1], "tcp"), {"PEERS": "none", "COPIES": "late"}, ("--chunk", 64)),
                ((1, None), {"STREAMS": "when-waited-for", "ORDER": 3}, ("--decode-from", len(ids) // 8 * 7)),
                ((2, "nccl-p2p"), {"STREAMS": "at-once"}, ("--chunk", 64)),
                ((few, "cuda-ipc"), {"ORDER": 7, "COPIES": "late"}, ())]
        for (ranks, rung), settings, flags in ways[: 3 if breadth.NARROW else None]:
            transport = ("--transport", rung) if rung else ()
            with self.subTest(ranks=ranks, rung=rung, **settings), emulated(**settings):
                ours = harness.logits_file(FOLDER, ids, *ON_DEVICES, "-tp", ranks, *transport,
                                           *flags)
                # Not assertEqual: nobody wants to read a megabyte of difference.
                self.assertTrue(ours == expected, "other bits")

    def test_choices_are_the_same_alone_and_in_a_batch(self):
        requests = [{"id": f"{i}", "prompt_ids": EXPECTED["prompts"][i % 2]["ids"][: 5 + 3 * i],
                     "max_tokens": 4, "ignore_eos": True, "seed": i,
                     "temperature": 0.8 if i % 2 else 0} for i in range(4)]
        with emulated():
            together = harness.generate_jsonl(FOLDER, requests, *ON_DEVICES)
            alone = [harness.generate_jsonl(FOLDER, [one], *ON_DEVICES, "-tp", 2)[0]
                     for one in requests]
        tokens = [[answer["token_ids"] for answer in answers] for answers in (together, alone)]
        self.assertEqual(*tokens)
        self.assertEqual([len(answer) for answer in tokens[0]], [4] * 4)


class Batch(harness.TestCase):
    """32 sequences in each step, on one device or several, and one sequence in each step: the same
    tokens, and the same logits to the bit, as far as logprobs show them."""

    def test_one_sequence_and_thirty_two(self):
        requests = [{"id": i, "prompt_ids": EXPECTED["prompts"][1]["ids"][i : 1 + 2 * i],
                     "max_tokens": 3, "ignore_eos": True, "seed": i,
                     "temperature": 0.8 if i % 2 else 0,
                     # The device itself chooses the tokens of every fourth request.
                     **({"logprobs": 8} if i % 4 else {})} for i in range(32)]

        def answers(sequences: int, *flags) -> list[dict]:
            return harness.generate_jsonl(FOLDER, requests, *ON_DEVICES, "--max-num-seqs",
                                          sequences, "--kv-cache-memory", "8m", *flags)

        groups = {"8.0": ((3, "nccl-shm"),), "9.0": ((3, "cuda-ipc"), (5, "host-memfd"))}
        for capability, several in groups.items():
            with self.subTest(capability=capability), emulated(CAPABILITY=capability, TRIED=65536):
                alone = answers(1)
                self.assertEqual([len(answer["token_ids"]) for answer in alone], [3] * 32)
                self.assertEqual(answers(32), alone)
                for ranks, rung in several:
                    with self.subTest(ranks=ranks, rung=rung):
                        self.assertEqual(answers(32, "-tp", ranks, "--transport", rung), alone)


class Refusals(harness.TestCase):
    """What devices cannot do ends the start with the numbers and what to do."""

    def refused(self, code: int, *flags, model: Path = FOLDER, **settings) -> str:
        with emulated(**settings):
            done = harness.run("generate", model, *PROMPT, "--max-tokens", 1, *ON_DEVICES, *flags,
                               code=code)
        return done.stderr.decode()

    def test_the_module_is_absent(self):
        err = self.refused(harness.UNAVAILABLE, "--cuda-module", "/nonexistent/m.so")
        self.assertIn("/nonexistent/m.so", err)
        self.assertIn("put libshoal_cuda.so beside the program", err)

    def test_no_device_is_no_reason_for_the_cpu(self):
        self.assertIn("no CUDA-capable device", self.refused(harness.UNAVAILABLE, DEVICES=0))

    def test_an_old_device(self):
        err = self.refused(harness.UNAVAILABLE, CAPABILITY="7.5")
        self.assertIn("compute capability 7.5 has no code in the module", err)
        self.assertIn("--device cpu does without GPUs", err)

    def test_tensor_cores_that_sum_differently(self):
        err = self.refused(harness.UNAVAILABLE, "-tp", 2, CAPABILITY="9.0,8.6")
        self.assertIn(f"{gpu(0)} of compute capability 9.0 and {gpu(1)} of compute capability 8.6 are "
                      "published to sum differently", err)
        self.assertIn("--reproducible=off", err)
        with emulated(CAPABILITY="9.0,8.6"):
            harness.run("generate", FOLDER, *PROMPT, "--max-tokens", 1, *ON_DEVICES,
                        "-tp", 2, "--reproducible", "off")

    def test_tensor_cores_whose_results_differ(self):
        """Their capability says nothing of it."""
        err = self.refused(harness.UNAVAILABLE, "-tp", 2, TENSOR_CORE="own,other")
        self.assertIn(f"{gpu(0)} of rank 0 (sm90) and {gpu(1)} of rank 1 (unknown-9.0)", err)
        self.assertIn("--reproducible=off", err)
        with emulated(TENSOR_CORE="own,other"):
            harness.run("generate", FOLDER, *PROMPT, "--max-tokens", 1, *ON_DEVICES,
                        "-tp", 2, "--reproducible", "off")

    def test_tensor_cores_of_no_class(self):
        """Two of them may not sum alike, although they did so for a few factors."""
        err = self.refused(harness.UNAVAILABLE, "-tp", 2, TENSOR_CORE="other")
        self.assertIn(f"{gpu(0)} of rank 0 (unknown-9.0), {gpu(1)} of rank 1 (unknown-9.0) sum like "
                      "those of no class that is known", err)
        self.assertIn("--reproducible=off", err)
        with emulated(TENSOR_CORE="other"):
            for flags in ((), ("-tp", 2, "--reproducible", "off")):
                harness.run("generate", FOLDER, *PROMPT, "--max-tokens", 1, *ON_DEVICES, *flags)

    def test_more_ranks_than_leaves(self):
        err = self.refused(harness.USAGE, "-tp", 9, PEERS="none")  # no pair is tried
        self.assertRegex(err, r"\[1, 8\].*not 9.*--device cpu has up to 9")

    def test_nccl_that_is_absent(self):
        err = self.refused(harness.UNAVAILABLE, "-tp", 2, "--transport", "nccl-shm",
                           "--nccl-library", "libnosuchnccl.so")
        self.assertRegex(err, r"transport nccl-shm was refused\n.*libnosuchnccl\.so: cannot open "
                         r"shared object.* \(looked in /.*; install NCCL \d+\.\d+.*--nccl-library PATH")

    def test_ranks_that_share_a_device(self):
        """NCCL forbids it, but for sockets."""
        err = self.refused(harness.UNAVAILABLE, "-tp", 2, "--ranks-per-gpu", 2, "--transport",
                           "nccl-p2p,nccl-shm,nccl-shm-lean", DEVICES=1)
        for rung in ("nccl-p2p", "nccl-shm", "nccl-shm-lean"):
            self.assertRegex(err, rf"transport {rung} was refused\n.*2 ranks share a GPU "
                             rf"\(--ranks-per-gpu\).*only sockets between these; {rung} is not possible\n")

    def test_heads_that_no_kernel_computes(self):
        with tempfile.TemporaryDirectory() as folder:
            err = self.refused(harness.USAGE, model=with_wide_heads(folder))
        self.assertIn("--device cuda: head_dim 512 is above 256; use --device cpu", err)

    def test_too_little_memory(self):
        err = self.refused(harness.USAGE, BYTES=1 << 20)
        self.assertRegex(err, r"KV cache must hold .* has 0 B, .*--gpu-memory-utilization")
        self.assertRegex(err, r"\d+ B( \(\d+\.\d MiB\))? of weights")

    def test_a_device_that_fails(self):
        """A new process may find it well again, so the ranks are started again before the end."""
        for name, error in (("cudaLaunchKernel", 719), ("cudaEventQuery", 700)):
            err = self.refused(harness.WORKER_DIED, "--max-restarts", 1, FAIL=f"{name}:{error}")
            self.assertIn("the GPU has failed", err)
            self.assertIn("starting the ranks again (1 of 1)", err)

    def test_memory_that_somebody_else_has(self):
        size, gpu = r"\d+ B( \(\d+(\.\d MiB| KiB)\))?", r"GPU 0 \(GPU-.*\)"
        whole = r"67108864 B \(64\.0 MiB\)"
        for left, why in (
                (1_000_000, r"(?s)allocate this rank's weights, \d+ B \(\d+\.\d MiB\); if.*"
                            rf"{gpu} has {size} free of {whole}"),
                (1_400_000, rf"(?s)activations of a step, \d+ B.*--max-model-len.*{gpu} has {size} "
                            rf"free of {whole}"),
                (4_400_000, rf"{gpu} has {size} of {whole} left for KV cache, which is "
                            r"\d blocks? of")):
            with self.subTest(why):
                err = self.refused(harness.UNAVAILABLE, BYTES=64 << 20, TAKEN=(64 << 20) - left)
                self.assertRegex(err, why)


class Choice(harness.TestCase):
    """--device auto takes devices if they can compute the model, and otherwise says why not."""

    def chosen(self, *flags, **settings) -> str:
        with emulated(**settings):
            process = harness.start("generate", FOLDER, *PROMPT, "--max-tokens", 1, "--cuda-module",
                                    MODULE, "--log-level", "info", *flags)
        _, err = process.communicate(timeout=5 * harness.GUARD)
        self.assertEqual(process.returncode, 0, err)
        return err.decode()

    def test_the_class_is_that_of_the_results(self):
        for core, arithmetic in (("own", "cuda-sm90-8"), ("sm80", "cuda-sm80-8"),
                                 ("other", "cuda-unknown-9.0-8")):
            with self.subTest(core), emulated(TENSOR_CORE=core):
                server = self.serve(FOLDER, *ON_DEVICES, "--kv-cache-memory", "2m")
                self.assertEqual(server.wait_ready()["arithmetic"], arithmetic)
                server.process.send_signal(signal.SIGTERM)
                self.assertEqual(server.end(), 0)

    def test_a_step_has_few_launches(self):
        """A layer has nine for one row of one rank: the fold of a product's leaves, the bias, the
        residual and the next norm are one."""
        layers = json.loads((FOLDER / "config.json").read_text())["num_hidden_layers"]
        with emulated():
            process = harness.start("generate", FOLDER, "--prompt-ids", "1,2,3", "--max-tokens", 3,
                                    "--ignore-eos", *ON_DEVICES, "--log-level", "debug")
            _, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)
        launches = re.findall(r"a step of 1 row took (\d+) launches of own kernels", err.decode())
        self.assertGreaterEqual(len(launches), 2)
        # Embedding and its norm, the last norm and product, and two for the greatest logit.
        self.assertEqual(set(launches), {str(9 * layers + 6)})

    def test_devices(self):
        """One for each rank, also where their number divides nothing."""
        for ranks in (1, min(5, MOST_RANKS)):
            flags = ("--nccl-library", FAKES / "libfake_nccl.so", "-tp", ranks)
            log = self.chosen(*flags, DEVICES=ranks, TRIED=65536)
            self.assertIn("--device auto: Emulated GPU, compute capability 9.0", log)
            self.assertEqual(log.count("memory of GPU "), ranks, log)
            self.assertEqual(re.findall(r"transport (\S+) for (\d) ranks", log),
                             [("nccl-p2p", f"{ranks}")] if ranks > 1 else [])

    def test_the_cpu_because(self):
        for why, flags, settings in (
                ("no CUDA-capable device is detected", (), {"DEVICES": 0}),
                ("compute capability 7.5 has no code", (), {"CAPABILITY": "7.5"}),
                ("published to sum differently", ("-tp", 2), {"CAPABILITY": "9.0,8.6"}),
                ("KV cache must hold", (), {"BYTES": 1 << 20}),
                (r"KV cache must hold .*where others have \d+ B", (),
                 {"BYTES": 64 << 20, "TAKEN": 60 << 20}),
                ("2 ranks with --ranks-per-gpu 1 need 2 GPUs", ("-tp", 2), {"DEVICES": 1}),
                ("this model has at most 8 ranks on GPUs", ("-tp", 9),
                 {"DEVICES": 9, "PEERS": "none"})):
            with self.subTest(why):
                log = self.chosen(*flags, **settings)
                self.assertRegex(log, f"--device auto: the CPU, because .*{why}")

    def test_the_cpu_because_of_wide_heads(self):
        """The weights do not fit the changed config.json, so the start ends later, on the CPU."""
        with tempfile.TemporaryDirectory() as folder, emulated():
            done = harness.run("generate", with_wide_heads(folder), *PROMPT, "--max-tokens", 1,
                               "--cuda-module", MODULE, "--log-level", "info",
                               code=harness.BAD_MODEL)
        self.assertRegex(done.stderr.decode(),
                         "--device auto: the CPU, because .*head_dim 512 is above 256")

    def test_an_order_of_the_cpus_transports_is_for_the_cpu(self):
        self.assertNotIn("--device auto", self.chosen("-tp", 2, "--transport", "shm"))


if __name__ == "__main__":
    parts = {"oracle": Oracle, "stream": Stream, "same-bits": SameBits, "batch": Batch,
             "refusals": Refusals, "choice": Choice}
    for name in [part.__name__ for key, part in parts.items() if key != PART]:
        del globals()[name]
    harness.main()
