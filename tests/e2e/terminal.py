"""The program on a terminal of its own, as a user has it."""
import fcntl
import os
import pty
import re
import termios
import threading

import harness


class Terminal:
    def __init__(self, *words):
        self.end, inner = pty.openpty()

        def take_terminal():
            fcntl.ioctl(inner, termios.TIOCSCTTY, 0)

        self.process = harness.start(*words, stdin=inner, stdout=inner, stderr=inner,
                                     preexec_fn=take_terminal)
        os.close(inner)
        self.shown = ""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        try:
            while data := os.read(self.end, 4096):
                self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        except OSError:
            pass  # the other end is closed

    def type(self, text: str):
        os.write(self.end, text.encode())

    def wait_for(self, pattern: str):
        harness.wait_until(lambda: re.search(pattern, self.shown, re.DOTALL),
                           f"{pattern!r} in {self.shown!r}")

    def code(self) -> int:
        code = self.process.wait()
        self.reader.join(harness.GUARD)
        os.close(self.end)
        return code
