"""A shutdown ends even if gRPC's does not, and clients that do not read do not hold up gRPC's.

Real threads of gRPC are stopped (ptrace), as a driver or a lack of threads would stop them.
"""
import ctypes
import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path

try:
    import grpc
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(77)

import harness
import http2
from http_client import sum_of_metrics

PTRACE_SEIZE, PTRACE_INTERRUPT, WAIT_ALL = 0x4206, 0x4207, 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
# gRPC starts one such thread for two processors, between these bounds (its CallbackAlternativeCQ).
# Each gives itself its name when it first runs, which may be long after the server is ready.
CALLBACK_THREADS = min(max(os.sysconf("SC_NPROCESSORS_CONF") // 2, 2), 16)


def threads(pid: int, name: str) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            if (task / "comm").read_text().strip() == name:
                found.add(int(task.name))
        except OSError:  # it has ended since it was listed
            pass
    return found


def ptrace(request: int, thread: int):
    if LIBC.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")  # of the class that the number says


def wait_for_end(thread: int):
    """The kernel reports the end of a traced thread to its tracer first, which must ask for it."""
    try:
        while not os.WIFSIGNALED(status := os.waitpid(thread, WAIT_ALL)[1]) \
                and not os.WIFEXITED(status):
            pass
    except ChildProcessError:  # it has been asked for
        pass


class Shutdown(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.frozen = set()

    def freeze_grpc(self, pid: int):
        """Stops the threads that run gRPC's callbacks, until two looks find no other one."""
        quiet = 0
        while quiet < 2:
            found = threads(pid, "nexting_thread") - self.frozen
            quiet = 0 if found else quiet + 1
            for thread in found:
                try:
                    ptrace(PTRACE_SEIZE, thread)
                except ProcessLookupError:  # it has ended
                    continue
                except PermissionError as error:
                    self.skipTest(f"ptrace is forbidden here: {error}")
                self.frozen.add(thread)
                ptrace(PTRACE_INTERRUPT, thread)
                os.waitpid(thread, WAIT_ALL)

    def end_frozen(self, server: harness.Server):
        """Whoever waits for the server must not wait for threads that wait for us."""
        server.process.send_signal(signal.SIGKILL)  # nothing, if it has been waited for
        for thread in self.frozen:
            wait_for_end(thread)

    def test_it_says_what_hangs_and_leaves(self):
        server = self.serve(harness.DEMO, "-tp", 2)
        self.addCleanup(self.end_frozen, server)
        channel = grpc.insecure_channel(server.wait_ready()["grpc"],
                                        options=[("grpc.enable_http_proxy", 0)])
        self.addCleanup(channel.close)
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=5 * harness.GUARD)
        self.assertEqual(next(watch), b"\x08\x01")
        harness.wait_until(lambda: len(threads(server.pid, "nexting_thread")) >= CALLBACK_THREADS,
                           f"{CALLBACK_THREADS} threads of gRPC's with this name")
        self.freeze_grpc(server.pid)
        os.kill(server.pid, signal.SIGTERM)
        self.freeze_grpc(server.pid)
        harness.wait_until(lambda: "the shutdown hangs" in server.err.text(), "the watchdog")
        for thread in self.frozen:
            wait_for_end(thread)
        self.assertEqual(server.end(), 0, "every request had ended")
        self.assertRegex(server.err.rest(),
                         r"gRPC's server has taken more than \d+ ms \(1 call is open on 1 conn")


class Unread(harness.TestCase):
    """A client that never reads, so that its connection takes no more bytes."""

    WIDEST = (1 << 31) - 1  # window of HTTP/2: nothing but TCP holds the server back
    ZERO_WINDOW = 4  # in /proc/net/tcp: what is to be sent waits until the client reads

    def setUp(self):
        super().setUp()
        self.server = self.serve(harness.DEMO, "-tp", 1, "--port", 0, "--log-format", "json")
        self.server.wait_ready()
        self.client = socket.socket()
        self.addCleanup(self.client.close)
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def send_calls(self, count: int, path: str, request: bytes = b""):
        host, port = self.server.fields["grpc"].rsplit(":", 1)
        self.client.connect((host, int(port)))
        settings = struct.pack(">HI", http2.INITIAL_WINDOW, self.WIDEST)
        more = struct.pack(">I", self.WIDEST - 65535)
        head, body = http2.call_headers(path), http2.message(request)
        self.client.sendall(b"".join((
            http2.PREFACE, http2.frame(http2.SETTINGS, 0, 0, settings),
            http2.frame(http2.WINDOW_UPDATE, 0, 0, more),
            *(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, head) +
              http2.frame(http2.DATA, http2.END_STREAM, stream, body)
              for stream in range(1, 2 * count, 2)))))

    def wait_until_full(self):
        """Waits until the server has something to send and may not, because nobody reads."""
        ends = [f":{name[1]:04X}" for name in (self.client.getpeername(), self.client.getsockname())]

        def timer() -> int | None:
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
                fields = line.split()
                if [fields[1][-5:], fields[2][-5:]] == ends:
                    return int(fields[5].split(":")[0], 16)
            return None
        harness.wait_until(lambda: timer() == self.ZERO_WINDOW, "a full connection",
                           self.server.err.text)

    def lines_of_a_clean_end(self) -> list[dict]:
        """What the server logs from SIGTERM on, while the client stays as it is."""
        os.kill(self.server.pid, signal.SIGTERM)
        self.assertEqual(self.server.end(), 0, self.server.err.rest())
        lines = [json.loads(line) for line in self.server.err.rest().splitlines()]
        events = [line.get("event") for line in lines]
        self.assertNotIn("shutdown_hangs", events, lines[-1])
        self.assertIn("grpc_unread", events)
        self.assertEqual(events[-1], "stopped", lines[-1])
        return lines[events.index("draining"):]

    def test_answers(self):
        # A GenerateRequest for 480 tokens, each with the 64 most likely ones: half a MiB or more.
        self.send_calls(16, "/openengine.v1.Inference/Generate",
                        b'\x1a\x10In the beginning2\x05\x08\xe0\x03 \x01:\x06\x18\x01"\x02\x08@')
        # All answers are there then, and next to nothing of them can be sent.
        harness.wait_until(
            lambda: sum_of_metrics(self.server, "vllm:request_success_total") == 16, "16 answers",
            self.server.err.text)
        self.wait_until_full()
        codes = [line["code"] for line in self.lines_of_a_clean_end()
                 if line.get("event") == "grpc_request"]
        self.assertEqual(codes, ["CANCELLED"] * 16, "all were open until then")

    def test_calls_that_generate_nothing(self):
        self.send_calls(3000, "/openengine.v1.Control/GetServerInfo")
        self.wait_until_full()
        self.lines_of_a_clean_end()


if __name__ == "__main__":
    harness.main()
