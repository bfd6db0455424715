"""shoal doctor MODEL: it ends as shoal serve would with the same flags, and loads no weights."""
import contextlib
import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import cgroups
import denied
import harness

MIB = 1 << 20
# Nobody else uses them. Each run gets one of its own, because the processes of a user count until
# somebody has waited for them.
USERS = itertools.count(64_100)
PORTS = ("--grpc-port", 0)


class Case(harness.TestCase):
    def doctor(self, *args, **popen) -> tuple[int, dict, str]:
        process = harness.start("doctor", *args, "--json", **popen)
        out, err = process.communicate()
        self.assertTrue(out, err)
        return process.returncode, json.loads(out), err.decode()

    def end_of_serve(self, *args, **popen) -> tuple[int, str]:
        """0 if the server becomes ready, otherwise its exit code; and what it said."""
        process = harness.start("serve", *args, *PORTS, **popen)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        out, err = harness.Reader(process.stdout), harness.Reader(process.stderr)
        harness.wait_until(lambda: "\n" in out.text() or process.poll() is not None, "its end")
        if process.poll() is not None:
            return process.returncode, err.rest()
        process.terminate()
        self.assertEqual(process.wait(), 0)
        return 0, err.rest()

    def check_same(self, *args, code: int, **popen) -> dict:
        ended, report, err = self.doctor(*args, **popen)
        self.assertEqual(ended, code, err)
        self.assertEqual(self.end_of_serve(*args, **popen)[0], code)
        self.assertEqual(report["error"] is None, code == 0 or bool(report["refusals"]), report)
        return report


