"""Ranks that are lost get the same devices again, or the program says why not.

Which devices there are, under which of CUDA's numbers, and how much of their memory others have, is
in files that a test changes before new ranks look.
"""
import contextlib
import ctypes
import json
import os
import re
import signal
import tempfile
from pathlib import Path

import harness
import jsonschema
from emulated_gpu import ON_DEVICES, emulated, gpu, uuid_of

FOLDER = harness.ORACLE / "llama-nine-heads"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
REQUEST = ("--prompt-ids", harness.ids_flag(EXPECTED["prompts"][0]["ids"]), "--max-tokens", 12,
           "--ignore-eos", "--temperature", 0, "--json")
NOT_YET = "(?s)cannot be started yet.*?"
BYTES = 64 << 20  # of each device
# For a whole start. A rank that is silent for a quarter of it has hung.
START_S = harness.GUARD // 3
OVER_MEMFD = ("--transport", "host-memfd")
LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_DETACH, PTRACE_SEIZE, TRACE_EXIT = 17, 0x4206, 0x40


def ptrace(request: int, pid: int, data: int = 0):
    if LIBC.ptrace(request, pid, None, ctypes.c_void_p(data)) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")  # of the class that the number says


@contextlib.contextmanager
def held(pid: int):
    """One SIGKILL does not end the process meanwhile: a debugger keeps it at the last stop before
    its exit, as a driver would."""
    ptrace(PTRACE_SEIZE, pid, TRACE_EXIT)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            ptrace(PTRACE_DETACH, pid)


class Machine:
    """What the emulated machine is, for a server and its ranks. Device 1 is of another class than
    the others, and its kernels do not end, so that nobody gets an answer from it."""

    def __init__(self, folder: str):
        self.folder = Path(folder)
        self.say("numbers", "0,2,1")
        self.say("taken", 0)
        self.say("hangs", 1)

    def say(self, name: str, value):
        """The whole value is there at once."""
        part = self.folder / "part"
        part.write_text(f"{value}\n")
        part.rename(self.folder / name)

    def settings(self) -> dict:
        return {"BYTES": BYTES, "CAPABILITY": "9.0,8.6,9.0", "NUMBERS": self.folder / "numbers",
                "TAKEN": self.folder / "taken", "HANG": self.folder / "hangs"}


