"""A model on emulated devices over every rung between them: device_rungs_test.py CLASS [CASE]

NCCL is the stand-in of tests/fakes. CASE is a folder of tests/data/oracle, for Matrix.
"""
import json
import os
import re
import signal
import sys
import tempfile
import unittest.mock
from pathlib import Path

import breadth
import harness
from emulated_gpu import ON_DEVICES, emulated
from nccl_test import EXPECTED, MIB, Place, shoal

CASE = sys.argv.pop(2) if sys.argv[1:2] == ["Matrix"] else "llama3-gqa-tied-sharded"
FOLDER = harness.ORACLE / CASE
IDS = json.loads((FOLDER / "expected.json").read_text())["prompts"][0]["ids"]
MODELS = sorted(file.parent.name for file in harness.ORACLE.glob("*/config.json"))
RUNGS = ["nccl-p2p", "cuda-ipc", "nccl-shm", "nccl-shm-lean", "host-memfd", "nccl-socket", "tcp"]
SCHEDULES = {"forward": {}, "reverse": {"ORDER": "reverse", "COPIES": "late"},
             "at once": {"STREAMS": "at-once"},
             "when waited for": {"STREAMS": "when-waited-for", "ORDER": 7}}
PIECES = [(), ("--chunk", 4), ("--decode-from", 5)]


def ways() -> list[tuple]:
    """(rung, ranks, schedule, pieces) for this model: one for each rung. They come from
    combinations of all models in which every two settings meet. In a quick run there are only those
    of NCCL's rungs with few ranks, because device_model_test.py covers the other rungs."""
    everything = breadth.pairs([MODELS, RUNGS, [2, 3, 5, 6, 8], list(SCHEDULES), PIECES])
    mine = [way[1:] for way in everything if way[0] == CASE]
    if not breadth.NARROW:
        return mine
    return [(rung, min(ranks, 3), *others) for rung, ranks, *others in mine
            if rung.startswith("nccl-")]


def peers_of(rung: str) -> dict:
    """The start tries each pair of devices that reach each other, and of eight it would try too many
    bytes for the emulated ones."""
    return {"TRIED": 65536} if rung in ("nccl-p2p", "cuda-ipc") else {"PEERS": "none"}


class Matrix(harness.TestCase):
    """Every number of ranks, rung, schedule and cut of the prompt gives the bits of one rank."""

    def test_same_bits(self):
        heads = json.loads((FOLDER / "config.json").read_text())["num_attention_heads"]
        with emulated():
            expected = harness.logits_file(FOLDER, IDS, *ON_DEVICES)
        self.assertGreater(len(expected), 4 * len(IDS))
        for rung, wanted, schedule, pieces in ways():
            ranks = min(wanted, heads)
            with self.subTest(rung=rung, ranks=ranks, schedule=schedule, pieces=pieces), \
                    emulated(**peers_of(rung), **SCHEDULES[schedule]):
                ours = harness.logits_file(FOLDER, IDS, *ON_DEVICES, "-tp", ranks,
                                           "--transport", rung, *pieces)
                # Not assertEqual: nobody wants to read a megabyte of difference.
                self.assertTrue(ours == expected, "other bits")


