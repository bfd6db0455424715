"""What tells others how a server is doing: the file of --ready-file, and messages to systemd."""
import os
import pty
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import uuid
from pathlib import Path
from unittest import mock

import breadth
import grpc
import harness
from harness import DEMO, USAGE, wait_until
from http_client import complete
from reflection_test import Reflector


class ServiceTest(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def environment(self, **variables: str):
        patch = mock.patch.dict(os.environ, variables)
        patch.start()
        self.addCleanup(patch.stop)

    def stop(self, server: harness.Server):
        os.kill(server.pid, signal.SIGTERM)
        self.assertEqual(server.end(), 0, server.err.rest())


class ReadyLine(ServiceTest):
    def ready_of(self, place: Path) -> tuple[str, str]:
        """The READY line of a server of the demo model in this directory, and the model in it."""
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(DEMO)
        server = harness.Server(place)
        self.addCleanup(server.kill)
        model = server.wait_ready()["model"]
        with grpc.insecure_channel(server.wait_ready()["grpc"]) as channel:
            info = Reflector(channel).call("openengine.v1.Control/GetModelInfo")[0][0]
        self.assertEqual(info.model_id, model)
        self.stop(server)
        return server.out.text(), model

    def test_a_value_with_a_space_or_a_quote_is_a_json_string(self):
        line, model = self.ready_of(self.folder / 'my "small" model')
        self.assertEqual(model, 'my "small" model')
        self.assertIn(r' model="my \"small\" model" tp=1 ', line)
        # Everything else is as it was: a word for each field, in the same order.
        self.assertRegex(line.replace(r'"my \"small\" model"', "m"),
                         r"^READY grpc=\S+ http=\S+ model=m tp=1 transport=single kernels=\S+ "
                         r"arithmetic=\S+ load_s=[\d.]+\n$")

    def test_a_snapshot_of_the_hub_has_the_name_of_its_model(self):
        place = self.folder / "hub" / "models--HuggingFaceTB--SmolLM2-135M-Instruct" / "snapshots"
        line, model = self.ready_of(place / "7e27bd9f95328f0f3b08261d1252705110c806f8")
        self.assertEqual(model, "HuggingFaceTB/SmolLM2-135M-Instruct")
        self.assertIn(" model=HuggingFaceTB/SmolLM2-135M-Instruct tp=1 ", line)
        self.assertEqual(self.ready_of(self.folder / "snapshots" / "abc")[1], "abc")


def details_of(error: grpc.RpcError) -> bytes:
    return dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")


class Drain(ServiceTest):
    def check_cut(self, protocol: str, amount: str, *request):
        # The rank stops itself in the middle of the answer, which can therefore not be over.
        with harness.planted("0:step-40:stop"):
            server = harness.Server(DEMO, "-tp", 1, "--shutdown-timeout", "0.2", "--step-timeout",
                                    5 * harness.GUARD)
        self.addCleanup(server.kill)
        client = harness.start("client", "--server", server.wait_ready()[protocol], *request,
                               "--max-tokens", 4000, "--ignore-eos")
        self.addCleanup(lambda: client.poll() is None and client.kill())
        self.assertTrue(client.stdout.read(1), "an answer that has begun")
        os.kill(server.pid, signal.SIGTERM)
        _, err = client.communicate()
        self.assertEqual(client.returncode, harness.UNAVAILABLE, err.decode())
        self.assertRegex(err.decode(), rf"the request failed after \d+ {amount}s? of the answer: "
                                       r"the server is shutting down")
        self.assertEqual(server.end(), 0, server.err.rest())

    def test_a_client_whose_answer_is_cut_may_ask_again(self):
        self.check_cut("grpc", "token", "--prompt", "In the beginning")

    def test_over_http_too(self):
        messages = self.folder / "messages.json"
        messages.write_text('[{"role": "user", "content": "In the beginning"}]')
        self.check_cut("http", "byte", "--messages", messages)

    @unittest.skipIf(breadth.NARROW, "it is left to scripts/test --all")
    def test_thirty_clients_in_a_loop_hear_what_to_do(self):
        """Each call is answered, or refused with the advice to go elsewhere, until there is no server
        that could say anything."""
        told = []
        for _ in range(5):
            server = harness.Server(DEMO, "-tp", 1)
            self.addCleanup(server.kill)
            address = server.wait_ready()["grpc"]
            ends: list[list[grpc.RpcError]] = [[] for _ in range(30)]
            answered = [0] * len(ends)
            clients = [threading.Thread(target=self.call_until_gone, args=(address, i, ends, answered))
                       for i in range(len(ends))]
            for client in clients:
                client.start()
            wait_until(lambda: min(answered) > 0, "an answer for everybody")
            os.kill(server.pid, signal.SIGTERM)
            for client in clients:
                client.join()
            self.assertEqual(server.end(), 0, server.err.rest())
            # The last one of each client is that of its own library, which finds no server, or of the
            # server's gRPC, which ends what comes in its last half second (docs/grpc.md).
            for *others, last in ends:
                self.assertIn(last.code(), (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), last)
                told += others
        self.assertTrue(told)
        for error in told:
            self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE, error)
            self.assertIn(b"google.rpc.RetryInfo", details_of(error), error)

    @staticmethod
    def call_until_gone(address: str, client: int, ends: list, answered: list):
        request = b"\x1a\x10In the beginning\x32\x02\x08\x04"  # with max_tokens 4
        with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0),
                                                     ("grpc.use_local_subchannel_pool", 1),
                                                     ("grpc.enable_retries", 0)]) as channel:
            generate = channel.unary_stream("/openengine.v1.Inference/Generate")
            while not ends[client] or details_of(ends[client][-1]):
                try:
                    list(generate(request, timeout=harness.GUARD))
                    answered[client] += 1
                except grpc.RpcError as error:
                    ends[client].append(error)


