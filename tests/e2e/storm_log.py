"""The log of a server under faults, as it is read and counted while they come."""
import fcntl
import os
import re
import select
import sys
import termios
import threading

RUN_AGAIN, LOST = b"the ranks run again", b"log lines were lost"
STEP = re.compile(rb" step \d+: \d+ decodes, 0 tokens of prompts")  # of every open request


class Log:
    """Reads a pipe, except while it is told not to. Keeps the last lines."""

    def __init__(self, pipe):
        fcntl.fcntl(pipe.fileno(), 1031, 4096)  # F_SETPIPE_SZ: a stopped reader shows soon
        self.pipe, self.tail, self.reads = pipe, b"", threading.Event()
        self.lock = threading.Lock()  # held from reading to counting
        self.restarts = 0  # that were successful
        self.lost = 0      # how often lines were lost, perhaps that of a restart
        self.steps = 0     # since the last of both
        self.rest = b""  # the beginning of a line
        self.reads.set()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        block = b" "
        while block:
            select.select([self.pipe], [], [])
            with self.lock:
                block = os.read(self.pipe.fileno(), 4096)
                self.tail = (self.tail + block)[-20000:]
                *lines, self.rest = (self.rest + block).split(b"\n")
                for line in lines:
                    self.count(line)
            self.reads.wait()

    def count(self, line: bytes):
        again, lost = RUN_AGAIN in line, LOST in line
        self.restarts += again
        self.lost += lost
        self.steps = 0 if again or lost else self.steps + bool(STEP.search(line))

    def seen(self) -> tuple[int, int]:
        """Changes with the next restart."""
        return self.restarts, self.lost

    def is_read(self) -> bool:  # and counted
        with self.lock:
            waiting = fcntl.ioctl(self.pipe.fileno(), termios.FIONREAD, bytes(4))
        return not int.from_bytes(waiting, sys.byteorder)

    def text(self) -> str:
        return self.tail.decode(errors="replace")
