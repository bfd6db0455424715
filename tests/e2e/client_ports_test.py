"""What `shoal client` says if --server names a port that is not its server's, and that it waits
there no longer than --wait, and for an answer no longer than --timeout."""
import os
import signal
import socket

import harness
from harness import UNAVAILABLE
from ports import free_ports


class Ports(harness.TestCase):
    def refused(self, address: str, *flags) -> str:
        client = harness.start("client", "--server", address, *flags, stdin=-1)
        err = client.communicate(b'[{"role": "user", "content": "x"}]')[1].decode()
        self.assertEqual(client.returncode, UNAVAILABLE, err)
        self.assertEqual(err.count("\n"), 1, err)
        return err

    def test_it_says_what_is_wrong_with_a_port(self):
        server = self.serve(harness.DEMO)
        ready = server.wait_ready()
        grpc, http = ready["grpc"], ready["http"]
        said = self.refused(http, "--prompt", "x")
        self.assertIn(f"what answers at {http} does not speak gRPC: name the server's gRPC port", said)
        self.assertIn("(usually --server 127.0.0.1:50051), with https:// ", said)
        self.assertIn("if this is its HTTP port, ask it with --chat ", said)
        self.assertIn(f"what answers at https://{grpc} does not speak gRPC over TLS that is trusted",
                      self.refused("https://" + grpc, "--prompt", "x"))
        self.assertIn(f"what answers at {http} does not encrypt: leave out https://",
                      self.refused("https://" + http, "--messages", "-"))
        self.assertIn("the answer is not HTTP/1.1", self.refused(grpc, "--messages", "-"))
        server.process.terminate()
        self.assertEqual(server.end(), 0)

    def test_a_server_that_loads_its_model(self):
        ports = free_ports(2)
        grpc, http = (f"127.0.0.1:{port}" for port in ports)
        with harness.planted("0:load:stop"):
            server = self.serve(harness.DEMO, "--grpc-port", ports[0], "--port", ports[1],
                                "--step-timeout", 5 * harness.GUARD)
        rank = harness.stopped_rank(server.pid)
        self.assertRegex(self.refused(grpc, "--prompt", "x"),
                         rf"^shoal: error: {grpc}: the model is loading; try again soon; with "
                         r"--wait SECONDS the client waits for it\n$")
        self.assertRegex(self.refused(http, "--messages", "-"),
                         rf"^shoal: error: {http}: the model is loading; try again soon "
                         r"\(HTTP 503\); with --wait SECONDS the client waits for it\n$")
        # Who has waited needs no hint.
        self.assertRegex(self.refused(grpc, "--wait", 1, "--prompt", "x"), "try again soon\n$")
        os.kill(rank, signal.SIGCONT)
        server.wait_ready()
        server.process.terminate()
        self.assertEqual(server.end(), 0)

    def test_a_silent_port_is_no_server(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = "127.0.0.1:%d" % silent.getsockname()[1]
            self.refused(address, "--wait", 1, "--prompt", "x")
            said = self.refused(address, "--wait", 1, "--messages", "-")
            self.assertIn(f"no server answers at {address}: start one", said)
            self.assertIn("or give --server the address after http= in the READY line", said)

    def test_a_handshake_that_takes_too_long(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = "https://127.0.0.1:%d" % silent.getsockname()[1]
            # no deadline: nobody ever answers there.
            err = self.refused(address, "--timeout", 1, "--messages", "-")
            self.assertIn("the answer is not whole after the 1 s of --timeout; 0 bytes", err)

    def test_an_answer_that_takes_too_long(self):
        with harness.planted("0:step-30:stop"):
            server = self.serve(harness.DEMO, "-tp", 2, "--step-timeout", 3600)
            ready = server.wait_ready()
            first = server.client("--prompt", "x", "--max-tokens", 400, "--ignore-eos")
            rank = harness.stopped_rank(server.pid)
        # no deadline: a rank stands still, so that no answer becomes whole however long it takes.
        late = ("--timeout", 1, "--max-tokens", 400, "--ignore-eos")
        says = "the answer is not whole after the 1 s of --timeout; "
        self.assertRegex(self.refused(ready["grpc"], "--prompt", "x", *late),
                         rf"^shoal: error: {says}0 tokens of it came\n$")
        self.assertRegex(self.refused(ready["http"], "--messages", "-", *late),
                         rf"^shoal: error: {says}0 bytes of it came\n$")
        os.kill(rank, signal.SIGCONT)
        first.communicate()
        self.assertEqual(first.returncode, 0)
        server.process.terminate()
        self.assertEqual(server.end(), 0)


if __name__ == "__main__":
    harness.main()
