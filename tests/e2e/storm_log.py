"""The log of a server under faults, as it is read and counted while they come."""
import fcntl
import os
import re
import select
import sys
import termios
import threading

RUN_AGAIN, LOST = b"the ranks run again", b"log lines were lost"
FREE = b"a kill from outside, which does not count against --max-restarts"
STEP = re.compile(rb" step \d+: \d+ decodes, (\d+) tokens of prompts")  # it has ended well


class Log:
    """Reads a pipe, except while it is told not to. Keeps the last lines."""

    def __init__(self, pipe):
        fcntl.fcntl(pipe.fileno(), 1031, 4096)  # F_SETPIPE_SZ: a stopped reader shows soon
        self.pipe, self.tail, self.reads = pipe, b"", threading.Event()
        self.counted = threading.Condition()  # told of every block; held from reading to counting
        self.restarts = 0  # that were successful
        self.free = 0      # restarts that cost none of --max-restarts
        self.lost = 0      # how often lines were lost, perhaps that of a restart
        # Steps that ended well since the last restart or loss of lines, as the server counts them for
        # --max-restarts, and those of them that were of every open request.
        self.good_steps = self.steps = 0
        self.rest = b""  # the beginning of a line
        self.reads.set()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        block = b" "
        while block:
            select.select([self.pipe], [], [])
            with self.counted:
                block = os.read(self.pipe.fileno(), 4096)
                self.tail = (self.tail + block)[-20000:]
                *lines, self.rest = (self.rest + block).split(b"\n")
                for line in lines:
                    self.count(line)
                self.counted.notify_all()
            self.reads.wait()

    def count(self, line: bytes):
        again, lost = RUN_AGAIN in line, LOST in line
        self.restarts += again
        self.lost += lost
        self.free += FREE in line
        if again or lost:
            self.good_steps = self.steps = 0
        elif step := STEP.search(line):
            self.good_steps += 1
            self.steps += step[1] == b"0"

    def wait(self, seconds: float):
        """Waits for what comes next, but no longer than this."""
        with self.counted:
            self.counted.wait(seconds)

    def seen(self) -> tuple[int, int]:
        """Changes with the next restart."""
        return self.restarts, self.lost

    def is_read(self) -> bool:  # and counted
        with self.counted:
            waiting = fcntl.ioctl(self.pipe.fileno(), termios.FIONREAD, bytes(4))
        return not int.from_bytes(waiting, sys.byteorder)

    def text(self) -> str:
        return self.tail.decode(errors="replace")
