"""The line of a terminal that shows how far a start is, beside the log and when a signal ends the start."""
import os
import re
import signal

import harness
from terminal import Terminal, screen

TIME = r"\d\d:\d\d:\d\d\.\d{3}"
LINE = r"\r\x1b\[Kthe KV cache is being allocated for \d+ s\r"


class ProgressLine(harness.TestCase):
    def stopped_start(self, *words) -> tuple[Terminal, int]:
        """A start that stands still and says in what, and its rank that has stopped."""
        with harness.planted("0:touch:stop"):
            terminal = Terminal(*words)
        self.addCleanup(lambda: terminal.process.poll() is None and terminal.process.kill())
        rank = harness.stopped_rank(terminal.process.pid)
        terminal.wait_for(LINE)
        return terminal, rank

    def test_lines_of_the_log_take_its_place(self):
        for ranks in (1, 2):
            terminal, rank = self.stopped_start("generate", harness.DEMO, "--prompt", "In", "--json",
                                                "--max-tokens", 1, "-tp", ranks, "--log-level", "info")
            os.kill(rank, signal.SIGCONT)
            self.assertEqual(terminal.code(), 0, terminal.shown)
            lines = screen(terminal.shown)
            logged = [line for line in lines if re.search(TIME, line)]
            self.assertTrue(any("start: touch took" in line for line in logged), terminal.shown)
            for line in logged:
                self.assertRegex(line, rf"^{TIME} [A-Z]+ (front|rank \d) \[\d+\] ", terminal.shown)
            for line in lines:
                self.assertNotRegex(line, r"loading \d|is being allocated for", terminal.shown)

    def test_a_signal_leaves_an_empty_line(self):
        for code, *words in ((-signal.SIGTERM, "generate", harness.DEMO, "--prompt", "In"),
                             (0, "serve", harness.DEMO, "--grpc-port", 0)):
            terminal, _ = self.stopped_start(*words)
            terminal.process.terminate()
            self.assertEqual(terminal.code(), code, terminal.shown)
            self.assertEqual(screen(terminal.shown)[-1], "", terminal.shown)


if __name__ == "__main__":
    harness.main()
