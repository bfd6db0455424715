"""The model that was loaded is the model that answers, whatever happens to its files.

Servers run on copies of small checkpoints, whose files are replaced, moved, cut and overwritten.
"""
import functools
import json
import mmap
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import breadth
import harness
from http_client import open_requests

try:
    import grpc
except ImportError:
    grpc = None

RANKS = 2
SHARDED = harness.ORACLE / "llama3-gqa-tied-sharded"
# The plain loops are so slow that a stream mostly still runs when something is done to the files.
FLAGS = ("-tp", RANKS, "--threads-per-rank", 1, "--cpu-kernels", "reference", "--step-timeout",
         5 * harness.GUARD)
IN_THE_STREAM = "1:step-20:stop"  # a rank stands still there, so that no answer can be over
PROMPT = ("--prompt-ids", "0,1151,262", "--ignore-eos", "--temperature", 0, "--max-tokens")
SHORT, LONG, ENDLESS = (*PROMPT, 10), (*PROMPT, 60), (*PROMPT, 500)
PIECE = 64 << 10
# A GenerateRequest: a prompt (field 3), and StoppingOptions (field 6) with max_tokens 500 and
# ignore_eos.
ENDLESS_ON_THE_WIRE = b"\x1a\x10In the beginning" + b"\x32\x05" + b"\x08\xf4\x03\x20\x01"


def other_weights(path: Path) -> bytes:
    """The same header with other tensors: the bytes of the data in reverse order."""
    whole = path.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    return whole[:header] + whole[:header - 1:-1]


def rename_over(path: Path, content: bytes):
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.rename(path)