class Restart(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def machine(self, name: str = "only") -> Machine:
        folder = Path(self.folder) / name
        folder.mkdir()
        return Machine(folder)

    def streaming(self, machine: Machine, *flags, ranks: int = 1):
        """A server with a stream, and its rank 0, which has stopped in the middle of it."""
        with emulated(**machine.settings()), harness.planted("0:step-3:stop"):
            server = self.serve(FOLDER, *ON_DEVICES, "-tp", ranks, "--kv-cache-memory", "2m",
                                "--step-timeout", 10 * harness.GUARD, *flags)
            server.wait_ready()
        client = server.client(*REQUEST)
        self.addCleanup(client.kill)
        return server, client, harness.stopped_rank(server.pid)

    def expected_tokens(self) -> list[int]:
        with emulated():
            done = harness.run("generate", FOLDER, *REQUEST, *ON_DEVICES)
        return json.loads(done.stdout)["token_ids"]

    def assert_goes_on(self, server: harness.Server, client: harness.Process):
        out, err = client.communicate(timeout=5 * harness.GUARD)
        self.assertEqual(client.returncode, 0, err)
        self.assertEqual(json.loads(out)["token_ids"], self.expected_tokens())
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.end(), 0)
        self.assertEqual(server.err.rest().count("starting the ranks again (1 of"), 1)

    def test_memory_that_comes_back_is_waited_for(self):
        machine = self.machine()
        server, client, rank = self.streaming(machine)
        machine.say("taken", BYTES)
        os.kill(rank, signal.SIGKILL)
        server.wait_logged(rf"{NOT_YET}{re.escape(gpu(0))} has 0 B free of {BYTES} B "
                           r"\(64\.0 MiB\)", count=2)
        machine.say("taken", 0)
        self.assert_goes_on(server, client)

    def test_a_device_keeps_its_rank_whatever_its_number(self):
        machine = self.machine()
        server, client, rank = self.streaming(machine)
        machine.say("numbers", "1,0")
        os.kill(rank, signal.SIGKILL)
        self.assert_goes_on(server, client)

    def test_two_devices_keep_their_ranks(self):
        machine = self.machine()
        server, client, rank = self.streaming(machine, "--transport", "cuda-ipc", ranks=2)
        self.assertEqual(server.fields["gpus"],
                         f"0:{uuid_of(0)}:Emulated GPU,1:{uuid_of(2)}:Emulated GPU")
        machine.say("numbers", "1,2,0")
        os.kill(rank, signal.SIGKILL)
        self.assert_goes_on(server, client)

    def test_a_device_that_comes_back_is_waited_for(self):
        machine = self.machine()
        server, client, rank = self.streaming(machine)
        machine.say("numbers", "none")
        os.kill(rank, signal.SIGKILL)
        server.wait_logged(f"{NOT_YET}no CUDA-capable device")
        machine.say("numbers", "1")  # the same class of a number is not the same device
        server.wait_logged(rf"{NOT_YET}{re.escape(gpu(0))} is gone: CUDA shows 1 GPU")
        machine.say("numbers", "2,1,0")
        self.assert_goes_on(server, client)

    def test_a_process_that_does_not_end_is_waited_for(self):
        server, client, rank = self.streaming(self.machine(), *OVER_MEMFD, ranks=2)
        other = next(pid for pid in server.workers(2) if pid != rank)
        try:
            with held(rank):
                os.kill(other, signal.SIGKILL)
                server.wait_logged(rf"{NOT_YET}rank 0 \(pid {rank}, state t\).*?"
                                   rf"holds {re.escape(gpu(0))}")
        except PermissionError as error:
            self.skipTest(f"ptrace is forbidden here: {error}")
        self.assert_goes_on(server, client)

    def assert_ends(self, server: harness.Server, client: harness.Process, *said: str):
        self.assertEqual(server.end(), harness.WORKER_DIED, server.err.text())
        self.assertNotEqual(client.wait(), 0)
        error = server.err.rest().rpartition("shoal: error:")[2]
        for pattern in ("--startup-timeout", *said):
            self.assertRegex(error, pattern)

    def test_what_does_not_come_back_in_time_is_named(self):
        """The three wait at the same time."""
        limit = ("--startup-timeout", START_S)
        memory, device = self.machine("memory"), self.machine("device")
        of_memory = self.streaming(memory, *limit)
        of_device = self.streaming(device, *limit)
        of_process = self.streaming(self.machine("process"), *limit, *OVER_MEMFD, ranks=2)
        rank = of_process[2]
        other = next(pid for pid in of_process[0].workers(2) if pid != rank)
        memory.say("taken", BYTES)
        device.say("numbers", "1")  # number 0 is a device of another class now
        with contextlib.ExitStack() as until_the_end:
            try:
                until_the_end.enter_context(held(rank))
            except PermissionError as error:
                self.skipTest(f"ptrace is forbidden here: {error}")
            for victim in (of_memory[2], of_device[2], other):
                os.kill(victim, signal.SIGKILL)
            had = re.escape(f"which had {gpu(0)}, has ended")
            self.assert_ends(*of_memory[:2], rf"rank 0 \(pid {of_memory[2]}\), {had}",
                             rf"{re.escape(gpu(0))} has 0 B free of {BYTES} B \(64\.0 MiB\)")
            self.assert_ends(*of_device[:2], rf"rank 0 \(pid {of_device[2]}\), {had}",
                             rf"{re.escape(gpu(0))} is gone: CUDA shows 1 GPU now")
            self.assert_ends(*of_process[:2], rf"rank 0 \(pid {rank}, state t\).*"
                             rf"holds {re.escape(gpu(0))}")


class Names(harness.TestCase):
    """A device is named by its number, its UUID and its name."""

    def test_ready(self):
        with emulated():
            fields = self.serve(FOLDER, *ON_DEVICES).wait_ready()
        self.assertEqual(fields["gpus"], f"0:{uuid_of(0)}:Emulated GPU")
        self.assertNotIn("gpus", self.serve(FOLDER, "--device", "cpu").wait_ready())

    def test_doctor(self):
        """Two ranks leave the third device alone, and nobody asks it for its free memory."""
        with emulated(DEVICES=3, CAPABILITY="9.0,8.6"):
            flags = ("doctor", *ON_DEVICES[:-2], "-tp", 2, "--reproducible", "off")
            said = harness.run(*flags, "--transport", "cuda-ipc").stdout.decode()
            document = json.loads(harness.run(*flags, "--transport", "cuda-ipc", "--json").stdout)
        for device, capability in ((0, "9.0"), (1, "8.6")):
            self.assertIn(f"{gpu(device)}: compute capability {capability}, 1073741824 B", said)
            self.assertEqual(document["facts"]["gpu"]["devices"][device]["uuid"], uuid_of(device))
        schema = (harness.ROOT / "docs/schemas/transport-report.schema.json").read_text()
        jsonschema.Draft202012Validator(json.loads(schema)).validate(document)
        free = [device["free_bytes"] for device in document["facts"]["gpu"]["devices"]]
        self.assertEqual([one is None for one in free], [False, False, True])

    def test_errors(self):
        with emulated(FAIL="cudaLaunchKernel:719"):
            done = harness.run("generate", FOLDER, *REQUEST, *ON_DEVICES, "--max-restarts", 0,
                               code=harness.WORKER_DIED)
        self.assertIn(f"{gpu(0)}, ", done.stderr.decode())


if __name__ == "__main__":
    harness.main()
