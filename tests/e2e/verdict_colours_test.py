"""On a terminal the verdicts of doctor and shmtest have colours, if the reader wants them. The widths of
the tables do not change by it, and a pipe has no colours.
"""
import re

import command_line_test
import harness

GREEN, RED, NONE = "\x1b[32m", "\x1b[1;31m", "\x1b[0m"
PLAN = ("doctor", "--nccl-version", "2.27")
PATCH = "2.27: its last known patch"


def plain(text: str) -> str:
    """Without colours. Figures of this moment are all the same."""
    return re.sub(r"\d+(\.\d+)?", "0", re.sub(r"\x1b\[[\d;]*m", "", text))


def printed(*words) -> str:
    return harness.start(*words).communicate()[0].decode()


class Verdicts(harness.TestCase):
    shown = command_line_test.OnATerminal.shown

    def check_no_colours(self, *words):
        for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            self.assertNotIn("\x1b", self.shown(*words, **environment), environment)
        self.assertNotIn("\x1b", printed(*words))

    def test_doctor(self):
        words = ("doctor", "-tp", 2, "--transport", "tcp")
        self.assertTrue(self.shown(*words).startswith(f"{GREEN}OK{NONE}: 2 ranks use tcp, the first"))
        self.check_no_colours(*words)

    def test_a_plan_for_nccl(self):
        text = self.shown(*PLAN)
        self.assertTrue(text.startswith(f"{GREEN}OK{NONE}: 2 ranks of NCCL 2.27.7 ({PATCH}) fit"), text)
        self.assertEqual(text.count("\x1b"), 2, "one word has a colour")
        self.assertEqual(plain(text), plain(printed(*PLAN)))
        self.check_no_colours(*PLAN)
        text = self.shown(*PLAN, NCCL_SHM_DISABLE="1")
        self.assertTrue(text.startswith(f"{RED}NO{NONE}: 2 ranks of NCCL 2.27.7 ({PATCH}) cannot use"), text)

    def test_shmtest(self):
        for command, verdict in (("true", f"{GREEN}pass{NONE}"), ("false", f"{RED}FAIL{NONE}")):
            words = ("shmtest", "--matrix", "host", "--", command)
            text = self.shown(*words)
            self.assertIn(f"shmtest: [1/1] host             {verdict}  ", text)
            self.assertRegex(text, rf"(?m)^host +{re.escape(verdict)}    \d+\.\d\d +\d ")
            self.check_no_colours(*words)
            rows = [re.search(r"(?m)^host .*$", plain(one))[0] for one in (text, printed(*words))]
            self.assertEqual(rows[0].split("0", 1)[0], rows[1].split("0", 1)[0], "the same width")


if __name__ == "__main__":
    harness.main()
