"""Ranks die or stop, but the process stays up, and streams continue with the same bits.

Every fault is real: a rank stops itself with SIGSTOP when it enters a phase (SHOAL_TEST_FAULT), and
either stays stopped or is killed there. Usage: recovery_test.py phases RUNG, recovery_test.py
streams RUNG, or recovery_test.py serving.
"""
import json
import os
import re
import signal
import sys
import tempfile
import time

import breadth
import harness

RANKS = 2
PROMPT = harness.ids_flag([0, 1151, 262, 2088])
REQUEST = ("--prompt-ids", PROMPT, "--max-tokens", 24, "--ignore-eos", "--seed", 7, "--logprobs", 2)
# The deadlines are short, so that a stop is noticed soon. Each of the first phases of a start gets
# a quarter of its time.
DEADLINES = ("--startup-timeout", 6, "--step-timeout", 1)
PHASES = ("spawn", "open", "self-test", "load", "touch", "warm-up", "step-1", "step-5")
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

    def start_stopping_at(self, rank: int, phase: str):
        os.environ["SHOAL_TEST_FAULT"] = f"{rank}:{phase}:stop"
        try:
            process = harness.start("generate", harness.DEMO, *REQUEST, "--json", "-tp", RANKS,
                                    "--transport", RUNG, *DEADLINES)
        finally:
            del os.environ["SHOAL_TEST_FAULT"]
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        return process, harness.Reader(process.stdout), harness.Reader(process.stderr)

    def stopped_child(self, process) -> int:
        def find():
            for pid in harness.children(process.pid):
                if harness.state_of(pid) == "T":
                    return pid
            return None
        return harness.wait_until(find, "a stopped rank")

    def check_answer(self, process, out, err, rank: int):
        self.assertEqual(process.wait(), 0, err.rest())
        answer = json.loads(out.rest())
        self.assertEqual(answer.pop("transport"), RUNG,
                         "a kill or stop from outside does not count against the rung")
        self.assertEqual(answer, self.expected)
        self.assertRegex(err.rest(), rf"starting the ranks again \(1 of 3\).*rank {rank}\b")

    def kill_in(self, phase: str, rank: int) -> float:
        """Kills the rank in the phase, and checks the text.

        Returns the seconds from the kill until the front reacted.
        """
        process, out, err = self.start_stopping_at(rank, phase)
        victim = self.stopped_child(process)
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        harness.wait_until(lambda: "starting the ranks again" in err.text(),
                           "the answer to a kill")
        took = time.monotonic() - killed_at
        self.check_answer(process, out, err, rank)
        self.assertIn(f"in phase {phase.replace('-1', ' 1').replace('-5', ' 5')}", err.text())
        return took

    def test_kill_in_every_phase(self):
        for phase in PHASES:
            for rank in range(RANKS):
                with self.subTest(phase=phase, rank=rank):
                    took = self.kill_in(phase, rank)
                    # On a busy machine the processes may have waited for a processor, so try once
                    # more.
                    if took > 1:
                        took = self.kill_in(phase, rank)
                    self.assertLess(took, 1)

    def test_stop_in_every_phase(self):
        for phase in PHASES:
            for rank in range(RANKS):
                with self.subTest(phase=phase, rank=rank):
                    process, out, err = self.start_stopping_at(rank, phase)
                    self.stopped_child(process)
                    self.check_answer(process, out, err, rank)
                    self.assertRegex(err.text(), rf"rank {rank} \([^)]*\) is stopped by a signal")
                    if phase.startswith("step"):
                        self.assertRegex(
                            err.text(),
                            rf"rank {1 - rank} \([^)]*collective \d+, [^)]*\) "
                            rf"waits for rank {rank}")


