"""Random faults against a running server with open streams, of which none may be lost or differ.

Every fault is real: signals to ranks and to the whole group, lowered limits, a full /dev/shm and a
full memory cgroup, a log that nobody reads, idle connections, clients that do not read and prompts
of a megabyte. The seed decides which fault comes when, to which rank and for how long. Between two
faults the server's log shows at least as many steps as the server needs to forget a crash.
"""
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import cgroups
import grpc
import harness
from grpc_client_test import make_stubs
from storm_log import Log

RANKS, STREAMS = 2, 16
STEPS_BETWEEN = 24  # inference_loop.cc forgets a crash after 16 good steps of every request
RUNGS = ("shm", "shm-lean", "memfd", "cma", "tcp")
MIB = 2**20
MEMORY = 512 * MIB
OWN_DEV_SHM = ("unshare", "--mount", "--propagation", "private", "sh", "-ec",
               'mount -t tmpfs -o size=8m tmpfs /dev/shm; exec "$@"', "sh")
FREE_CHANNEL = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]


def requests(draw: random.Random) -> list[dict]:
    """Prompts and lengths of all kinds, greedy and sampled."""
    made = []
    for number in range(2 * STREAMS):
        request = {"prompt_ids": [draw.randrange(4, 4096) for _ in range(draw.randrange(1, 100))],
                   "max_tokens": draw.randrange(100, 400), "ignore_eos": True}
        if number % 2:
            request |= {"temperature": 0.9, "seed": draw.randrange(2**32), "top_p": 0.95}
        else:
            request["temperature"] = 0
        made.append(request)
    return made


class Stream(threading.Thread):
    """One request after the other until it is told to stop. Checks every answer."""

    def __init__(self, storm, slot: int):
        super().__init__(daemon=True)
        self.storm, self.draw = storm, random.Random(f"{storm.seed} stream {slot}")
        self.tokens = self.whole = 0  # tokens and answers that it has got
        self.twice = 0  # requests that were in two crashes in a row
        self.wrong = ""
        self.start()

    def run(self):
        with grpc.insecure_channel(self.storm.address, options=FREE_CHANNEL) as channel:
            generate = channel.unary_stream(
                "/openengine.v1.Inference/Generate",
                response_deserializer=self.storm.messages.GenerateResponse.FromString)
            while not self.storm.over.is_set() and not self.wrong:
                number = self.draw.randrange(len(self.storm.requests))
                try:
                    self.wrong = self.check(generate(self.storm.encoded[number]), number)
                except grpc.RpcError as error:
                    # A new request may be told to wait while a restart takes long. One that has
                    # begun may not.
                    if "WORKERS_RESTARTING" in str(error.trailing_metadata()):
                        time.sleep(0.2)
                    else:
                        self.wrong = f"request {number}: {error.code()}: {error.details()}"

    def check(self, events, number: int) -> str:
        ids, end = [], None
        for event in events:
            if event.WhichOneof("event") == "token":
                ids += [token.token_id for token in event.token.tokens]
                self.tokens += len(event.token.tokens)
            else:
                end = event
        self.whole += 1
        expected = self.storm.expected[number]
        if ids == expected:
            return ""
        if "crashed twice" in str(end):
            self.twice += 1
            return ""
        at = next((i for i, pair in enumerate(zip(ids, expected)) if pair[0] != pair[1]), len(ids))
        return f"request {number} differs from token {at} of {len(expected)} on: {end}"


