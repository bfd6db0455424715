"""What the program does when ranks die, when it is told to stop, and when the front itself dies.

Every death is a real SIGKILL. A worker's death is noticed within a second. On a machine that is
busy with other tests the processes may wait that long for a processor, so a late end is tried once
more before it counts.
"""
import os
import signal
import subprocess
import time

import breadth
import harness

RANKS = 3
# Slow on purpose: the plain loops leave time to kill a rank in the middle of a prefill. There are
# no restarts here, because recovery_test.py tests those.
SLOW = ("-tp", RANKS, "--threads-per-rank", 1, "--cpu-kernels", "reference", "--max-restarts", 0)
LONG_PROMPT = harness.ids_flag(4 + (i * 37) % 4000 for i in range(470))
SHORT_PROMPT = harness.ids_flag([0, 1151, 262, 2088])
ENDLESS = ("--max-tokens", 400, "--ignore-eos", "--temperature", 0)


def ranks(turn: int) -> list[int]:
    """The ranks that a test kills, one after the other: all, or in a narrow run one of them, which
    changes with the day and from test to test."""
    return [(breadth.day() + turn) % RANKS] if breadth.NARROW else list(range(RANKS))


def within_a_second(attempt):
    """Checks that attempt() returns at most 1, the seconds that an end took.

    Tries a second time if not.
    """
    took = attempt()
    if took > 1:
        took = attempt()
    assert took <= 1, f"the end took {took:.2f} s"