class Model(Case):
    def test_it_ends_as_serve_does(self):
        with tempfile.TemporaryDirectory() as folder:
            damaged = Path(folder, "damaged")
            shutil.copytree(harness.DEMO, damaged)
            os.truncate(damaged / "model.safetensors", 1000)
            without = Path(folder, "without")
            shutil.copytree(harness.DEMO, without)
            (without / "tokenizer.json").unlink()
            ready = Path(folder, "ready")
            for args, code in (((harness.DEMO, "-tp", 2), 0),
                               ((harness.DEMO,), 0),
                               (("/no/such/model",), harness.NO_MODEL),
                               ((damaged, "-tp", 2), harness.BAD_MODEL),
                               ((without, "-tp", 2), harness.NO_MODEL),
                               ((harness.DEMO, "--kv-cache-memory", "900t"), harness.USAGE),
                               ((harness.DEMO, "-tp", 16), harness.USAGE),
                               ((harness.DEMO, "--chat-template", "/no/such"), harness.USAGE),
                               ((harness.DEMO, "--ready-file", ready), 0),
                               ((harness.DEMO, "--ready-file", "/nonexist/x"), harness.USAGE),
                               ((harness.DEMO, "--ready-file", "/proc/x"), harness.USAGE),
                               ((harness.DEMO, "--ready-file", folder), harness.USAGE),
                               ((harness.DEMO, "--ready-file", damaged / "config.json"),
                                harness.USAGE)):
                with self.subTest(args=args):
                    self.check_same(*args, code=code)
            self.assertEqual(sorted(os.listdir(folder)), ["damaged", "without"])

    def test_it_says_that_serve_would_start_and_what_it_would_take(self):
        process = harness.start("doctor", harness.DEMO, "-tp", 2)
        out, err = (text.decode() for text in process.communicate())
        self.assertEqual(process.returncode, 0, err)
        verdict, start, memory = out.splitlines()[:3]
        self.assertTrue(verdict.startswith("OK: 2 ranks use "), out)
        self.assertEqual(start, "shoal serve would start here, if its ports are free")
        # All but what is available at this moment.
        plan = memory.split(" in all, ")[0]
        self.assertTrue(plan.startswith("memory for 2 ranks: weights "), out)
        self.assertIn(plan, self.end_of_serve(harness.DEMO, "-tp", 2)[1])

    def test_a_refused_start_says_its_reason_once(self):
        for args, code in ((("/no/such/model",), harness.NO_MODEL),
                           ((harness.DEMO, "-tp", 16), harness.USAGE),
                           ((harness.DEMO, "--chat-template", "/no/such"), harness.USAGE),
                           ((harness.DEMO, "--ready-file", "/no/such/x"), harness.USAGE)):
            with self.subTest(args=args):
                reason = self.doctor(*args)[1]["failure"]
                process = harness.start("doctor", *args)
                out, err = (text.decode() for text in process.communicate())
                self.assertEqual(process.returncode, code, err)
                self.assertEqual(out.count(reason), 1, out)
                self.assertNotIn("would start", out)
                self.assertNotIn("shoal: error", err)
                self.assertNotIn(reason.splitlines()[-1], err)

    def test_no_weights_are_loaded_and_nothing_of_a_running_server_is_in_its_way(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        ready = Path(folder.name, "ready")
        server = self.serve(harness.DEMO, "-tp", 2, "--ready-file", ready)
        fields = server.wait_ready()
        ports = [fields[front].rsplit(":", 1)[1] for front in ("grpc", "http")]
        code, report, err = self.doctor(harness.DEMO, "-tp", 2, "--grpc-port", ports[0], "--port",
                                        ports[1], "--ready-file", ready, "--log-level", "info")
        self.assertEqual((code, report["rung"], report["tp"]), (0, "shm", 2), err)
        self.assertIn("start: self-test took", err)
        self.assertNotIn("start: load took", err)
        self.assertEqual(ready.read_text(), server.out.text())
        server.process.terminate()
        self.assertEqual(server.end(), 0)

    def test_a_signal_ends_it_with_the_number_of_that_signal(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            with self.subTest(number):
                with harness.planted("1:open:stop"):
                    doctor = harness.start("doctor", harness.DEMO, "-tp", 2)
                harness.stopped_rank(doctor.pid)
                doctor.send_signal(number)
                out, _ = doctor.communicate()
                self.assertEqual((doctor.returncode, out), (128 + number, b""))
                self.check_nothing_left()

    def test_variables_of_the_server_count(self):
        variables = {"SHOAL_TENSOR_PARALLEL_SIZE": "3", "SHOAL_TRANSPORT": "tcp"}
        os.environ.update(variables)
        try:
            code, report, err = self.doctor(harness.DEMO)
            self.assertEqual((code, report["tp"], report["order"]), (0, 3, ["tcp"]), err)
        finally:
            for name in variables:
                del os.environ[name]

    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ, "a sanitizer takes memory of its own")
    def test_memory_that_is_short_for_the_model_has_a_remedy(self):
        try:
            group = cgroups.MemoryLimit(50 * MIB)
        except OSError as error:
            self.skipTest(str(error))
        self.addCleanup(group.remove)
        enter = {"preexec_fn": lambda: group.add(os.getpid())}
        flags = (harness.DEMO, "-tp", 2, "--kv-cache-memory", "16m")
        report = self.check_same(*flags, code=harness.UNAVAILABLE, **enter)
        self.assertEqual(report["refusals"], [], "no transport is at fault")
        self.assertEqual(report["error"]["code"], "RESOURCE_EXHAUSTED")
        self.assertIn("there is too little memory for the model", report["failure"])
        _, said = self.end_of_serve(*flags, **enter)
        self.assertIn("there is too little memory for the model; shoal doctor MODEL, with the same "
                      "flags, prints a remedy", said)
        # Some pages more or less are in use every time.
        group.file.write_text(str(cgroups.limit_of_remedy(report) + 2 * MIB))
        self.check_same(*flags, code=0, **enter)

    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ, "a sanitizer takes memory of its own")
    def test_one_rank_is_short_of_memory_too(self):
        """It needs no transport, but beyond the limit the kernel would kill it all the same."""
        if not re.search(r"SwapTotal: +0 kB", Path("/proc/meminfo").read_text()):
            self.skipTest("with swap the kernel may find room all the same")
        try:
            group = cgroups.MemoryLimit(30 * MIB)
        except OSError as error:
            self.skipTest(str(error))
        self.addCleanup(group.remove)
        enter = {"preexec_fn": lambda: group.add(os.getpid())}
        flags = (harness.DEMO, "-tp", 1, "--kv-cache-memory", "16m")
        report = self.check_same(*flags, code=harness.UNAVAILABLE, **enter)
        _, said = self.end_of_serve(*flags, **enter)
        self.assertRegex(said, r"(?s)there is too little memory for the model; shoal doctor MODEL, with the "
                               r"same flags, prints a remedy.*the memory cgroup has \d+ B")
        group.file.write_text(str(cgroups.limit_of_remedy(report) + 2 * MIB))
        self.check_same(*flags, code=0, **enter)


@unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ,
                 "a sanitizer needs descriptors, threads and address space of its own")