class ServedRanks(harness.TestCase):
    """A server whose ranks are lost while streams are open."""

    REQUEST = ("--prompt-ids", PROMPT, "--max-tokens", 120, "--ignore-eos", "--temperature", 0)
    # The plain loops are so slow that the stream is certainly still running at the time of the
    # fault.
    FLAGS = ("-tp", RANKS, "--threads-per-rank", 1, "--cpu-kernels", "reference", *DEADLINES)

    @classmethod
    def setUpClass(cls):
        cls.expected = harness.run("generate", harness.DEMO, *cls.REQUEST, "--cpu-kernels",
                                   "reference").stdout.decode().strip()

    def started(self, *flags) -> harness.Server:
        server = self.serve(harness.DEMO, *self.FLAGS, *flags)
        server.wait_ready()
        return server

    def stream(self, server):
        client = server.client(*self.REQUEST)
        self.addCleanup(lambda: client.poll() is None and client.kill())
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        return client, out, err

    def hit(self, server, rank: int, number: int):
        os.kill(harness.children(server.pid)[rank], number)

    def check_stream(self, stream):
        client, out, err = stream
        self.assertEqual(client.wait(), 0, err.rest())
        self.assertEqual(out.rest().strip(), self.expected)

    def restarts(self, server) -> int:
        return server.err.text().count("the ranks run again over")


class Streams(ServedRanks):
    def test_streams_go_on_with_the_same_text(self):
        numbers = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)
        # Each rung has another signal on the same day.
        turn = (breadth.day() + RUNGS.index(RUNG)) % len(numbers)
        for number in numbers if breadth.FULL else (numbers[turn],):
            with self.subTest(signal=number.name):
                server = self.started("--transport", RUNG)
                streams = [self.stream(server) for _ in range(2)]
                harness.wait_until(lambda: all(len(out.data) > 10 for _, out, _ in streams),
                                   "text on both streams")
                self.hit(server, 1, number)
                for stream in streams:
                    self.check_stream(stream)
                self.assertEqual(self.restarts(server), 1, server.err.text())
                self.assertEqual(len(harness.descendants(server.pid)),
                                 RANKS, "the ranks, and nobody else")
                server.process.terminate()
                self.assertEqual(server.end(), 0, server.err.text())


