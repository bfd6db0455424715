"""Ranks and devices that are lost in the middle of a stream, which then goes on with the same tokens.

The module is that of tests/emulator, and NCCL is that of tests/fakes.
"""
import contextlib
import functools
import json
import os
import re
import signal
import tempfile
import unittest.mock
from pathlib import Path

import harness
from emulated_gpu import ON_DEVICES, emulated, uuid_of

FOLDER = harness.ORACLE / "llama-nine-heads"
PROMPT = ("--prompt-ids", harness.ids_flag(
    json.loads((FOLDER / "expected.json").read_text())["prompts"][0]["ids"]))
REQUEST = (*PROMPT, "--max-tokens", 60, "--ignore-eos", "--temperature", 0)
PATIENT = ("--step-timeout", 5 * harness.GUARD)  # only what has happened ends a step
NCCL_RUNGS = ("nccl-p2p", "nccl-shm-lean")


def gpu(device: int) -> str:
    return f"GPU {device} ({uuid_of(device)}, Emulated GPU)"


def put(path: Path, text: str):
    """The whole text is there at once."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


@functools.cache
def tokens_without_fault() -> list[int]:
    with emulated():
        out = harness.run("generate", FOLDER, *REQUEST, "--json", *ON_DEVICES).stdout
    return json.loads(out)["token_ids"]


class Streams(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def serve_on_devices(self, ranks: int, *flags) -> harness.Server:
        server = self.serve(FOLDER, *ON_DEVICES, "-tp", ranks, "--max-num-seqs", 2,
                            "--kv-cache-memory", "2m", *flags)
        fields = server.wait_ready()
        self.assertEqual(fields["kernels"], "cuda")
        self.assertRegex(fields["arithmetic"], "^cuda-sm90-8$")
        return server

    def log_of_stream_with(self, fault, *flags, ranks=2, **settings) -> str:
        """The last rank stops itself in a stream, and then fault(server, its pid) is called. The
        stream must have the tokens of one without a fault. Returns the log."""
        with emulated(**settings), harness.planted(f"{ranks - 1}:step-9:stop"):
            server = self.serve_on_devices(ranks, *flags)
        client = server.client(*REQUEST, "--json")
        fault(server, harness.stopped_rank(server.pid))
        out, err = client.communicate(timeout=5 * harness.GUARD)
        self.assertEqual(client.returncode, 0, err)
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.end(), 0)
        self.assertEqual(json.loads(out)["token_ids"], tokens_without_fault())
        log = server.err.rest()
        self.assertEqual(log.count("starting the ranks again ("), 1, log)
        return log


class Ranks(Streams):
    """A rank is killed, stops, or has a device that hangs."""

    def test_a_rank_that_is_killed(self):
        log = self.log_of_stream_with(lambda server, rank: os.kill(rank, signal.SIGKILL),
                                      "--transport", "cuda-ipc", *PATIENT)
        self.assertIn("the ranks run again over cuda-ipc", log)

    def test_a_rank_that_stops_is_named(self):
        log = self.log_of_stream_with(lambda server, rank: None,  # it does not go on by itself
                                      "--transport", "host-memfd", "--step-timeout", 2)
        self.assertRegex(log, "starting the ranks again.*rank 1")

    def test_a_kernel_that_never_ends(self):
        """Its rank looks busy and the host waits: only marks that the stream writes are progress.
        The rank and what its GPU was in are named, also if there is no other rank that waits."""
        for ranks, flags in ((2, ("--transport", "cuda-ipc")), (1, ())):
            with self.subTest(ranks=ranks):
                path = self.folder / f"hangs-{ranks}"

                def hang(server, rank):
                    path.write_text(f"{ranks - 1}")
                    os.kill(rank, signal.SIGCONT)
                    harness.wait_until(lambda: "starting the ranks again" in server.err.text(),
                                       "the group given up")
                    path.write_text("-1")

                log = self.log_of_stream_with(hang, *flags, "--step-timeout", 2, ranks=ranks,
                                              HANG=path)
                named = rf"rank {ranks - 1} \(step \1, its GPU in layer 0, attention(, .*)?\) waits"
                if ranks == 2:  # its peer waits in a sum, and both hosts only for their devices
                    named += r" for nobody; rank 0 \(step \1, its GPU in the sum of layer 0, " \
                             r"attention, .*\) waits for rank 1"
                self.assertRegex(log, r"no answer for 2 s in phase step (\d+); " + named)

    def test_a_kernel_that_never_ends_while_its_enqueuing_call_waits(self):
        """So it is with a queue that is full. The rank cannot say anything then, and has to have said
        before that it waits: what it uses of the processor in that call is no progress, for which it
        would have ten times as long."""
        path = self.folder / "waits"

        def hang(server, rank):
            path.write_text("0")
            os.kill(rank, signal.SIGCONT)
            harness.wait_until(lambda: "starting the ranks again" in server.err.text(),
                               "the group given up")
            path.write_text("-1")

        log = self.log_of_stream_with(hang, "--step-timeout", 2, ranks=1, HANG=path,
                                      STREAMS="at-once")
        self.assertRegex(log, r"no answer for 2 s in phase step \d+; rank 0 \(step \d+\) does not "
                              "answer")

    def test_kernels_of_both_that_never_end(self):
        """Neither waits for the other."""
        path = self.folder / "hang"
        with emulated(HANG=path):
            server = self.serve_on_devices(2, "--transport", "cuda-ipc", "--step-timeout", 2)
        path.write_text("0 1")
        client = server.client(*REQUEST, "--json")
        server.wait_logged(r"no answer for 2 s in phase step \d+; "
                           r"rank 0 \(step \d+, its GPU in layer 0, attention, .*\) waits for nobody; "
                           r"rank 1 \(step \d+, its GPU in layer 0, attention, .*\) waits for nobody")
        path.write_text("-1")
        out, err = client.communicate(timeout=5 * harness.GUARD)
        self.assertEqual(client.returncode, 0, err)
        self.assertEqual(json.loads(out)["token_ids"], tokens_without_fault())
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.end(), 0)


class Nccl(Streams):
    """The same over NCCL, whose collectives notice none of it."""

    def test_a_rank_that_is_killed(self):
        for rung in NCCL_RUNGS:
            with self.subTest(rung):
                log = self.log_of_stream_with(lambda server, rank: os.kill(rank, signal.SIGKILL),
                                              "--transport", rung, *PATIENT)
                self.assertIn(f"the ranks run again over {rung}", log)

    def test_a_rank_that_stops_is_named(self):
        for rung in NCCL_RUNGS:
            with self.subTest(rung):
                log = self.log_of_stream_with(lambda server, rank: None, "--transport", rung,
                                              "--step-timeout", 2)
                self.assertRegex(log, "starting the ranks again.*rank 1")

    def test_a_call_that_never_returns(self):
        """The rank spins in it, and is no rank that computes, which would have ten times as long."""
        for rung in NCCL_RUNGS:
            path = self.folder / rung

            def hang(server, rank):
                path.touch()
                os.kill(rank, signal.SIGCONT)

            hangs = unittest.mock.patch.dict(os.environ, FAKE_NCCL_HANG=f"collective:1:{path}")
            with self.subTest(rung), hangs:
                log = self.log_of_stream_with(hang, "--transport", rung, "--step-timeout", 2)
                self.assertFalse(path.exists(), "the call has taken the file away")
                self.assertRegex(log, r"no answer for 2 s in phase step \d+; ")
                self.assertRegex(log, r"; rank 1 \(step \d+\) does not answer")
                self.assertNotIn("spins", log)


class Gpus(Streams):
    """A GPU fails in one rank of two."""

    def test_an_error_that_stays(self):
        """CUDA returns it from every later call of that process. A new process has it no more."""
        for rung, error in (("cuda-ipc", "cudaLaunchKernel:719:1"),
                            ("nccl-p2p", "cudaEventQuery:700:1")):
            with self.subTest(rung):
                path = self.folder / rung

                def break_it(server, rank):
                    put(path, error)
                    os.kill(rank, signal.SIGCONT)

                log = self.log_of_stream_with(break_it, "--transport", rung, *PATIENT, FAIL=path)
                self.assertFalse(path.exists(), "the rank has found the file")
                self.assertRegex(log, r"rank 1 failed in phase step \d+")
                self.assertIn("the GPU has failed", log)
                self.assertIn(f"{gpu(1)}, ", log)
                self.assertIn(f"the ranks run again over {rung}", log)

    def test_one_that_falls_off_and_comes_back(self):
        path, numbers = self.folder / "fails", self.folder / "numbers"
        put(numbers, "0,1")

        def fall_off(server, rank):
            put(numbers, "0")
            put(path, "cudaEventQuery:999:1")
            os.kill(rank, signal.SIGCONT)
            server.wait_logged(r"(?s)cannot be started yet.*?"
                               rf"{re.escape(gpu(1))} is gone: CUDA shows 1 GPU")
            put(numbers, "0,1")

        log = self.log_of_stream_with(fall_off, "--transport", "nccl-p2p", *PATIENT, FAIL=path,
                                      NUMBERS=numbers)
        self.assertIn("the GPU has failed", log)
        self.assertIn("the ranks run again over nccl-p2p", log)


class Health(Streams):
    """The server asks its devices for a token, and says by --step-timeout which one hangs."""

    def test_beside_a_device_that_hangs(self):
        try:
            import grpc
        except ImportError:
            self.skipTest("this Python has no grpc (Debian: python3-grpcio)")
        path = self.folder / "hangs"
        with emulated(HANG=path):
            server = self.serve_on_devices(2, "--transport", "cuda-ipc", "--step-timeout", 2)
        with contextlib.closing(grpc.insecure_channel(
                server.fields["grpc"], options=[("grpc.enable_http_proxy", 0)])) as channel:
            health = channel.unary_unary("/openengine.v1.Control/Health")
            standard = channel.unary_unary("/grpc.health.v1.Health/Check")
            with_probe = b"\x08\x01"  # HealthRequest: include_inference_probe
            name = b"\x0a\x0finference_probe\x10"  # HealthCheck: its name, then its state
            not_ready, ready = name + b"\x05", name + b"\x02"
            path.write_text("1")
            # Nothing else asks the devices. The new ranks do not get ready either, so that whoever
            # waited for them would wait for as long as the device hangs.
            answer = health(with_probe, timeout=5 * harness.GUARD)
            self.assertRegex(answer, b"(?s)^\x08\x05.*" + re.escape(not_ready) +
                             rb".*rank 1 \(step \d+, its GPU in ")
            server.wait_logged(r"starting the ranks again.*rank 1 \(step \d+, its GPU in ")
            harness.wait_until(lambda: standard(b"", timeout=harness.GUARD) == b"\x08\x02",
                               "NOT_SERVING")
            self.assertRegex(health(b"", timeout=harness.GUARD), b"(?s)^\x08\x05.*are being started "
                             rb"again: .*rank 1 \(step \d+, its GPU in ")
            path.write_text("-1")
            harness.wait_until(lambda: standard(b"", timeout=harness.GUARD) == b"\x08\x01",
                               "a server that is well again")
            self.assertIn(ready, health(with_probe, timeout=5 * harness.GUARD))
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.end(), 0)


if __name__ == "__main__":
    harness.main()
