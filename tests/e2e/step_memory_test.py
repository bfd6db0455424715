"""All the memory that a step can need is there before READY.

With a large vocabulary the rows of logits are the largest part of it: here 8 streams take 4 MiB,
and copies of them would take as much again.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import harness

RANKS, STREAMS = 2, 8
# What a rank may take after READY: the plan of a step, its answer, and what malloc keeps of them.
MOST_GROWTH_BYTES = 2 << 20


def anonymous_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)[1]) * 1024


class StepMemory(harness.TestCase):
    def test_ranks_do_not_grow_in_a_full_sampled_batch(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        model = Path(folder.name)
        subprocess.run([sys.executable, harness.ROOT / "bench" / "make_random_model.py", model,
                        "--shape", "wide-vocabulary"], check=True, stdout=subprocess.DEVNULL)
        (model / "tokenizer.json").symlink_to(harness.DEMO / "tokenizer.json")
        server = self.serve(model, "-tp", RANKS, "--max-num-seqs", STREAMS)
        server.wait_ready()
        ranks = server.workers(RANKS)
        before = [anonymous_bytes(pid) for pid in ranks]
        # Long enough that most of them run at once. (Top-p would sort the whole vocabulary for each
        # token, because the logits of random weights are nearly equal.)
        clients = [server.client("--prompt-ids", f"1,{stream + 2}", "--max-tokens", 60,
                                 "--ignore-eos", "--temperature", 0.8,
                                 "--repetition-penalty", 1.1, "--seed", stream)
                   for stream in range(STREAMS)]
        for client in clients:
            _, err = client.communicate(timeout=5 * harness.GUARD)
            self.assertEqual(client.returncode, 0, err.decode(errors="replace"))
        self.assertEqual(server.workers(RANKS), ranks, "no rank was started again")
        for rank, (pid, was) in enumerate(zip(ranks, before)):
            self.assertLess(anonymous_bytes(pid) - was, MOST_GROWTH_BYTES, f"rank {rank}")


if __name__ == "__main__":
    harness.main()
