"""The program on a terminal of its own, as a user has it, and what the terminal shows."""
import fcntl
import os
import pty
import re
import termios
import threading

import harness


def screen(text: str) -> list[str]:
    """The lines that a wide terminal shows in the end. The last is that of the cursor."""
    lines, line, at = [], "", 0
    for part in re.findall(r"[\r\n]|\x1b\[K|[^\r\n\x1b]+", re.sub(r"\x1b\[[\d;]*m", "", text)):
        if part == "\n":
            lines, line, at = [*lines, line], "", 0
        elif part == "\r":
            at = 0
        elif part == "\x1b[K":
            line = line[:at]
        else:
            line, at = line[:at] + part + line[at + len(part):], at + len(part)
    return [*lines, line]


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
