"""Ranks die or stop, but the process stays up, and streams continue with the same bits.

Every fault is real: a rank stops itself with SIGSTOP when it enters a phase (SHOAL_TEST_FAULT), and
either stays stopped or is killed there. Usage: recovery_test.py phases RUNG, recovery_test.py
streams RUNG, or recovery_test.py serving.
"""
import itertools
import json
import os
import re
import signal
import sys
import tempfile

import breadth
import harness
from http_client import open_requests

RANKS = 2
PROMPT = harness.ids_flag([0, 1151, 262, 2088])
REQUEST = ("--prompt-ids", PROMPT, "--max-tokens", 24, "--ignore-eos", "--seed", 7, "--logprobs", 2)
# A rank that is killed is noticed by its death, because no deadline passes while a test waits. One
# that is stopped is noticed by a short deadline. Each of the first phases of a start gets a quarter
# of its time, of which nothing counts in which a rank gets no processor.
PATIENT = ("--step-timeout", 5 * harness.GUARD)
DEADLINES = ("--startup-timeout", 24, "--step-timeout", 1)
PHASES = ("spawn", "open", "self-test", "load", "touch", "warm-up", "step-1", "step-5")
AT_ONCE = 4  # runs that wait for their deadlines
RUNGS = ("shm", "shm-lean", "memfd", "cma", "tcp")
RUNG = sys.argv[2] if len(sys.argv) > 2 else "shm"


def answer_without_fault() -> dict:
    out = harness.run("generate", harness.DEMO, *REQUEST, "--json", "-tp", 1).stdout
    return {key: value for key, value in json.loads(out).items() if key != "transport"}


class Phases(harness.TestCase):
    """shoal generate over one rung. In each phase a rank is killed, or stopped for good."""

    @classmethod
    def setUpClass(cls):
        cls.expected = answer_without_fault()

    def start_stopping_at(self, rank: int, phase: str, *deadlines):
        with harness.planted(f"{rank}:{phase}:stop"):
            process = harness.start("generate", harness.DEMO, *REQUEST, "--json", "-tp", RANKS,
                                    "--transport", RUNG, *deadlines)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        return process, harness.Reader(process.stdout), harness.Reader(process.stderr)

    def check_answer(self, process, out, err, rank: int):
        self.assertEqual(process.wait(), 0, err.rest())
        answer = json.loads(out.rest())
        self.assertEqual(answer.pop("transport"), RUNG,
                         "a kill or stop from outside does not count against the rung")
        self.assertEqual(answer, self.expected)
        self.assertRegex(err.rest(), rf"starting the ranks again \(1 of 3\).*rank {rank}\b")
        self.assertNotRegex(err.rest(), r"again \(.*\): [A-Z_]{5,}: |\.cc:\d|\[(front|rank \d+)\]")

    def runs(self, end: str) -> list[tuple[str, int]]:
        """In which phase of which rank. A narrow run has every pair of phase, rank and end."""
        narrow = [(phase, rank) for phase, rank, its_end
                  in breadth.pairs([PHASES, list(range(RANKS)), ["kill", "stop"]]) if its_end == end]
        return narrow if breadth.NARROW else list(itertools.product(PHASES, range(RANKS)))

    def test_kill_in_every_phase(self):
        for phase, rank in self.runs("kill"):
            with self.subTest(phase=phase, rank=rank):
                process, out, err = self.start_stopping_at(rank, phase, *PATIENT)
                harness.kill_unseen(process.pid, [harness.stopped_rank(process.pid)])
                self.check_answer(process, out, err, rank)
                self.assertRegex(err.text(), rf"rank {rank} .*was killed by signal 9")
                name = phase.replace("-1", " 1").replace("-5", " 5")
                self.assertIn(f"in phase {name}", err.text())

    def check_stop(self, phase: str, rank: int, process, out, err):
        self.check_answer(process, out, err, rank)
        self.assertRegex(err.text(), rf"rank {rank} \([^)]*\) is stopped by a signal")
        if phase.startswith("step"):
            # It is asked where it is, and on a busy machine it may not answer in time.
            self.assertRegex(err.text(), rf"rank {1 - rank} \([^)]*collective \d+, [^)]*\) waits for "
                                         rf"rank {rank}|rank {1 - rank} \([^)]*\) does not answer")

    def test_stop_in_every_phase(self):
        runs = self.runs("stop")
        for first in range(0, len(runs), AT_ONCE):
            started = [(*run, *self.start_stopping_at(run[1], run[0], *DEADLINES))
                       for run in runs[first:first + AT_ONCE]]
            for run in started:
                with self.subTest(phase=run[0], rank=run[1]):
                    self.check_stop(*run)