class CopiedModel(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.model = shutil.copytree(harness.DEMO, self.folder / "demo")
        self.weights = self.model / "model.safetensors"

    def started(self, model: Path | None = None, fault: str = "") -> harness.Server:
        with harness.planted(fault):
            server = self.serve(model or self.model, *FLAGS)
        server.wait_ready()
        return server

    def stream(self, server, request):
        client = server.client(*request)
        self.addCleanup(lambda: client.poll() is None and client.kill())
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        harness.wait_until(lambda: len(out.data) > 10, "text")
        return client, out, err

    def answer(self, server, request) -> str:
        client = server.client(*request)
        out, err = client.communicate()
        self.assertEqual(client.returncode, 0, err.decode(errors="replace"))
        return out.decode().strip()

    @staticmethod
    @functools.cache  # the plain loops take long, and many tests ask for the same
    def expected(request) -> str:
        return harness.run("generate", harness.DEMO, *request, "--cpu-kernels",
                           "reference").stdout.decode().strip()

    def lose_a_rank(self, server):
        """Kills a rank, and waits until another one runs in its place."""
        was = server.err.text().count("the ranks run again over")
        os.kill(harness.children(server.pid)[1], signal.SIGKILL)
        server.wait_logged("the ranks run again over", was + 1)

    def check_ended_by(self, server, file: Path):
        self.assertEqual(server.end(), harness.WORKER_DIED, server.err.text())
        self.assertRegex(server.err.rest(), rf"error: .*{re.escape(str(file))} was changed in place")


class ModelFiles(CopiedModel):
    def test_files_that_are_renamed_over_change_nothing_until_the_next_start(self):
        server = self.started()
        client, out, err = self.stream(server, LONG)
        with harness.stopped(server.pid):  # so that it does not look in between
            rename_over(self.weights, other_weights(self.weights))
            for name in ("config.json", "tokenizer.json"):
                rename_over(self.model / name, b"{}")
        self.lose_a_rank(server)
        self.assertEqual(client.wait(), 0, err.rest())
        self.assertEqual(out.rest().strip(), self.expected(LONG))
        self.assertEqual(self.answer(server, SHORT), self.expected(SHORT))
        server.wait_logged("were replaced")
        warnings = [line for line in server.err.text().splitlines() if "were replaced" in line]
        self.assertEqual(len(warnings), 1, server.err.text())
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            self.assertIn(str(self.model / name), warnings[0])
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())
        shutil.copy(harness.DEMO / "config.json", self.model)
        next_start = harness.run("generate", self.model, "--prompt-ids", "0,1151,262",
                                 "--max-tokens", 20, "--ignore-eos", code=harness.BAD_MODEL)
        self.assertIn(b"tokenizer.json", next_start.stderr)

    def test_a_hub_whose_link_is_moved_and_whose_files_are_removed(self):
        # A sharded checkpoint in the layout of the Hugging Face cache.
        for revision in ("1", "2"):
            snapshot = self.folder / "snapshots" / revision
            blobs = self.folder / "blobs" / revision
            snapshot.mkdir(parents=True)
            shutil.copytree(SHARDED, blobs)
            for file in blobs.iterdir():
                (snapshot / file.name).symlink_to(Path("../../blobs") / revision / file.name)
        for shard in (self.folder / "blobs" / "2").glob("*.safetensors"):
            shard.write_bytes(other_weights(shard))
        link = self.folder / "main"
        link.symlink_to("snapshots/1")
        server = self.started(link)
        request = ("--prompt-ids", "5,6,7", "--max-tokens", 30, "--ignore-eos", "--temperature", 0)
        before = self.answer(server, request)
        (self.folder / "new").symlink_to("snapshots/2")
        with harness.stopped(server.pid):  # so that it does not look in between
            (self.folder / "new").rename(link)
            shutil.rmtree(self.folder / "snapshots" / "1")
            shutil.rmtree(self.folder / "blobs" / "1")
        self.lose_a_rank(server)
        self.assertEqual(self.answer(server, request), before)
        server.wait_logged("were replaced")
        [warning] = re.findall(r".*were replaced.*", server.err.text())
        for shard in SHARDED.glob("*.safetensors"):
            self.assertIn(str(link / shard.name), warning)
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())
        self.assertNotEqual(self.answer(self.started(link), request), before,
                            "the next start uses the new files")

    @unittest.skipIf(grpc is None, "this Python has no grpc (Debian: python3-grpcio)")
    def test_a_change_in_place_ends_streams_with_data_loss(self):
        server = self.started(fault=IN_THE_STREAM)
        client, _, err = self.stream(server, ENDLESS)
        channel = grpc.insecure_channel(server.fields["grpc"],
                                        options=[("grpc.enable_http_proxy", 0)])
        self.addCleanup(channel.close)
        call = channel.unary_stream("/openengine.v1.Inference/Generate",
                                    request_serializer=bytes, response_deserializer=bytes)
        stream = call(ENDLESS_ON_THE_WIRE, timeout=5 * harness.GUARD)
        harness.stopped_rank(server.pid)
        harness.wait_until(lambda: open_requests(server) == 2, "two streams")
        self.weights.write_bytes(other_weights(self.weights))
        with self.assertRaises(grpc.RpcError) as caught:
            for _ in stream:
                pass
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DATA_LOSS)
        self.assertIn(f"{self.weights} was changed in place", caught.exception.details())
        self.check_ended_by(server, self.weights)
        self.assertEqual(client.wait(), harness.INTERNAL)
        self.assertIn(f"{self.weights} was changed in place", err.rest())

    def test_a_change_in_place_is_looked_for_before_a_restart(self):
        server = self.started()
        with harness.stopped(server.pid):  # so that it does not look in between, and ends before
            self.weights.write_bytes(other_weights(self.weights))
            harness.kill_and_wait(harness.children(server.pid)[1:])
        self.check_ended_by(server, self.weights)
        self.assertNotIn("the ranks run again over", server.err.text())

    def test_files_that_are_cut_while_nothing_runs(self):
        server = self.started()
        os.truncate(self.weights, 1000)
        self.check_ended_by(server, self.weights)

    def test_a_start_that_finds_what_is_being_written(self):
        os.truncate(self.weights, 1_000_000)
        begun, over = threading.Event(), threading.Event()

        def write():
            with self.weights.open("ab", buffering=0) as file:
                while not over.is_set():
                    file.write(b"x")
                    begun.set()
        writer = threading.Thread(target=write)
        writer.start()
        try:
            begun.wait()
            start = harness.run("generate", self.model, *SHORT, code=harness.WORKER_DIED)
        finally:
            over.set()
            writer.join()
        self.assertIn(f"{self.weights} was changed in place while it was opened",
                      start.stderr.decode())

    def test_a_touch_is_a_line_in_the_log(self):
        server = self.started()
        self.weights.touch()
        server.wait_logged(r"WARNING .*model\.safetensors was touched")
        self.assertEqual(self.answer(server, SHORT), self.expected(SHORT))
        self.assertNotIn("were replaced", server.err.text())
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())

    def test_generate_ends_too(self):
        with harness.planted(IN_THE_STREAM):
            process = harness.start("generate", self.model, *ENDLESS, *FLAGS)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        out, err = harness.Reader(process.stdout), harness.Reader(process.stderr)
        rank = harness.stopped_rank(process.pid)
        self.weights.write_bytes(other_weights(self.weights))
        os.kill(rank, signal.SIGCONT)  # it looks between steps, of which 480 are left
        self.assertEqual(process.wait(), harness.WORKER_DIED, err.rest())
        self.assertIn(f"{self.weights} was changed in place", err.rest())


