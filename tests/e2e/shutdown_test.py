"""A shutdown ends even if gRPC's does not.

Real threads of gRPC are stopped (ptrace), as a driver or a lack of threads would stop them.
"""
import ctypes
import os
import signal
import sys
from pathlib import Path

try:
    import grpc
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(77)

import harness

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


if __name__ == "__main__":
    harness.main()