class ServedRanks(harness.TestCase):
    """A server whose ranks are lost while streams are open."""

    REQUEST = ("--prompt-ids", PROMPT, "--max-tokens", 120, "--ignore-eos", "--temperature", 0)
    FLAGS = ("-tp", RANKS, "--threads-per-rank", 1)

    @classmethod
    def setUpClass(cls):
        cls.expected = harness.run("generate", harness.DEMO,
                                   *cls.REQUEST).stdout.decode().strip()

    def started(self, *flags, faults: str = "", deadlines: tuple = PATIENT) -> harness.Server:
        with harness.planted(faults):
            server = self.serve(harness.DEMO, *self.FLAGS, *deadlines, *flags)
        server.wait_ready()
        return server

    def stream(self, server):
        client = server.client(*self.REQUEST)
        self.addCleanup(lambda: client.poll() is None and client.kill())
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        return client, out, err

    def hit(self, server, rank: int, number: int = signal.SIGKILL):
        harness.kill_unseen(server.pid, [harness.children(server.pid)[rank]], number)

    def kill_stopped(self, server, number: int = signal.SIGKILL):
        """Ends the rank that a planted fault stops, in the middle of the streams."""
        harness.kill_unseen(server.pid, [harness.stopped_rank(server.pid)], number)

    def check_stream(self, stream):
        client, out, err = stream
        self.assertEqual(client.wait(), 0, err.rest())
        self.assertEqual(out.rest().strip(), self.expected)

    def await_restarts(self, server, count: int):
        server.wait_logged("the ranks run again over", count)

    def restarts(self, server) -> int:
        return server.err.text().count("the ranks run again over")


class Streams(ServedRanks):
    def lose_rank_in(self, number: int) -> tuple[harness.Server, list]:
        """Two streams, in whose 20th step rank 1 stops and gets the signal."""
        server = self.started("--transport", RUNG, faults="1:step-20:stop",
                              deadlines=DEADLINES if number == signal.SIGSTOP else PATIENT)
        streams = [self.stream(server) for _ in range(2)]
        if number != signal.SIGSTOP:
            rank = harness.stopped_rank(server.pid)
            harness.wait_until(lambda: open_requests(server) == 2, "two streams")
            harness.kill_unseen(server.pid, [rank], number)
        return server, streams

    def test_streams_go_on_with_the_same_text(self):
        numbers = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)
        # Each rung has another signal on the same day.
        turn = (breadth.day() + RUNGS.index(RUNG)) % len(numbers)
        for number in numbers if breadth.FULL else (numbers[turn],):
            with self.subTest(signal=number.name):
                server, streams = self.lose_rank_in(number)
                for stream in streams:
                    self.check_stream(stream)
                self.await_restarts(server, 1)
                self.assertEqual(len(harness.descendants(server.pid)),
                                 RANKS, "the ranks, and nobody else")
                server.process.terminate()
                self.assertEqual(server.end(), 0, server.err.text())
                server.err.rest()
                self.assertEqual(self.restarts(server), 1, server.err.text())