class FewRanks(CopiedModel):
    """The exit code is that of a changed model too if there is one rank, which has no peer that could
    notice, or if no restart is granted, so that the ranks' loss is the end anyway."""

    def check_each(self, change):
        """change(server) is called for a server of each kind, and is what ends it."""
        original = self.weights.read_bytes()
        for ranks, restarts in ((1, 3), (RANKS, 0)) + (() if breadth.NARROW else ((1, 0),)):
            with self.subTest(ranks=ranks, restarts=restarts):
                self.weights.write_bytes(original)
                server = self.serve(self.model, "-tp", ranks, "--max-restarts", restarts)
                change(server)
                self.check_ended_by(server, self.weights)

    def test_a_change_in_place(self):
        def change(server):
            server.wait_ready()
            self.weights.write_bytes(other_weights(self.weights))
        self.check_each(change)

    def test_a_change_and_the_death_of_a_rank(self):
        def change(server):
            server.wait_ready()
            with harness.stopped(server.pid):  # so that it does not look in between
                self.weights.write_bytes(other_weights(self.weights))
                harness.kill_and_wait(harness.children(server.pid)[-1:])
        self.check_each(change)

    def test_a_change_while_ranks_load(self):
        def change(server):
            rank = harness.stopped_rank(server.pid)
            os.truncate(self.weights, 1000)
            os.kill(rank, signal.SIGCONT)
        with harness.planted("0:load:stop"):
            self.check_each(change)