class SlowPhases(ServiceTest):
    """A rank stops itself when a phase begins, so that the start stands still there."""

    def test_the_log_names_a_phase_that_takes_longer_than_a_second(self):
        self.environment(SHOAL_TEST_FAULT="0:touch:stop")
        server = harness.Server(DEMO)
        self.addCleanup(server.kill)
        words = "start: touch is not over after 1 s: the KV cache is being allocated\n"
        wait_until(lambda: words in server.err.text(), "the phase in the log",
                   server.err.text)
        os.kill(server.workers(1)[0], signal.SIGCONT)
        server.wait_ready()
        wait_until(lambda: re.search(r"start: touch took [1-9]\d*\.\d+ s", server.err.text()),
                   "the end of the phase in the log", server.err.text)
        self.assertEqual(server.err.text().count("touch is not over"), 1, server.err.text())
        self.stop(server)

    def test_a_terminal_shows_it_while_it_lasts(self):
        self.environment(SHOAL_TEST_FAULT="0:touch:stop")
        ours, terminal = pty.openpty()
        self.addCleanup(os.close, ours)
        process = subprocess.Popen(
            [harness.SHOAL, "generate", DEMO, "--prompt", "In", "--max-tokens", "2"],
            stdout=subprocess.PIPE, stderr=terminal, env=harness.environment())
        self.addCleanup(process.kill)
        os.close(terminal)
        shown = b""
        line = rb"\r\033\[Kthe KV cache is being allocated for (\d+) s"
        while len(set(re.findall(line, shown))) < 2:  # a busy machine may pass over some seconds
            shown += os.read(ours, 4096)
        os.kill(harness.children(process.pid)[0], signal.SIGCONT)
        self.assertNotEqual(process.communicate(timeout=harness.GUARD)[0], b"")