class Places(Place):
    """In a small /dev/shm a model starts on the rung that the predicted bytes allow
    (nccl_test.py), and gives the bits of one rank."""

    # MiB of /dev/shm, and ranks. Each of the first three has another rung.
    SIZES = [(1, 2), (4, 2), (64, 4), (1, 4), (1, 8), (4, 4), (4, 8), (64, 2), (64, 8)]

    def setUp(self):
        super().setUp()
        with emulated():
            self.expected = harness.logits_file(FOLDER, IDS, *ON_DEVICES)

    def log_of_the_same_bits(self, mebibytes: int, ranks: int, rung: str, **variables) -> str:
        """The log of a run in such a /dev/shm. It must end on the rung, and leave nothing there."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "logits.npy"
            command = shoal("logits", FOLDER, "--prompt-ids", harness.ids_flag(IDS), "--out", out,
                            *ON_DEVICES, "-tp", ranks, "--log-level", "info")
            done = self.inside(f"size={mebibytes}m", f'{command}\n[ -z "$(ls -A /dev/shm)" ]',
                               **variables)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(re.findall(rf"transport (\S+) for {ranks} ranks", done.stderr), [rung],
                             done.stderr)
            self.assertTrue(out.read_bytes() == self.expected, "other bits")
        return done.stderr

    def test_the_rung_that_fits(self):
        for mebibytes, ranks in self.SIZES[: 3 if breadth.NARROW else None]:
            with self.subTest(mebibytes=mebibytes, ranks=ranks):
                rung, bytes_ = EXPECTED[mebibytes][ranks]
                self.assertLess(bytes_, mebibytes * MIB)
                log = self.log_of_the_same_bits(mebibytes, ranks, rung)
                if rung != "nccl-shm":
                    self.assertIn("transport nccl-shm refused (budget), trying nccl-shm-lean", log)

    def test_a_segment_that_cannot_be_had_after_all(self):
        """In its first collective, NCCL finds less room than any formula says that it needs."""
        log = self.log_of_the_same_bits(64, 2, "host-memfd", FAKE_NCCL_WRONG_BYTES=40 * MIB)
        for rung, next_rung in (("nccl-shm", "nccl-shm-lean"), ("nccl-shm-lean", "host-memfd")):
            self.assertRegex(log, rf"transport {rung} refused \(open\), trying {next_rung}: "
                             "(?s:.)*?No space left on device")


class Planted(harness.TestCase):
    """Faults between ranks are named, and answers stay the same."""

    REQUEST = ("--prompt-ids", harness.ids_flag(IDS), "--max-tokens", 20, "--ignore-eos",
               "--temperature", 0, "--json")

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "rank"
        with emulated():
            out = harness.run("generate", FOLDER, *self.REQUEST, *ON_DEVICES).stdout
        self.tokens = json.loads(out)["token_ids"]

    def test_a_peer_that_dies_between_init_and_the_first_collective(self):
        for rung in ("nccl-shm", "nccl-socket"):
            self.file.write_text("1")
            with self.subTest(rung), emulated(PEERS="none"), \
                    unittest.mock.patch.dict(os.environ, {"FAKE_NCCL_DIE": str(self.file)}):
                process = harness.start("generate", FOLDER, *self.REQUEST, *ON_DEVICES, "-tp", 2,
                                        "--transport", rung)
                out, err = process.communicate(timeout=5 * harness.GUARD)
                self.assertEqual(process.returncode, 0, err)
                self.assertFalse(self.file.exists(), "no rank has died")
                self.assertRegex(err.decode(), r"starting the ranks again \(1 of \d+\).*rank 1 "
                                 r"\(pid \d+\) was killed by signal 9 \(Killed\) in phase open")
                answer = json.loads(out)
                self.assertEqual((answer["transport"], answer["token_ids"]), (rung, self.tokens))

    def test_a_rank_in_another_collective(self):
        """One rank leaves a sum out. From then on each of its collectives meets a different one of
        its peer, even if both have the same number of floats. Over cuda-ipc the first such meeting
        shows it."""
        log = self.log_of_a_sum_left_out("cuda-ipc", "--step-timeout", 5 * harness.GUARD)
        self.assertRegex(log, r"rank ([01]) failed in phase step \d+(?s:.)*? collective \d+ "
                         r"\((all_reduce of \d+ floats|gather of \d+ bytes)\): rank (?!\1)[01] is "
                         "in another collective")
        self.assertNotIn("the GPU has failed", log)

    def test_a_rank_in_another_collective_of_nccl(self):
        """In the end its peer waits for a collective that does not come."""
        log = self.log_of_a_sum_left_out("nccl-shm-lean", "--step-timeout", 2)
        self.assertRegex(log, r"starting the ranks again.*rank 0 \(step \d+.*[,:] collective "
                         r"\d+, (all_reduce of \d+ floats|gather of \d+ bytes)\) waits for rank 1")

    def log_of_a_sum_left_out(self, rung: str, *flags) -> str:
        with emulated(LEAVE_OUT=self.file), harness.planted("1:step-9:stop"):
            server = self.serve(FOLDER, *ON_DEVICES, "-tp", 2, "--max-num-seqs", 2,
                                "--kv-cache-memory", "2m", "--transport", rung, *flags)
            self.assertEqual(server.wait_ready()["transport"], rung)
        client = server.client(*self.REQUEST)
        rank = harness.stopped_rank(server.pid)
        self.file.write_text("1")
        os.kill(rank, signal.SIGCONT)
        out, err = client.communicate(timeout=5 * harness.GUARD)
        self.assertEqual(client.returncode, 0, err)
        self.assertEqual(json.loads(out)["token_ids"], self.tokens)
        self.assertFalse(self.file.exists(), "no collective has been left out")
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.end(), 0)
        return server.err.rest()


if __name__ == "__main__":
    harness.main()