class Storm:
    """A server under `faults` faults or for `seconds`. Raises AssertionError if something is lost.

    observe: called a few times a second with the server, for a record.
    """

    STREAMS = STREAMS
    FLAGS = ("--max-restarts", 1000)

    def order_of_rungs(self) -> list[str]:
        return self.draw.sample(RUNGS, len(RUNGS))

    def kinds(self) -> list[str]:
        """The methods of which one is drawn for each fault."""
        return [name for name in dir(self) if name.startswith("fault_")]

    def steps_between(self) -> int:
        """How many steps have to end well between two faults."""
        return STEPS_BETWEEN

    def steps(self) -> int:
        """How many of them have ended well since the last restart."""
        return self.log.steps

    def __init__(self, seed: int, observe=lambda server: None):
        self.seed, self.observe = seed, observe
        self.draw = random.Random(seed)
        self.folder = tempfile.TemporaryDirectory()
        make_stubs(self.folder.name)
        from openengine.v1 import generate_pb2
        self.messages = generate_pb2
        self.requests = requests(random.Random(f"{seed} requests"))
        self.expected = [answer["token_ids"]
                         for answer in harness.generate_jsonl(harness.DEMO, self.requests)]
        self.encoded = [self.encode(request) for request in self.requests]
        self.told = []  # what was done, in order
        self.whole = self.tokens = self.restarts = 0

    def encode(self, request: dict) -> bytes:
        pb = self.messages
        sampling = pb.SamplingParams(temperature=request["temperature"])
        for name in ("seed", "top_p"):
            if name in request:
                setattr(sampling, name, request[name])
        return pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=request["prompt_ids"]), sampling=sampling,
            stopping=pb.StoppingOptions(max_tokens=request["max_tokens"], ignore_eos=True)
        ).SerializeToString()

    def run(self, until, server_faults: int = 50):
        """Storms until until() is true. Each server gets `server_faults` faults, and each has
        another order of the rungs."""
        while not until():
            self.one_server(until, server_faults)

    def one_server(self, until, faults: int):
        order = self.order_of_rungs()
        try:
            self.group = cgroups.MemoryLimit(MEMORY)
        except OSError:
            self.group = None
        join = (lambda: self.group.add(os.getpid())) if self.group else None
        self.process = harness.start(
            "serve", harness.DEMO, "--grpc-port", 0, "-tp", RANKS, "--threads-per-rank", 1, "--transport",
            ",".join(order), *self.FLAGS, "--step-timeout", 3, "--log-level", "debug",
            wrapper=OWN_DEV_SHM, preexec_fn=join)
        try:
            self.serve_under(order, until, faults)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            if self.group:
                self.group.remove()

    def serve_under(self, order: list[str], until, faults: int):
        self.log, out = Log(self.process.stderr), harness.Reader(self.process.stdout)
        harness.wait_until(lambda: "\n" in out.text() or self.process.poll() is not None,
                           "a READY line")
        self.require(out.text().startswith("READY "), "it does not start")
        self.address = out.text().split("grpc=")[1].split()[0]
        self.over = threading.Event()
        self.told.append({"server": ",".join(order)})
        self.streams = [Stream(self, slot) for slot in range(self.STREAMS)]
        kinds = self.kinds()
        for _ in range(faults):
            self.settle()
            if until():
                break
            kind = self.draw.choice(kinds)
            fault = {"fault": kind.removeprefix("fault_")}
            self.told.append(fault)
            before = self.log.seen()
            getattr(self, kind)(fault)
            if fault.get("hit"):
                self.await_restart(before)
        self.settle()
        self.over.set()
        for stream in self.streams:
            stream.join(2 * harness.GUARD)
            self.require(not stream.is_alive(), "a stream does not end")
            self.check(stream)
            self.whole += stream.whole
            self.tokens += stream.tokens
        self.process.terminate()
        self.require(self.process.wait() == 0, "it does not stop well")
        self.process.stderr.close()

    def require(self, condition, what: str):
        if not condition:
            raise AssertionError(f"{what} (seed {self.seed}, after {json.dumps(self.told[-4:])})\n"
                                 f"exit code {self.process.poll()}\n{self.log.text()[-6000:]}")

    def check(self, stream: Stream):
        self.require(not stream.wrong, stream.wrong)
        self.require(not stream.twice or self.told[-1].get("crashes", 0) > 1,
                     "a request was in two crashes in a row")

    def wait(self, condition, what: str):
        deadline = time.monotonic() + harness.GUARD
        while not condition():
            self.require(self.process.poll() is None, "the server has ended")
            for stream in self.streams:
                self.require(not stream.wrong, stream.wrong)
            self.require(time.monotonic() < deadline, what)
            self.observe(self)
            self.log.wait(0.01)

    def await_restart(self, before: tuple[int, int]):
        self.wait(lambda: self.log.seen() != before, "no restart")

    def settle(self):
        """Waits until the server has run enough steps to forget the last crash."""
        steps = self.steps_between()
        self.wait(lambda: self.steps() >= steps, "the streams do not go on")
        for stream in self.streams:
            self.check(stream)
            stream.twice = 0

    def ranks(self) -> list[int]:
        """The living ranks; those of a group that is being started may be fewer."""
        return harness.children(self.process.pid)

    def kill(self, fault: dict, number: int = signal.SIGKILL, everyone: bool = False):
        victims = self.ranks()
        if not everyone and victims:
            victims = [self.draw.choice(victims)]
        for victim in victims:
            try:
                os.kill(victim, number)
            except ProcessLookupError:
                pass
        # Ranks leave SIGTERM to the front.
        fault["hit"] = 0 if number == signal.SIGTERM else len(victims)

    def hold(self, fault: dict, least: float, most: float):
        """Waits for a drawn time and records it in the fault."""
        fault["seconds"] = round(self.draw.uniform(least, most), 2)
        end = time.monotonic() + fault["seconds"]
        while time.monotonic() < end:
            self.observe(self)
            time.sleep(0.02)

    # --- kills -----------------------------------------------------------------------------------

    def fault_kill(self, fault: dict):
        self.kill(fault, self.draw.choice((signal.SIGKILL, signal.SIGTERM)))

    def fault_crash(self, fault: dict):
        self.kill(fault, self.draw.choice((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)))

    def fault_kill_all(self, fault: dict):
        self.kill(fault, everyone=True)

    def fault_kill_while_starting(self, fault: dict):
        # The front runs for moments, so that its new ranks are met before they take part in a step.
        front, old, restarts = self.process.pid, set(self.ranks()), self.log.restarts
        self.kill(fault)
        for _ in range(1000):
            time.sleep(0.002)
            with harness.stopped(front):
                harness.wait_until(self.log.is_read, "an empty pipe")
                if new := set(self.ranks()) - old:
                    if self.log.restarts == restarts:
                        os.kill(new.pop(), signal.SIGKILL)
                        fault["hit"] += 1
                    break
        if fault["hit"] > 1:
            # If the line of the start was on its way, the second kill was a crash of its own.
            self.wait(lambda: self.log.restarts > restarts and self.log.steps >= STEPS_BETWEEN,
                      "no restart")
            fault["crashes"] = self.log.restarts - restarts

    # --- class 1: what stands still --------------------------------------------------------------

    def fault_stop_rank(self, fault: dict):
        self.kill(fault, signal.SIGSTOP)

    def fault_pause(self, fault: dict):
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            self.hold(fault, 0.1, 2.5)
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    # --- class 2: what runs out for a while ------------------------------------------------------

    def fault_descriptors(self, fault: dict):
        limits = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (5, limits[1]))
        try:
            self.kill(fault)
            self.hold(fault, 0.1, 1.5)
        finally:
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, limits)

    def fault_full_dev_shm(self, fault: dict):
        path = Path(f"/proc/{self.process.pid}/root/dev/shm/neighbour")
        with open(path, "wb", buffering=0) as others:
            self.kill(fault)
            try:
                while True:
                    others.write(bytes(65536))
            except OSError:
                pass
            self.hold(fault, 0.1, 1.5)
        path.unlink()

    def fault_full_memory(self, fault: dict):
        if not self.group:
            return
        self.kill(fault, everyone=True)
        neighbour = subprocess.Popen(
            [sys.executable, "-c", "import sys; held = b'x' * int(sys.argv[1]); print(flush=True); "
             "sys.stdin.read()", str(max(self.group.limit - self.group.used() - 24 * MIB, 1))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            preexec_fn=lambda: self.group.add(os.getpid()))
        self.hold(fault, 0.1, 1.5)
        neighbour.kill()
        neighbour.communicate()

    def fault_connections(self, fault: dict):
        host, port = self.address.rsplit(":", 1)
        idle = [socket.create_connection((host, int(port)), harness.GUARD) for _ in range(50)]
        self.kill(fault)
        self.hold(fault, 0.1, 1)
        for connection in idle:
            connection.close()

    # --- class 3: what others do -----------------------------------------------------------------

    def fault_stuck_log(self, fault: dict):
        self.log.reads.clear()
        self.kill(fault)
        self.hold(fault, 0.5, 2)
        self.log.reads.set()

    def fault_client_that_does_not_read(self, fault: dict):
        with grpc.insecure_channel(self.address, options=FREE_CHANNEL) as channel:
            events = channel.unary_stream("/openengine.v1.Inference/Generate")(self.encoded[0])
            self.hold(fault, 0.2, 1)
            events.cancel()

    def fault_long_prompt(self, fault: dict):
        request = self.messages.GenerateRequest(prompt="In the beginning " * 60000)
        with grpc.insecure_channel(self.address, options=FREE_CHANNEL) as channel:
            try:
                list(channel.unary_stream("/openengine.v1.Inference/Generate")(
                    request.SerializeToString(), timeout=harness.GUARD))
            except grpc.RpcError as error:
                fault["refused"] = error.code().name
        self.require(fault.get("refused") == "INVALID_ARGUMENT", "a prompt that is too long")