class Faults(harness.TestCase):
    def check_death(self, process, err: harness.Reader, rank: int, killed_at: float) -> float:
        """Checks that the front ended because `rank` was killed, and reported it.

        Returns the seconds that this took.
        """
        code = process.wait()
        took = time.monotonic() - killed_at
        text = err.rest()
        self.assertEqual(code, harness.WORKER_DIED, text)
        self.assertIn(f"rank {rank}", text)
        self.assertRegex(text, r"SIGKILL|signal 9")
        # The error has at most 2 kB, and serve adds log lines.
        self.assertLess(len(text.encode()), 2048 + 4096)
        harness.wait_until(lambda: not harness.children(process.pid), "no child left")
        return took

    def kill_rank(self, pid: int, rank: int) -> float:
        worker = harness.children(pid)[rank]
        now = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        return now

    # --- a worker dies ------------------------------------------------------

    def die_during_load(self, command: tuple, rank: int) -> float:
        process = harness.start(*command, *SLOW)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        err, out = harness.Reader(process.stderr), harness.Reader(process.stdout)
        workers = harness.wait_until(lambda: len(found := harness.children(process.pid)) == RANKS
                                     and found, "workers")
        # Stop the rank first. The load cannot finish without its answer, so the kill happens during
        # the load.
        os.kill(workers[rank], signal.SIGSTOP)
        time.sleep(0.2)
        self.assertEqual(out.text(), "", "the load was over before the kill")
        took = self.check_death(process, err, rank, self.kill_rank(process.pid, rank))
        self.assertEqual(out.rest(), "")
        return took

    def test_worker_killed_during_load(self):
        for command in (("serve", harness.DEMO, "--grpc-port", 0),
                        ("generate", harness.DEMO, "--prompt", "In", "--max-tokens", 400)):
            for rank in ranks(0):
                with self.subTest(command=command[0], rank=rank):
                    within_a_second(lambda: self.die_during_load(command, rank))

    def die_during_serve(self, rank: int, prompt: str, wait_for_text: bool) -> float:
        server = self.serve(harness.DEMO, *SLOW)
        server.wait_ready()
        client = server.client("--prompt-ids", prompt, *ENDLESS)
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        if wait_for_text:
            harness.wait_until(lambda: len(out.data) > 10, "text on the client's side")
        else:
            time.sleep(0.4)
            self.assertEqual(out.text(), "", "the prefill was over before the kill")
        took = self.check_death(server.process, server.err, rank, self.kill_rank(server.pid, rank))
        self.assertNotEqual(client.wait(), 0)
        self.assertNotEqual(err.rest(), "")
        return took

    def test_worker_killed_during_prefill_of_serve(self):
        for rank in ranks(1):
            with self.subTest(rank=rank):
                within_a_second(lambda: self.die_during_serve(rank, LONG_PROMPT, False))

    def test_worker_killed_during_decode_of_serve(self):
        for rank in ranks(2):
            with self.subTest(rank=rank):
                within_a_second(lambda: self.die_during_serve(rank, SHORT_PROMPT, True))

    def die_during_generate(self, rank: int, prompt: str, wait_for_text: bool) -> float:
        process = harness.start("generate", harness.DEMO, "--prompt-ids", prompt,
                                *ENDLESS[:2] if wait_for_text else ("--max-tokens", 9),
                                *ENDLESS[2:], *SLOW)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        out, err = harness.Reader(process.stdout), harness.Reader(process.stderr)
        if wait_for_text:
            harness.wait_until(lambda: len(out.data) > 10, "text")
        else:
            harness.wait_until(lambda: len(harness.children(process.pid)) == RANKS, "workers")
            time.sleep(0.8)
            self.assertEqual(out.text(), "", "the prefill was over before the kill")
        return self.check_death(process, err, rank, self.kill_rank(process.pid, rank))

    def test_worker_killed_during_prefill_of_generate(self):
        for rank in ranks(3):
            with self.subTest(rank=rank):
                within_a_second(lambda: self.die_during_generate(rank, LONG_PROMPT, False))

    def test_worker_killed_during_decode_of_generate(self):
        for rank in ranks(4):
            with self.subTest(rank=rank):
                within_a_second(lambda: self.die_during_generate(rank, SHORT_PROMPT, True))

    def test_worker_killed_while_idle(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport=transport):
                def attempt():
                    server = self.serve(harness.DEMO, "-tp", RANKS, "--transport", transport,
                                        "--max-restarts", 0)
                    server.wait_ready()
                    return self.check_death(server.process, server.err, 1,
                                            self.kill_rank(server.pid, 1))
                within_a_second(attempt)

    def test_an_ignored_sigchld_hides_no_death(self):
        # A shell's trap '' CHLD passes this setting on through exec, and so do other programs that
        # use it to avoid zombies.
        process = harness.start("serve", harness.DEMO, "--grpc-port", 0, *SLOW,
                                preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        err, out = harness.Reader(process.stderr), harness.Reader(process.stdout)
        harness.wait_until(lambda: "READY" in out.text(), "a READY line")
        self.check_death(process, err, 1, self.kill_rank(process.pid, 1))

    # --- the front dies -----------------------------------------------------

    def kill_front(self, prompt: str | None) -> float:
        server = self.serve(harness.DEMO, *SLOW)
        if prompt is not None:  # otherwise kill it during the load
            server.wait_ready()
        workers = server.workers(RANKS)
        if prompt is not None:
            client = server.client("--prompt-ids", prompt, *ENDLESS, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
            time.sleep(0.4)
        now = time.monotonic()
        os.kill(server.pid, signal.SIGKILL)
        harness.wait_until(lambda: not any(harness.parent_of(w) is not None for w in workers),
                           "workers gone")
        took = time.monotonic() - now
        server.process.wait()
        if prompt is not None:
            client.wait()
        return took

    def test_front_killed(self):
        for prompt in (None, SHORT_PROMPT, LONG_PROMPT):
            with self.subTest(prompt=prompt and len(prompt)):
                within_a_second(lambda: self.kill_front(prompt))

    # --- told to stop -------------------------------------------------------

    def test_exactly_one_process_a_rank_below_the_front(self):
        for ranks in (1, 2, 4):
            server = self.serve(harness.DEMO, "-tp", ranks)
            server.wait_ready()
            self.assertEqual(len(harness.descendants(server.pid)), ranks)
            server.process.terminate()
            self.assertEqual(server.end(), 0)

    def test_stop_while_idle_is_at_once(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number.name):
                def attempt():
                    server = self.serve(harness.DEMO, "-tp", 2)
                    server.wait_ready()
                    now = time.monotonic()
                    # The whole group: workers must leave the signal to the front.
                    os.killpg(server.pid, number)
                    self.assertEqual(server.end(), 0, server.err.text())
                    return time.monotonic() - now
                within_a_second(attempt)

    def test_stop_of_the_whole_group_lets_streams_finish(self):
        flags = ("--prompt-ids", SHORT_PROMPT, "--max-tokens", 120, "--ignore-eos", "--temperature",
                 0)
        whole = harness.run("generate", harness.DEMO, *flags, "--cpu-kernels",
                            "reference").stdout.decode()
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number.name):
                # The plain loops are so slow that the stream is certainly still running when the
                # signal arrives.
                server = self.serve(harness.DEMO, "-tp", 2, "--cpu-kernels", "reference")
                server.wait_ready()
                client = server.client(*flags)
                out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
                harness.wait_until(lambda: out.data, "the first text")
                os.killpg(server.pid, number)
                self.assertIsNone(client.poll(), "the stream was over before the signal")
                self.assertEqual(client.wait(), 0, err.rest())
                self.assertEqual(server.end(), 0, server.err.text())
                self.assertEqual(out.rest().strip(), whole.strip())

    def test_a_new_request_is_refused_while_stopping(self):
        server = self.serve(harness.DEMO, "-tp", 2, "--cpu-kernels", "reference")
        server.wait_ready()
        client = server.client("--prompt-ids", SHORT_PROMPT, "--max-tokens", 100, "--ignore-eos",
                               "--temperature", 0)
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        harness.wait_until(lambda: out.data, "the first text")
        server.process.terminate()
        time.sleep(0.2)
        late = server.client("--prompt-ids", SHORT_PROMPT, "--max-tokens", 2,
                             stdout=subprocess.DEVNULL)
        late_error = harness.Reader(late.stderr)
        self.assertEqual(late.wait(), harness.UNAVAILABLE, late_error.rest())
        self.assertEqual(client.wait(), 0, err.rest())
        self.assertEqual(server.end(), 0)

    def test_interrupted_generate_ends_at_once(self):
        process = harness.start("generate", harness.DEMO, "--prompt-ids", SHORT_PROMPT, *ENDLESS,
                                *SLOW, stderr=subprocess.DEVNULL)
        out = harness.Reader(process.stdout)
        harness.wait_until(lambda: out.data, "the first text")
        os.killpg(process.pid, signal.SIGINT)
        self.assertNotIn(process.wait(), (0, harness.INTERNAL))


if __name__ == "__main__":
    harness.main()
