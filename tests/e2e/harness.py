"""Runs the real program and observes it from outside, for the tests of this folder.

The program is $SHOAL. Every process started here carries a certain environment variable, so that
/proc shows which processes are left even if their parent is gone.
"""
import contextlib
import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import uuid
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
ORACLE = ROOT / "tests" / "data" / "oracle"
DEMO = ROOT / "models" / "demo"
SHOAL = os.environ.get("SHOAL", str(ROOT / "build" / "release" / "shoal"))
# What starts the program, if it is for another processor. It starts its ranks with it too.
EMULATOR = [word for word in [os.environ.get("SHOAL_TEST_EMULATOR")] if word]
# The exit codes, as docs and --help list them.
USAGE, BAD_MODEL, NO_MODEL, UNAVAILABLE, INTERNAL, OUTPUT, WORKER_DIED = 64, 65, 66, 69, 70, 74, 75
SKIPPED = 77  # CTest counts this exit code as skipped
# Seconds after which a test gives up a wait, as kGuardMs in tests/guard.h. This only ends one that
# hangs, and no verdict may depend on it. Sanitizers and emulated processors are slow.
GUARD = 300 if EMULATOR or "SHOAL_TEST_SANITIZED" in os.environ else 60
TAG_NAME = "SHOAL_TEST_TAG"
TAG = uuid.uuid4().hex


def environment() -> dict[str, str]:
    return {**os.environ, TAG_NAME: TAG}


class Process(subprocess.Popen):
    """Waits no longer than GUARD unless it is told to."""
    def wait(self, timeout=GUARD):
        return super().wait(timeout)

    def communicate(self, input=None, timeout=GUARD):
        return super().communicate(input, timeout)


def start(*args, wrapper: tuple[str, ...] = (), **popen) -> Process:
    """Starts the program in a process group of its own, with its output in pipes.

    wrapper: a command that becomes the program, such as ("unshare", "--mount").
    The CPU computes, also where there are GPUs, unless the arguments name a device or a module.
    """
    words = [str(word) for word in args]
    named = any(word.startswith(("--device", "--cuda-module")) for word in words)
    settings = environment() if named else {**environment(), "CUDA_VISIBLE_DEVICES": ""}
    popen = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
    return Process([*wrapper, *EMULATOR, SHOAL, *words], env=settings, start_new_session=True, **popen)


@contextlib.contextmanager
def planted(fault: str):
    """Whatever is started meanwhile has this fault: RANK:PHASE:KIND (runtime/rank/test_fault.h)."""
    os.environ["SHOAL_TEST_FAULT"] = fault
    try:
        yield
    finally:
        del os.environ["SHOAL_TEST_FAULT"]


# What generate takes from the file of the model, that a length ended the answer, how fast a batch was,
# what logits has written, and what a batch says of answers that ended at once.
DONE = re.compile(rb"(shoal generate: (sampling from|finish reason length:) [^\n]*\n)*"
                  rb"(shoal (generate: \d+ requests?\b|logits: (wrote float32 \[|0 prompts))[^\n]*\n"
                  rb"(shoal generate: \d+ answers? (is|are) empty: [^\n]*\n)?)?")


def run(*args, code: int = 0, guard: float = 5 * GUARD) -> subprocess.CompletedProcess:
    """Runs the program to its end. The exit code must be `code`, and a successful run must print
    only its result, and DONE."""
    process = start(*args)
    try:
        out, err = process.communicate(timeout=guard)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    result = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if result.returncode != code:
        shown = " ".join(map(str, args))[:300]
        raise AssertionError(f"shoal {shown}: exit code {result.returncode}, not {code}\n"
                             f"{err.decode(errors='replace')}")
    if code == 0 and err and not DONE.fullmatch(err):
        raise AssertionError(f"a one-shot command wrote to stderr: {err.decode(errors='replace')}")
    return result


def ids_flag(ids) -> str:
    return ",".join(map(str, ids))


def logits_file(model: Path, ids, *flags) -> bytes:
    """The bytes of the file that `shoal logits` writes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        run("logits", model, "--prompt-ids", ids_flag(ids), "--out", out, *flags)
        return out.read_bytes()


def logits(model: Path, ids, *flags) -> np.ndarray:
    """The logits as float32 [tokens, vocab]."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        run("logits", model, "--prompt-ids", ids_flag(ids), "--out", out, *flags)
        return np.load(out)