class Serving(ServedRanks):
    def test_ranks_lost_while_idle_are_back_before_the_next_request(self):
        server = self.started()
        self.hit(server, 0)
        self.await_restarts(server, 1)
        self.check_stream(self.stream(server))

    def test_a_request_present_at_two_crashes_in_a_row_fails_alone(self):
        # The second crash comes less than 16 steps later.
        server = self.started(faults="1:step-9:stop,1:step-3:stop")
        client, _, err = self.stream(server)
        for _ in range(2):
            self.kill_stopped(server, signal.SIGSEGV)
        self.assertEqual(client.wait(), harness.INTERNAL)
        self.assertRegex(err.rest(), r"crashed twice.*rank 1 .*was killed by signal 11")
        self.check_stream(self.stream(server))

    def test_kills_from_outside_cost_no_stream(self):
        server = self.started("--max-restarts", 2,
                              faults="1:step-9:stop,1:step-3:stop,1:step-20:stop,1:step-20:stop")
        stream = self.stream(server)
        for kill in range(1, 5):  # the first two come too early to cost no restart
            self.kill_stopped(server)
            self.await_restarts(server, kill)
        self.check_stream(stream)
        free = "a kill from outside, which does not count against --max-restarts"
        self.assertEqual(server.err.text().count(free), 2)

    def test_crashes_with_many_good_steps_between_cost_no_stream(self):
        server = self.started("--max-restarts", 5,
                              faults="1:step-20:stop,1:step-20:stop,1:step-20:stop")
        stream = self.stream(server)
        for crash in range(1, 4):
            self.kill_stopped(server, signal.SIGSEGV)
            self.await_restarts(server, crash)
        self.check_stream(stream)

    def test_a_line_of_a_batch_that_is_in_two_crashes_fails_alone(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for tokens in (60, 3):
                file.write(json.dumps({"prompt_ids": [0, 1151, 262], "max_tokens": tokens,
                                       "ignore_eos": True}) + "\n")
            file.flush()
            # The first crash comes in the middle of the 60 tokens, and the second at once.
            with harness.planted("1:step-30:stop,1:step-1:stop"):
                process = harness.start("generate", harness.DEMO, "--jsonl", file.name, *self.FLAGS,
                                        *PATIENT, "--max-num-seqs", 1, "--log-level", "info")
            self.addCleanup(lambda: process.poll() is None
                            and os.killpg(process.pid, signal.SIGKILL))
            out, err = harness.Reader(process.stdout), harness.Reader(process.stderr)
            for _ in range(2):
                harness.kill_unseen(process.pid, [harness.stopped_rank(process.pid)],
                                    signal.SIGSEGV)
            self.assertEqual(process.wait(), harness.INTERNAL, err.rest())
        first, second = (json.loads(line) for line in out.rest().splitlines())
        self.assertEqual(first["error"]["code"], "INTERNAL")
        self.assertIn("crashed twice", first["error"]["message"])
        self.assertEqual(len(second["token_ids"]), 3)
        self.assertRegex(err.rest(), r"line 1: the ranks crashed twice")

    def test_an_own_fault_twice_moves_to_the_next_rung(self):
        server = self.started("--transport", "shm,tcp")
        for crash in (1, 2):
            self.hit(server, 0, signal.SIGSEGV)
            self.await_restarts(server, crash)
        self.assertIn("the ranks run again over tcp", server.err.text())
        self.check_stream(self.stream(server))

    def test_the_end_of_patience_is_exit_75(self):
        server = self.started("--max-restarts", 2)
        for crash in (1, 2):
            self.hit(server, 1)
            self.await_restarts(server, crash)
        self.hit(server, 1)
        self.assertEqual(server.end(), harness.WORKER_DIED)
        self.assertRegex(server.err.rest(), r"--max-restarts")

    def test_a_stop_of_the_group_with_a_stopped_rank(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number.name):
                server = self.started("--shutdown-timeout", 5 * harness.GUARD)
                rank = harness.children(server.pid)[1]
                os.kill(rank, signal.SIGSTOP)
                harness.wait_until(lambda: harness.stands_still(rank), "a stopped rank")
                os.killpg(server.pid, number)
                self.assertEqual(server.end(), 0, server.err.text())

    def start_without_end(self, command: str, timeout_s: int, *flags):
        """Rank 1 stops while it loads, and only the deadline of the start notices that."""
        with harness.planted("1:load:stop"):
            process = harness.start(command, harness.DEMO, "-tp", RANKS, "--startup-timeout", timeout_s,
                                    *PATIENT, *flags)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        return process, harness.Reader(process.stderr), timeout_s

    def check_deadline(self, process, err, timeout_s: int):
        self.assertEqual(process.wait(), harness.UNAVAILABLE, err.rest())
        self.assertRegex(err.rest(), rf"--startup-timeout, {timeout_s} s")

    def test_a_start_and_its_attempts_have_one_deadline_and_a_recovery_its_own(self):
        server = self.serve(harness.DEMO, "-tp", RANKS, "--startup-timeout", 12)
        server.wait_ready()
        start = self.start_without_end("generate", 12, *REQUEST)
        without_restarts = self.start_without_end("serve", 6, "--grpc-port", 0, "--max-restarts", 0)
        self.check_deadline(*without_restarts)
        self.check_deadline(*start)
        # A second attempt would have succeeded, but there was no time left for it.
        self.assertRegex(start[1].text(), r"in phase load; rank 1 \(load\) is stopped")
        self.assertNotIn("starting the ranks again", start[1].text())
        # This start began after that of the server, whose deadline is therefore over too.
        self.hit(server, 1)
        self.await_restarts(server, 1)

    def test_a_stop_does_not_wait_for_ranks_that_nobody_needs(self):
        server = self.started("--shutdown-timeout", 5 * harness.GUARD, faults=",1:load:stop")
        self.hit(server, 0)
        harness.stopped_rank(server.pid)
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())

    def test_the_report_remembers_restarts(self):
        server = self.started()
        self.hit(server, 1)
        self.await_restarts(server, 1)
        self.assertTrue(re.search(r"rank 1 \(pid \d+\) was killed by signal 9", server.err.text()))


if __name__ == "__main__":
    chosen = sys.argv[1]
    for name, part in (("phases", "Phases"), ("streams", "Streams"), ("serving", "Serving")):
        if name != chosen:
            del globals()[part]
    del ServedRanks  # it has no tests of its own
    harness.main(arguments=(chosen,) if chosen == "serving" else (chosen, RUNG))