class ChangedWeights(CopiedModel):
    """Weights are changed while they are served, and then a rank is lost. No token may come from ranks
    that loaded other bytes."""

    def changes(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """What is changed, as ranges of bytes of the file, by name."""
        whole = self.weights.read_bytes()
        size = struct.unpack("<Q", whole[:8])[0]
        header, data = json.loads(whole[8:8 + size]), 8 + size
        draw = random.Random(breadth.day())
        tensors = {name: (data + entry["data_offsets"][0], data + entry["data_offsets"][1],
                          entry["shape"]) for name, entry in header.items() if "shape" in entry}
        layers = {name: place for name, place in tensors.items() if ".layers." in name}
        found = [("the whole file", [(data, len(whole))])]
        for name in draw.sample(sorted(layers), 6):
            found.append((name, [layers[name][:2]]))
        matrices = [name for name in layers if len(layers[name][2]) == 2]
        embedding = [name for name in tensors if "embed" in name]
        for what, names, count in (("row", matrices, 5), ("byte", matrices, 6),
                                   ("byte", embedding, 2)):
            while count:
                name = draw.choice(sorted(names))
                begin, end, shape = tensors[name]
                size = (end - begin) // shape[0] if what == "row" else 1
                at = begin + size * draw.randrange((end - begin) // size)
                if self.in_no_piece(at, at + size, len(whole)):
                    found.append((f"a {what} of {name}", [(at, at + size)]))
                    count -= 1
        return found

    @staticmethod
    def in_no_piece(begin: int, end: int, size: int) -> bool:
        """Whether no byte is in the 64 pieces of the file that are compared (models/held_file.cc), so
        that only the checksum of the weights can show a change."""
        every = -(-size // PIECE)
        pieces = {index * (every - 1) // 63 for index in range(64)}
        return not pieces & set(range(begin // PIECE, (end - 1) // PIECE + 1))

    def change(self, ranges: list[tuple[int, int]], mapped: bool):
        with self.weights.open("r+b") as file:
            place = mmap.mmap(file.fileno(), 0) if mapped else None
            for begin, end in ranges:
                file.seek(begin)
                changed = bytes(byte ^ 1 for byte in file.read(end - begin))
                if place:
                    place[begin:end] = changed
                else:
                    file.seek(begin)
                    file.write(changed)

    def check_change(self, what: str, ranges: list[tuple[int, int]], mapped: bool):
        expected = self.expected(LONG)
        original = self.weights.read_bytes()
        with harness.planted(IN_THE_STREAM):
            server = self.serve(self.model, *FLAGS)
            server.wait_ready()
        client, out, err = self.stream(server, LONG)
        rank = harness.stopped_rank(server.pid)
        with harness.stopped(server.pid):  # so that it does not look in between
            self.change(ranges, mapped)
            harness.kill_and_wait([rank])
        self.assertEqual(server.end(), harness.WORKER_DIED, f"{what}: {server.err.text()}")
        by_sum = what.startswith("a ")
        self.assertRegex(server.err.rest(), r"error: .*the weights of rank \d.* were changed in place"
                         if by_sum else "changed in place", what)
        self.assertNotEqual(client.wait(), 0, what)
        self.assertTrue(expected.startswith(out.rest().strip()), what)
        self.assertRegex(err.rest(), "changed in place", what)
        self.weights.write_bytes(original)

    def test_ranks_that_would_load_other_bytes_compute_nothing(self):
        changes = self.changes()
        self.assertGreaterEqual(len(changes), 20)
        # A narrow run changes a tensor and a byte of the embedding through a mapping only (below).
        for what, ranges in changes[::8] if breadth.NARROW else changes:
            with self.subTest(what):
                self.check_change(what, ranges, mapped=False)

    def test_a_write_through_a_mapping_of_a_tmpfs(self):
        if subprocess.run(["stat", "-f", "-c", "%T", "/dev/shm"], capture_output=True,
                          text=True).stdout.strip() != "tmpfs":
            self.skipTest("/dev/shm is no tmpfs here")
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.model = shutil.copytree(harness.DEMO, Path(folder.name) / "demo")
        self.weights = self.model / "model.safetensors"
        for what, ranges in self.changes()[1:21:18 if breadth.NARROW else 6]:
            with self.subTest(what):
                self.check_change(what, ranges, mapped=True)

    def test_a_server_without_streams_ends_too(self):
        server = self.started()
        with harness.stopped(server.pid):
            what, ranges = self.changes()[-3]
            self.change(ranges, mapped=False)
            harness.kill_and_wait([harness.children(server.pid)[1]])
        self.assertEqual(server.end(), harness.WORKER_DIED, f"{what}: {server.err.text()}")
        self.assertRegex(server.err.rest(), "error: .*the weights of rank")

    def check_change_while_a_rank_loads(self, change):
        """At the first start, and at a restart."""
        for faults in ("1:load:stop", "1:step-20:stop,1:load:stop"):
            with self.subTest(faults), harness.planted(faults):
                server = self.serve(self.model, *FLAGS)
                if "," in faults:
                    server.wait_ready()
                    client, _, _ = self.stream(server, LONG)
                    harness.kill_unseen(server.pid, [harness.stopped_rank(server.pid)])
                    server.wait_logged("starting the ranks again")
                original = self.weights.read_bytes()
                rank = harness.stopped_rank(server.pid)
                change()
                os.kill(rank, signal.SIGCONT)
                self.assertEqual(server.end(), harness.WORKER_DIED, server.err.text())
                self.assertRegex(server.err.rest(), "error: .*changed in place")
                if "," not in faults:
                    self.assertEqual(server.out.rest(), "", "it was never ready")
                self.weights.write_bytes(original)

    def test_a_cut_while_ranks_load(self):
        self.check_change_while_a_rank_loads(lambda: os.truncate(self.weights, 1000))

    def test_a_byte_while_ranks_load(self):
        """The rank that loads later reads the changed byte, and the other one has read the old
        byte. No piece of the file that is compared contains the change."""
        what, ranges = self.changes()[-3]
        self.check_change_while_a_rank_loads(lambda: self.change(ranges, mapped=False))


if __name__ == "__main__":
    harness.main()
