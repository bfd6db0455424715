"""A shutdown ends even if gRPC's does not.

Real threads of gRPC are stopped (ptrace), as a driver or a lack of threads would stop them.
"""
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

try:
    import grpc
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(77)

import harness

PTRACE_SEIZE, PTRACE_INTERRUPT, WAIT_ALL = 0x4206, 0x4207, 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def threads(pid: int, name: str) -> list[int]:
    folder = Path(f"/proc/{pid}/task")
    return [int(task.name) for task in folder.iterdir()
            if (task / "comm").read_text().strip() == name]


def ptrace(request: int, thread: int):
    if LIBC.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


class Shutdown(harness.TestCase):
    def freeze_grpc(self, pid: int) -> list[int]:
        """Stops the threads that run gRPC's callbacks. Returns their ids."""
        frozen = threads(pid, "nexting_thread")
        self.assertTrue(frozen, "gRPC's threads have another name now")
        for thread in frozen:
            try:
                ptrace(PTRACE_SEIZE, thread)
            except OSError as error:
                self.skipTest(f"ptrace is forbidden here: {error}")
            ptrace(PTRACE_INTERRUPT, thread)
            os.waitpid(thread, WAIT_ALL)
        return frozen

    def test_it_says_what_hangs_and_leaves(self):
        server = self.serve(harness.DEMO, "-tp", 2)
        channel = grpc.insecure_channel(server.wait_ready()["grpc"],
                                        options=[("grpc.enable_http_proxy", 0)])
        self.addCleanup(channel.close)
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=600)
        self.assertEqual(next(watch), b"\x08\x01")
        frozen = self.freeze_grpc(server.pid)
        os.kill(server.pid, signal.SIGTERM)
        asked = time.monotonic()
        harness.wait_until(lambda: "the shutdown hangs" in server.err.text(), 30, "the watchdog")
        for thread in frozen:  # the kernel reports the end of a traced thread to us first
            while not os.WIFSIGNALED(status := os.waitpid(thread, WAIT_ALL)[1]) \
                    and not os.WIFEXITED(status):
                pass
        self.assertEqual(server.end(), 0, "every request had ended")
        self.assertLess(time.monotonic() - asked, 30)
        self.assertRegex(server.err.text(),
                         r"gRPC's server has taken more than \d+ ms \(1 call is open on 1 conn")


if __name__ == "__main__":
    harness.main()
