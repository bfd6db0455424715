"""What a rank does on an emulated device before its server is ready."""
import io
import json
import re
import tempfile
import time
from pathlib import Path

import numpy as np

import breadth
import harness
from emulated_gpu import ON_DEVICES, emulated, gpu

FOLDER = harness.ORACLE / "llama-nine-heads"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


class Start(harness.TestCase):
    def ready(self, *flags, **settings) -> harness.Server:
        with emulated(**settings):
            server = self.serve(FOLDER, *ON_DEVICES, *flags)
        server.wait_ready()
        return server

    def test_every_kernel_is_launched_before_ready(self):
        self.check_launches()

    def test_every_kernel_of_a_group_is_launched_before_ready(self):
        self.check_launches("-tp", 2, "--transport", "host-memfd")

    def check_launches(self, *flags):
        ids = (EXPECTED["prompts"][1]["ids"] * 3)[:200]
        with tempfile.TemporaryDirectory() as folder:
            launched = Path(folder) / "launched"
            server = self.ready("--max-num-seqs", 4, *flags, LAUNCHED=launched)
            before = launched.read_text()
            self.assertGreater(before.count("\n"), 15)
            # Steps of many, some and few rows, short and long contexts.
            for rows in (200, 100, 24, 3):
                client = server.client("--prompt-ids", harness.ids_flag(ids[:rows]), "--max-tokens",
                                       3, "--ignore-eos", "--temperature", 0, "--json")
                _, err = client.communicate(timeout=5 * harness.GUARD)
                self.assertEqual(client.returncode, 0, err)
            self.assertEqual(launched.read_text(), before)

    def test_memory_of_former_owners_changes_no_bit(self):
        """Weights, activations and KV cache begin as NaN. Without a former owner, to read it is a
        fault of the device."""
        ids = EXPECTED["prompts"][1]["ids"][: 8 if breadth.SANITIZED else None]
        with emulated(FRESH="unwritten"):
            expected = harness.logits_file(FOLDER, ids, *ON_DEVICES)
        for flags in (("--chunk", 13), ("-tp", 2, "--decode-from", len(ids) - 3)):
            with self.subTest(flags), emulated(FRESH="nan"):
                ours = harness.logits_file(FOLDER, ids, *ON_DEVICES, *flags)
                self.assertTrue(ours == expected, "other bits")
        self.assertTrue(np.isfinite(self.as_array(expected)).all())

    @staticmethod
    def as_array(file: bytes) -> np.ndarray:
        return np.load(io.BytesIO(file))

    def test_the_cache_gets_what_the_share_leaves_and_the_log_says_so(self):
        total, taken = 64 << 20, 52 << 20
        server = self.ready(BYTES=total, TAKEN=taken)
        server.wait_logged("memory of GPU .*; left ")
        server.wait_logged("room for .* blocks of KV cache")
        size = r"(\d+) B(?: \([^)]*\))?"
        line = re.search(rf"memory of {re.escape(gpu(0))}, {size}: others {size}, weights {size}, "
                         rf"activations and rope table {size}, KV cache {size}; left {size}",
                         server.err.text())
        self.assertIsNotNone(line, server.err.text())
        said, others, weights, activations, cache, left = map(int, line.groups())
        self.assertEqual((said, others), (total, taken))
        self.assertEqual(left, total - taken - weights - activations - cache)
        room = total * 9 // 10 - taken - weights - activations
        blocks = int(re.search(r"room for (\d+) blocks of KV cache", server.err.text()).group(1))
        self.assertEqual(blocks, room // (cache // blocks))
        # What the share keeps free is there for a cache whose size is given.
        asked = room + (1 << 20)
        server = self.ready("--kv-cache-memory", asked, BYTES=total, TAKEN=taken)
        server.wait_logged("KV cache .*; left ")
        cache = int(re.search(rf"KV cache {size}; left", server.err.text()).group(1))
        self.assertGreater(cache, room)

    def test_a_driver_that_compiles_takes_its_time(self):
        limit = 40 if harness.GUARD == 60 else 200
        with tempfile.TemporaryDirectory() as folder:
            compiles = Path(folder) / "compiles"
            compiles.write_text("")
            with emulated(CAPABILITY="13.0", COMPILES=compiles):
                server = self.serve(FOLDER, *ON_DEVICES, "--startup-timeout", limit)
            server.wait_logged(rf"no machine code for {re.escape(gpu(0))} of compute capability "
                               r"13\.0, so the driver compiles")
            # no deadline: it has to outlast the usual limit of a phase, a quarter of the start's
            time.sleep(limit / 4 + 1)
            compiles.unlink()
            server.wait_ready()


if __name__ == "__main__":
    harness.main()