class ReadyFile(ServiceTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "ready"

    def test_it_is_there_while_the_server_is_ready(self):
        self.path.write_text("READY of an earlier run\n")
        # The rank stops itself while it loads, so that the start stands still there.
        self.environment(SHOAL_TEST_FAULT="0:load:stop")
        server = self.serve(DEMO, "--ready-file", self.path, "--shutdown-grace", 5 * harness.GUARD)
        rank = harness.stopped_rank(server.pid)
        self.assertFalse(self.path.exists())
        os.kill(rank, signal.SIGCONT)
        server.wait_ready()
        self.assertEqual(self.path.read_text(), server.out.text())
        self.assertEqual(os.listdir(self.folder), ["ready"])
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: not self.path.exists(), "no file once the server stops")
        self.assertIsNone(server.process.poll(), "it must still be in its time of grace")
        self.stop(server)  # a second signal ends that

    def test_a_server_that_is_stopped_twice_leaves_none(self):
        server = self.serve(DEMO, "--ready-file", self.path, "--shutdown-grace", 60)
        server.wait_ready()
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: "health is red" in server.err.text(), "the time of grace")
        self.stop(server)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_server_whose_ranks_are_lost_leaves_none(self):
        server = self.serve(DEMO, "--ready-file", self.path, "--max-restarts", 0)
        server.wait_ready()
        os.kill(server.workers(1)[0], signal.SIGKILL)
        self.assertEqual(server.end(), harness.WORKER_DIED)
        self.assertEqual(os.listdir(self.folder), [])

    def test_the_file_of_another_server_is_left_alone(self):
        server = self.serve(DEMO, "--ready-file", self.path)
        server.wait_ready()
        there = self.path.read_text()
        for _ in range(2):
            second = harness.run("serve", DEMO, "--ready-file", self.path, code=USAGE)
            self.assertIn("another server", second.stderr.decode())
            self.assertEqual(self.path.read_text(), there)
        self.path.unlink()
        self.path.write_text("READY of somebody else")
        os.kill(server.pid, signal.SIGTERM)
        self.assertEqual(server.end(), 0)
        self.assertEqual(self.path.read_text(), "READY of somebody else")

    def test_what_cannot_be_the_file(self):
        mine = self.folder / "mine.txt"
        mine.write_text("my own notes\n")
        link = self.folder / "link"
        link.symlink_to(mine)
        for path, said in ((self.folder / "none" / "ready", "name a file in a folder"),
                           (mine, "is not of Shoal"), (link, "no regular file"),
                           (self.folder, "no regular file")):
            # Before the model is looked at, which would be another exit code.
            error = harness.run("serve", "no-model", "--ready-file", path, code=USAGE)
            self.assertIn(f"--ready-file {path} ", error.stderr.decode())
            self.assertIn(said, error.stderr.decode())
        self.assertEqual(mine.read_text(), "my own notes\n")
        empty = self.folder / "empty"  # as mktemp leaves one
        empty.touch()
        harness.run("serve", "no-model", "--ready-file", empty, code=harness.NO_MODEL)


class Manager:
    """The end of NOTIFY_SOCKET that systemd would have."""

    def __init__(self, address: str):
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1))
        self.socket.settimeout(harness.GUARD)

    def next(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))

    def until(self, name: str) -> list[dict[str, str]]:
        """All messages up to the first one that sets this name."""
        messages = [self.next()]
        while name not in messages[-1]:
            messages.append(self.next())
        return messages