class Limits(Case):
    def codes(self, kind: int, limits) -> list[tuple[int, int]]:
        """How doctor and serve end under each limit."""
        flags = (harness.DEMO, "-tp", 2, "--kv-cache-memory", "16m")
        both = []
        for most in limits:
            place = {"preexec_fn": denied.limit(kind, most)}
            process = harness.start("doctor", *flags, **place)
            process.communicate()
            both.append((process.returncode, self.end_of_serve(*flags, **place)[0]))
        return both

    def test_open_files(self):
        codes = self.codes(resource.RLIMIT_NOFILE, (16, 18, 20, 22, 24, 1024))
        self.assertEqual(codes, [(one, one) for one, _ in codes])
        self.assertEqual({one for one, _ in codes}, {0, harness.UNAVAILABLE})

    TEAMS = (harness.DEMO, "-tp", 2, "--threads-per-rank", 8, "--kv-cache-memory", "16m")

    def limits_of_threads(self) -> list[int]:
        """Some below what a server has once it is ready, and one above. gRPC may have a thread more
        at times."""
        server = self.serve(*self.TEAMS)
        server.wait_ready()
        most = sum(len(os.listdir(f"/proc/{pid}/task"))
                   for pid in (server.pid, *server.workers(2)))
        server.process.terminate()
        self.assertEqual(server.end(), 0)
        return [*range(most - 16, most - 3, 4), most + 8]

    def check_threads(self, ends: list[tuple[int, str, int]]):
        """ends: of doctor with its report, and of serve, under each of these limits."""
        for doctor, said, serve in ends:
            self.assertEqual(doctor, serve, said)
        *short, enough = ends
        self.assertEqual(enough[0], 0, enough[1])
        for code, said, _ in short:
            self.assertEqual(code, harness.UNAVAILABLE, said)
            self.assertRegex(said, r"ulimit -u|pids")

    def end_of_doctor(self, **popen) -> tuple[int, str]:
        process = harness.start("doctor", *self.TEAMS, **popen)
        out, err = process.communicate()
        return process.returncode, (out + err).decode()

    def test_threads_of_the_user(self):
        self.skip_unless_reached_by(next(USERS))
        # The arithmetic does not know of other processes of the user, but the ranks meet them.
        for others in (0, 8):
            ends = []
            for most in self.limits_of_threads():
                pair = []
                for end in (self.end_of_doctor, lambda **at: self.end_of_serve(*self.TEAMS, **at)):
                    user = next(USERS)
                    with contextlib.ExitStack() as stack:
                        for _ in range(others):
                            other = stack.enter_context(
                                subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=user))
                            stack.callback(other.stdin.close)
                        pair.append(end(preexec_fn=denied.limit(
                            resource.RLIMIT_NPROC, most + others, user)))
                ends.append((*pair[0], pair[1][0]))
            with self.subTest(others=others):
                self.check_threads(ends)

    def test_threads_of_the_container(self):
        def entry(most: int) -> dict:
            """Into a group of its own, because the processes of a group count for as long as those
            of a user."""
            group = cgroups.PidsLimit(most)
            self.addCleanup(group.remove)
            return {"preexec_fn": lambda: group.add(os.getpid())}

        try:
            self.check_threads([(*self.end_of_doctor(**entry(most)),
                                 self.end_of_serve(*self.TEAMS, **entry(most))[0])
                                for most in self.limits_of_threads()])
        except OSError as error:
            self.skipTest(str(error))

    def peak_of_serve(self, *flags) -> int:
        """How much address space a process takes at most for a start under a limit that is high."""
        server = self.serve(*flags, preexec_fn=denied.limit(resource.RLIMIT_AS, 16_000 * MIB))
        server.wait_ready()
        peaks = [int(re.search(r"VmPeak:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])
                 for pid in (server.pid, *harness.children(server.pid))]
        server.process.terminate()
        self.assertEqual(server.end(), 0)
        return max(peaks) << 10

    def test_address_space(self):
        # The front takes the most because of its threads, or the rank because of its cache.
        for least, flags in (((60 * MIB, 100 * MIB), ("-tp", 2, "--kv-cache-memory", "16m")),
                             ((), ("-tp", 1, "--kv-cache-memory", "380m", "--max-num-seqs", 256))):
            peak = self.peak_of_serve(harness.DEMO, *flags)
            # gRPC may have a thread more at times, and so another stack.
            for most in (*least, peak - 24 * MIB, peak + 32 * MIB):
                with self.subTest(flags=flags, most=most, peak=peak):
                    code = 0 if most > peak else harness.UNAVAILABLE
                    limit = {"preexec_fn": denied.limit(resource.RLIMIT_AS, most)}
                    doctor = harness.start("doctor", harness.DEMO, *flags, **limit)
                    out, err = doctor.communicate()
                    served, said = self.end_of_serve(harness.DEMO, *flags, **limit)
                    self.assertEqual((doctor.returncode, served), (code, code), (out, err, said))
                    if code != 0:
                        self.assertIn(b"ulimit -v", out + err)


if __name__ == "__main__":
    harness.main()