class Serving(ServedRanks):
    def test_ranks_lost_while_idle_are_back_before_the_next_request(self):
        server = self.started()
        self.hit(server, 0, signal.SIGKILL)
        harness.wait_until(lambda: self.restarts(server) == 1, "a restart without any request")
        self.check_stream(self.stream(server))

    def test_a_request_present_at_two_crashes_in_a_row_fails_alone(self):
        server = self.started()
        client, out, err = self.stream(server)
        harness.wait_until(lambda: out.data, "text before the crash")
        self.hit(server, 1, signal.SIGKILL)
        harness.wait_until(lambda: self.restarts(server) == 1, "a restart")
        self.hit(server, 1, signal.SIGKILL)  # less than 16 steps later
        self.assertEqual(client.wait(), harness.INTERNAL)
        self.assertRegex(err.rest(), r"crashed twice.*rank 1 .*was killed by signal 9")
        self.check_stream(self.stream(server))

    def test_crashes_with_many_good_steps_between_cost_no_stream(self):
        server = self.started("--max-restarts", 5)
        stream = self.stream(server)
        client, out, err = stream
        for crash in range(1, 4):
            seen = len(out.data)
            # 120 tokens are about 450 characters, so these are more than 16 tokens.
            harness.wait_until(lambda: len(out.data) > seen + 110, "text before the crash")
            self.hit(server, 1, signal.SIGKILL)
            harness.wait_until(lambda: self.restarts(server) == crash, "a restart")
        self.check_stream(stream)

    def test_a_line_of_a_batch_that_is_in_two_crashes_fails_alone(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for tokens in (600, 3):
                file.write(json.dumps({"prompt_ids": [0, 1151, 262], "max_tokens": tokens,
                                       "ignore_eos": True}) + "\n")
            file.flush()
            process = harness.start("generate", harness.DEMO, "--jsonl", file.name, *self.FLAGS,
                                    "--max-num-seqs", 1, "--log-level", "info")
            self.addCleanup(lambda: process.poll() is None
                            and os.killpg(process.pid, signal.SIGKILL))
            out, err = harness.Reader(process.stdout), harness.Reader(process.stderr)
            for crash in range(2):
                harness.wait_until(lambda: len(harness.children(process.pid)) == RANKS,
                                   "the ranks")
                harness.wait_until(lambda: err.text().count("the ranks run again over") == crash,
                                   "a restart")
                # The first crash comes in the middle of the 600 tokens, and the second at once.
                time.sleep(1.5 if crash == 0 else 0)
                os.kill(harness.children(process.pid)[1], signal.SIGKILL)
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
            harness.wait_until(lambda: self.restarts(server) == crash, "a restart")
        self.assertIn("the ranks run again over tcp", server.err.text())
        self.check_stream(self.stream(server))

    def test_the_end_of_patience_is_exit_75(self):
        server = self.started("--max-restarts", 2)
        for crash in (1, 2):
            self.hit(server, 1, signal.SIGKILL)
            harness.wait_until(lambda: self.restarts(server) == crash, "a restart")
        self.hit(server, 1, signal.SIGKILL)
        self.assertEqual(server.end(), harness.WORKER_DIED)
        self.assertRegex(server.err.rest(), r"--max-restarts")

    def test_a_stop_of_the_group_with_a_stopped_rank(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number.name):
                server = self.started()
                os.kill(harness.children(server.pid)[1], signal.SIGSTOP)
                asked = time.monotonic()
                os.killpg(server.pid, number)
                self.assertEqual(server.end(), 0, server.err.text())
                self.assertLess(time.monotonic() - asked, 15)

    def test_one_deadline_for_a_start_and_its_attempts(self):
        # The rank stops while it loads, and only the deadline of the start notices that. A second
        # attempt would succeed, but there is no time left for it.
        os.environ["SHOAL_TEST_FAULT"] = "1:load:stop"
        try:
            process = harness.start("generate", harness.DEMO, *REQUEST, "-tp", RANKS,
                                    "--startup-timeout", 4, "--step-timeout", 100)
        finally:
            del os.environ["SHOAL_TEST_FAULT"]
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        err = harness.Reader(process.stderr)
        self.assertEqual(process.wait(), harness.UNAVAILABLE, err.rest())
        self.assertRegex(err.rest(), r"--startup-timeout, 4 s")
        self.assertRegex(err.rest(), r"in phase load; rank 1 \(load\) is stopped")
        self.assertNotIn("starting the ranks again", err.rest())

    def test_a_recovery_has_a_deadline_of_its_own(self):
        server = self.serve(harness.DEMO, "-tp", RANKS, "--startup-timeout", 4)
        server.wait_ready()
        time.sleep(4)
        self.hit(server, 1, signal.SIGKILL)
        harness.wait_until(lambda: self.restarts(server) == 1, "a restart")

    def test_a_stop_does_not_wait_for_ranks_that_nobody_needs(self):
        # With the default deadlines a stopped rank is given up after 15 s.
        server = self.serve(harness.DEMO, "-tp", RANKS)
        server.wait_ready()
        old = set(server.workers(RANKS))
        os.kill(min(old), signal.SIGKILL)
        # The front waits for a child that has not become the program yet (posix_spawn), so that
        # stopping it there would stop the front.
        successor = harness.wait_until(
            lambda: next((pid for pid in set(harness.children(server.pid)) - old
                          if "worker" in harness.words_of(pid)), None), "a new rank")
        os.kill(successor, signal.SIGSTOP)
        harness.wait_until(lambda: harness.state_of(successor) == "T", "a stopped rank")
        if self.restarts(server) == 0:  # the rank was stopped before it was ready
            asked = time.monotonic()
            server.process.terminate()
            self.assertEqual(server.end(), 0, server.err.text())
            self.assertLess(time.monotonic() - asked, 10)
        else:
            self.skipTest("the new ranks were ready before one could be stopped")

    def test_the_report_remembers_restarts(self):
        server = self.started()
        self.hit(server, 1, signal.SIGKILL)
        harness.wait_until(lambda: self.restarts(server) == 1, "a restart")
        self.assertTrue(re.search(r"rank 1 \(pid \d+\) was killed by signal 9", server.err.text()))


if __name__ == "__main__":
    chosen = sys.argv[1]
    for name, part in (("phases", "Phases"), ("streams", "Streams"), ("serving", "Serving")):
        if name != chosen:
            del globals()[part]
    del ServedRanks  # it has no tests of its own
    harness.main(arguments=(chosen,) if chosen == "serving" else (chosen, RUNG))