class Systemd(ServiceTest):
    def manager(self, address: str, **variables: str) -> Manager:
        manager = Manager(address)
        self.addCleanup(manager.socket.close)
        self.environment(NOTIFY_SOCKET=address, **variables)
        return manager

    def test_a_life(self):
        manager = self.manager(str(self.folder / "notify"), WATCHDOG_USEC="300000")
        server = self.serve(DEMO, "-tp", 2, "--startup-timeout", 100, "--shutdown-timeout", 20)
        start = manager.until("READY")
        line = server.wait_ready()
        self.assertEqual(start[0], {"STATUS": "starting", "EXTEND_TIMEOUT_USEC": "160000000"})
        self.assertEqual(start[-1]["READY"], "1")
        self.assertIn(f"grpc={line['grpc']} ", start[-1]["STATUS"])
        for message in start[1:-1]:
            self.assertRegex(message["STATUS"], r"^loading \d+ %$")
        self.assertEqual([manager.next() for _ in range(3)], 3 * [{"WATCHDOG": "1"}])
        for worker in server.workers(2):
            variables = Path(f"/proc/{worker}/environ").read_bytes()
            self.assertNotIn(b"NOTIFY_SOCKET", variables)
            self.assertNotIn(b"WATCHDOG", variables)
        os.kill(server.pid, signal.SIGTERM)
        stopping = manager.until("STOPPING")[-1]
        self.assertEqual(stopping["STOPPING"], "1")
        self.assertEqual(stopping["EXTEND_TIMEOUT_USEC"], "37000000")
        self.assertEqual(server.end(), 0, server.err.rest())

    def test_a_short_restart_does_not_look_like_a_start(self):
        manager = self.manager(str(self.folder / "notify"))
        server = self.serve(DEMO, "-tp", 1)
        manager.until("READY")
        server.wait_ready()
        harness.kill_and_wait(server.workers(1))
        wait_until(lambda: "the ranks run again" in server.err.text(), "the restart", server.err.text)
        os.kill(server.pid, signal.SIGTERM)
        for message in manager.until("STOPPING")[:-1]:
            # A restart takes long only on a very busy machine.
            self.assertIn(message["STATUS"], ("the ranks are being started again", "ready"))
        self.assertEqual(server.end(), 0, server.err.rest())

    def test_a_restart_that_outlasts_the_order_to_stop(self):
        manager = self.manager(str(self.folder / "notify"))
        # The rank of the second start stops itself while it loads.
        self.environment(SHOAL_TEST_FAULT=",0:load:stop")
        server = self.serve(DEMO, "-tp", 1, "--shutdown-grace", 5 * harness.GUARD)
        manager.until("READY")
        server.wait_ready()
        harness.kill_and_wait(server.workers(1))
        rank = harness.stopped_rank(server.pid)
        while (message := manager.next()) != {"STATUS": "the ranks are being started again"}:
            self.assertNotIn("STOPPING", message)
        os.kill(server.pid, signal.SIGTERM)
        manager.until("STOPPING")
        wait_until(lambda: "health is red" in server.err.text(), "the time of grace")
        self.assertEqual(complete(server, prompt="a", max_tokens=1).status, 503)
        os.kill(rank, signal.SIGCONT)
        wait_until(lambda: complete(server, prompt="a", max_tokens=1).status == 200,
                   "requests are taken again", server.err.text)
        self.stop(server)
        manager.socket.setblocking(False)
        with self.assertRaises(BlockingIOError):
            while True:
                self.assertNotEqual(manager.next().get("STATUS"), "ready", "it stops")

    def test_an_abstract_socket_and_the_watchdog_of_another_process(self):
        manager = self.manager(f"@shoal-{uuid.uuid4().hex}", WATCHDOG_USEC="30000",
                               WATCHDOG_PID="1")
        server = self.serve(DEMO)
        manager.until("READY")
        server.wait_ready()
        time.sleep(0.3)
        os.kill(server.pid, signal.SIGTERM)
        self.assertEqual(list(manager.next()), ["STOPPING", "STATUS", "EXTEND_TIMEOUT_USEC"])
        self.assertEqual(server.end(), 0, server.err.rest())

    def test_a_watchdog_that_hears_nothing_of_a_stopped_server(self):
        manager = self.manager(str(self.folder / "notify"), WATCHDOG_USEC="300000")
        server = self.serve(DEMO)
        manager.until("WATCHDOG")
        os.kill(server.pid, signal.SIGSTOP)
        wait_until(lambda: harness.stands_still(server.pid), "a server that stands still")
        manager.socket.settimeout(0.5)
        with self.assertRaises(TimeoutError):
            while True:
                manager.next()
        os.kill(server.pid, signal.SIGCONT)
        manager.socket.settimeout(harness.GUARD)
        manager.until("WATCHDOG")
        self.stop(server)

    def test_a_manager_that_does_not_read(self):
        manager = self.manager(str(self.folder / "notify"))
        flood = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(flood.close)
        flood.setblocking(False)
        with self.assertRaises(BlockingIOError):
            while True:
                flood.sendto(b"X=1", manager.address)
        server = self.serve(DEMO)
        server.wait_ready()
        wait_until(lambda: "the service manager cannot be told" in server.err.text(),
                   "the warning", server.err.text)
        self.stop(server)

    def test_no_manager_under_that_name(self):
        for address in (str(self.folder / "nobody"), "vsock:2:1234", "@" + 200 * "x"):
            self.environment(NOTIFY_SOCKET=address)
            error = harness.run("serve", "no-model", code=harness.NO_MODEL).stderr.decode()
            self.assertRegex(error, "the service manager cannot be told|is no socket of this host")


if __name__ == "__main__":
    harness.main()