def generate_jsonl(model: Path, requests: list[dict], *flags) -> list[dict]:
    """The answers of `shoal generate --jsonl`, one dict per request.

    "transport" is left out, because it is the only field that may differ between runs, and
    "line" and "sampling", because they are asked for and not computed.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(request) + "\n" for request in requests))
        file.flush()
        out = run("generate", model, "--jsonl", file.name, *flags).stdout.decode()
    answers = [json.loads(line) for line in out.splitlines()]
    for answer in answers:
        del answer["transport"], answer["line"], answer["sampling"]
    return answers


def kernel_sets() -> list[str]:
    """The names that --cpu-kernels accepts on this processor, best first."""
    return json.loads(run("version", "--json").stdout)["kernel_sets_here"]


def fields_of(pid: int) -> list[str]:
    """What follows the name in /proc/PID/stat: the state, the parent and so on. OSError: no such
    process. Names are bytes, and those of other people's processes may be no text at all."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()


def parent_of(pid: int) -> int | None:
    try:
        fields = fields_of(pid)
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[1])


def state_of(pid: int) -> str:
    """The state in /proc, such as R, S, D or T (stopped). "" if the process is gone."""
    try:
        return fields_of(pid)[0]
    except OSError:
        return ""


def processor_time(pid: int) -> float:
    """The seconds of processor time that the process has used."""
    return sum(map(int, fields_of(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def is_dead(pid: int) -> bool:
    """Whether the process has ended, even if nobody has waited for it yet."""
    return state_of(pid) in "ZX"


def stands_still(pid: int) -> bool:
    """Whether every thread of the process is stopped by a signal, or the process has ended."""
    try:
        return all(state_of(int(thread)) in "TZX" for thread in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return True


_broken_groups: set[int] = set()  # the ranks of every group out of which kill_unseen took one


def stopped_rank(front: int) -> int:
    """Waits until a rank has been stopped, for example by a planted fault, and returns its pid.
    A front also stops the ranks of a broken group, before it ends them. Those do not count."""
    return wait_until(
        lambda: next((pid for pid in children(front)
                      if pid not in _broken_groups and state_of(pid) == "T"), None), "a stopped rank")


@contextlib.contextmanager
def stopped(pid: int):
    """The process stands still meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: stands_still(pid), "a process that stands still")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def kill_and_wait(victims: list[int], number: int = signal.SIGKILL):
    """Ends processes and waits for that, but leaves them to their parent."""
    for victim in victims:
        os.kill(victim, number)
        with contextlib.suppress(ProcessLookupError):  # its front may have reaped it
            os.kill(victim, signal.SIGCONT)  # it may be stopped
    wait_until(lambda: all(map(is_dead, victims)), "dead processes")


def kill_unseen(front: int, victims: list[int], number: int = signal.SIGKILL):
    """Ends ranks while their front stands still, so that it sees this as soon as it reads what other
    ranks say about it."""
    with stopped(front):
        _broken_groups.update(children(front))
        kill_and_wait(victims, number)


def words_of(pid: int) -> list[str]:
    """The command line of a process. Empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def children(pid: int) -> list[int]:
    """The direct children that are alive, in the order in which they were started."""
    return sorted(p for p in pids() if parent_of(p) == pid)


def descendants(pid: int) -> list[int]:
    found = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def survivors() -> list[int]:
    """Every living process that this test started, directly or not, including orphans."""
    wanted = f"{TAG_NAME}={TAG}".encode()
    found = []
    for pid in pids():
        try:
            if pid != os.getpid() and wanted in Path(
                    f"/proc/{pid}/environ").read_bytes() and parent_of(pid) is not None:
                found.append(pid)
        except OSError:
            pass
    return found


def shared_memory_names() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def wait_until(condition, what: str, explain=lambda: "", guard: float = GUARD):
    """Waits until condition() returns a true value, and returns that value.

    explain: what to print beside `what` if it never does, for example a log.
    """
    deadline = time.monotonic() + guard
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"after {guard} s still not: {what}\n{explain()}")
        time.sleep(0.002)


class Reader(threading.Thread):
    """Collects the output of a pipe, so that the writer never blocks."""

    def __init__(self, pipe):
        super().__init__(daemon=True)
        self.pipe, self.data = pipe, b""
        self.start()

    def run(self):
        with self.pipe:
            while block := os.read(self.pipe.fileno(), 65536):
                self.data += block

    def text(self) -> str:
        return self.data.decode(errors="replace")

    def rest(self) -> str:
        self.join(GUARD)
        return self.text()


def ready_fields(line: str) -> dict[str, str]:
    """The fields of a READY line. A value with a space or a quote is a JSON string."""
    fields = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', line)
    return {name: json.loads(value) if value.startswith('"') else value for name, value in fields}


class Server:
    """`shoal serve` on a free port. Call wait_ready() before using it."""

    def __init__(self, model: Path, *flags, **popen):
        self.process = start("serve", model, "--grpc-port", 0, *flags, **popen)
        self.tls = None  # an ssl.SSLContext, if http_client should speak TLS to it
        self.out, self.err = Reader(self.process.stdout), Reader(self.process.stderr)

    def wait_ready(self) -> dict[str, str]:
        """Waits for the READY line, and returns its fields."""
        def ready_or_dead():
            if self.process.poll() is not None:
                raise AssertionError(f"serve ended with {self.process.returncode}: "
                                     f"{self.err.rest()}")
            return "\n" in self.out.text()
        wait_until(ready_or_dead, "a READY line", self.err.text)
        line = self.out.text()
        assert line.startswith("READY ") and line.count("\n") == 1, line
        self.fields = ready_fields(line)
        return self.fields

    @property
    def pid(self) -> int:
        return self.process.pid

    def workers(self, count: int) -> list[int]:
        """The process ids of the workers by rank. Waits until all of them run."""
        return wait_until(lambda: len(found := children(self.pid)) == count and found,
                          f"{count} workers")

    def client(self, *flags, **popen) -> Process:
        return start("client", "--server", self.fields["grpc"], *flags, **popen)

    def wait_logged(self, pattern: str, count: int = 1):
        """Waits until the pattern is so often in the log. Another thread reads the log, so what the
        server wrote before an answer may come here after it."""
        wait_until(lambda: len(re.findall(pattern, self.err.text())) >= count, pattern,
                   self.err.text)

    def end(self) -> int:
        """Waits for the end, and returns the exit code."""
        return self.process.wait()

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()


class TestCase(unittest.TestCase):
    """A test must leave nothing behind: no process, and no name in /dev/shm."""

    maxDiff = 2000

    def setUp(self):
        self.names_before = shared_memory_names()
        self.addCleanup(self.check_nothing_left)

    def check_nothing_left(self):
        try:
            wait_until(lambda: not survivors(), "every process of the test gone")
        finally:
            for pid in survivors():
                os.kill(pid, signal.SIGKILL)
        self.assertLessEqual(shared_memory_names(), self.names_before, "names left in /dev/shm")

    def skip_unless_reached_by(self, uid: int, model: Path = DEMO):
        """Skips the test if a folder, however far above, keeps that user from program or model."""
        if os.geteuid() != 0:
            self.skipTest("only root can become another user")
        try:
            probe = subprocess.run([SHOAL, "tokenize", str(model), "--text", "x"], user=uid,
                                   capture_output=True)
        except OSError as error:
            self.skipTest(f"another user may not run the program here: {error}")
        if probe.returncode != 0:
            self.skipTest(f"another user may not read the model here: {probe.stderr.decode()}")

    def serve(self, model: Path, *flags, **popen) -> Server:
        server = Server(model, *flags, **popen)
        self.addCleanup(server.kill)
        return server


def main(*, arguments: tuple[str, ...] = ()):
    """Runs unittest.main, with test names as the only other arguments. If every test was skipped,
    the exit code reports that to CTest."""
    for argument in arguments:
        sys.argv.remove(argument)
    if patience := os.environ.get("SHOAL_TEST_PATIENCE"):
        # CTest kills a test that takes too long, which would not say where it waited.
        faulthandler.dump_traceback_later(float(patience))
    result = unittest.main(verbosity=2, exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIPPED if len(result.skipped) >= max(result.testsRun, 1) else 0)
