"""A rank that computes is not hung, one that spins is ended, and a slow processor is nobody's fault.

The layers are real ones of the plain loops, and the quota is that of a real cgroup. SHOAL_TEST_FAULT
plants what no model does: an endless loop, and a part of a known length.
"""
import json
import re
import struct
import tempfile
import time
from pathlib import Path

import numpy as np

import breadth
import harness
from cgroups import CpuQuota

SLOW = ("--threads-per-rank", 1, "--cpu-kernels", "reference")
LONG_PROMPT = harness.ids_flag(4 + (i * 37) % 4000 for i in range(100))
PROMPT = harness.ids_flag([0, 1151, 262, 2088])
GREEDY = ("--ignore-eos", "--temperature", 0)
LAYERS = 6


def write_wide_model(folder: Path):
    """A model of one layer and random weights, four times as wide as the demo model."""
    config = json.loads((harness.DEMO / "config.json").read_text())
    config.update(hidden_size=1024, intermediate_size=4096, num_attention_heads=16,
                  num_key_value_heads=16, head_dim=64, num_hidden_layers=1,
                  max_position_embeddings=32768)
    (folder / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / file).symlink_to(harness.DEMO / file)
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": (4096, 1024), "model.norm.weight": (1024,),
              layer + "input_layernorm.weight": (1024,),
              layer + "post_attention_layernorm.weight": (1024,),
              **{f"{layer}self_attn.{name}_proj.weight": (1024, 1024) for name in "qkvo"},
              layer + "mlp.gate_proj.weight": (4096, 1024),
              layer + "mlp.up_proj.weight": (4096, 1024),
              layer + "mlp.down_proj.weight": (1024, 4096)}
    header, blocks, at = {}, [], 0
    random = np.random.default_rng(1)
    for name, shape in shapes.items():
        values = random.normal(0, 0.02, shape).astype(np.float32)
        block = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(block)]}
        blocks.append(block)
        at += len(block)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(blocks))


class LongParts(harness.TestCase):
    def serve_with_fault(self, fault: str, *flags) -> harness.Server:
        with harness.planted(fault):
            server = self.serve(harness.DEMO, *SLOW, "-tp", 2, *flags)
        server.wait_ready()
        return server

    def answer(self, tokens: int) -> str:
        return harness.run("generate", harness.DEMO, "--prompt-ids", PROMPT, "--max-tokens", tokens,
                           *GREEDY, "--cpu-kernels", "reference").stdout.decode().strip()

    def stream(self, server, tokens: int):
        client = server.client("--prompt-ids", PROMPT, "--max-tokens", tokens, *GREEDY)
        return client, harness.Reader(client.stdout), harness.Reader(client.stderr)

    def check_stream(self, stream, expected: str):
        client, out, err = stream
        self.assertEqual(client.wait(5 * harness.GUARD), 0, err.rest())
        self.assertEqual(out.rest().strip(), expected)

    def test_a_layer_may_take_longer_than_the_step_timeout(self):
        flags = ("generate", harness.DEMO, "--prompt-ids", LONG_PROMPT, "--max-tokens", 2, *GREEDY,
                 *SLOW)
        began = time.monotonic()
        expected = harness.run(*flags, "--step-timeout", 100).stdout
        layer_s = (time.monotonic() - began) / LAYERS
        # Half of a layer is a single product, so this part alone takes about two time-outs.
        timeout_s = layer_s / 4
        print(f"a layer takes {layer_s:.2f} s at --step-timeout {timeout_s:.2f}")
        out = harness.run(*flags, "--step-timeout", timeout_s, "--max-restarts", 0).stdout
        self.assertEqual(out, expected)

    def test_a_layer_of_half_a_minute_at_two_seconds(self):
        if not breadth.FULL:
            self.skipTest("only with SHOAL_TEST_BREADTH=full, because it computes for minutes")
        with tempfile.TemporaryDirectory() as folder:
            write_wide_model(Path(folder))

            def seconds(rows: int, *flags) -> float:
                began = time.monotonic()
                prompt = harness.ids_flag(4 + (i * 37) % 4000 for i in range(rows))
                harness.run("generate", folder, "--prompt-ids", prompt, "--max-tokens", 1, *GREEDY,
                            *SLOW, "--max-num-batched-tokens", rows, *flags)
                return time.monotonic() - began
            rows = int(200 * 33 / (seconds(200, "--step-timeout", 100) -
                                   seconds(1, "--step-timeout", 100)))
            took = seconds(rows, "--step-timeout", 2, "--max-restarts", 0)
            print(f"a layer of {rows} tokens took {took:.1f} s at --step-timeout 2")
            self.assertGreater(took, 25)

    def test_an_endless_loop_is_ended_and_named_and_the_streams_go_on(self):
        server = self.serve_with_fault("1:step-5:spin", "--step-timeout", 1)
        streams = [self.stream(server, 40) for _ in range(2)]
        expected = self.answer(40)
        for stream in streams:
            self.check_stream(stream, expected)
        server.wait_logged("it spins")
        log = server.err.text()
        spun = re.search(r"rank 1 \(step 5\) has completed no part of its work for ([\d.]+) s: it "
                         r"spins, and has used ([\d.]+) s of processor time", log)
        self.assertTrue(spun, log)
        self.assertGreaterEqual(float(spun[1]), 10)
        # On a busy machine it may not say in time for whom it waits.
        self.assertRegex(log, r"rank 0 \(step 5(, collective|\) does not answer)")
        self.assertNotIn("refused", log)

    def quota(self, percent: int) -> CpuQuota:
        try:
            quota = CpuQuota(percent)
        except OSError as error:
            self.skipTest(str(error))
        self.addCleanup(quota.remove)
        return quota

    def test_a_part_under_a_quota_gets_its_time(self):
        compute_s, timeout_s = (1, 4) if breadth.FULL else (0.25, 1)
        quota = self.quota(10)
        server = self.serve_with_fault(f"1:step-3:compute-{compute_s}", "--step-timeout", timeout_s,
                                       "--max-restarts", 0)
        quota.add(harness.children(server.pid)[1])
        began = time.monotonic()
        stream = self.stream(server, 6)
        self.check_stream(stream, self.answer(6))
        self.assertGreater(time.monotonic() - began, 8 * compute_s, "the quota had no effect")
        server.process.terminate()
        self.assertEqual(server.end(), 0)
        self.assertNotRegex(server.err.rest(), "no answer|completed no part")

    def test_a_rank_that_gets_too_little_processor_time_is_no_crash_of_a_request(self):
        if not breadth.FULL:
            self.skipTest("only with SHOAL_TEST_BREADTH=full, because it takes ten time-outs")
        quota = self.quota(1)
        server = self.serve_with_fault("1:step-3:compute-10", "--step-timeout", 0.5)
        quota.add(harness.children(server.pid)[1])
        self.check_stream(self.stream(server, 20), self.answer(20))
        server.wait_logged(r"rank 1 \(step 3\) .*computes, but got only 0\.\d+ s")


if __name__ == "__main__":
    harness.main()
