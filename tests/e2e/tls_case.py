"""Servers that speak TLS, with certificates that are made for the test, and clients for them."""
import os
import signal
import socket
import subprocess

import certificates
import harness
from http_client import Raw
from http_test import GREEDY

try:
    import grpc
except ImportError:  # the tests that need it are skipped
    grpc = None

LONG = {**GREEDY, "max_tokens": 400}


class Case(harness.TestCase):
    """Servers with a certificate of an authority that is made for the test."""

    authority: certificates.Authority

    @classmethod
    def setUpClass(cls):
        cls.authority = certificates.Authority()
        cls.pair = cls.authority.issue("server")

    def start(self, *flags, pair=None, client=None, **popen) -> harness.Server:
        server = self.serve(harness.DEMO, "-tp", 1, *(pair or self.pair).serve_flags(), *flags, **popen)
        server.tls = self.authority.context(client)
        server.wait_ready()
        return server

    def stop(self, server: harness.Server):
        os.kill(server.pid, signal.SIGTERM)
        self.assertEqual(server.end(), 0, server.err.rest())

    def channel(self, server: harness.Server, client=None):
        if grpc is None:
            self.skipTest("this Python has no grpc (Debian: python3-grpcio)")
        pair = (client.key.read_bytes(), client.certificate.read_bytes()) if client else (None, None)
        made = grpc.secure_channel(
            server.fields["grpc"],
            grpc.ssl_channel_credentials(self.authority.certificate.read_bytes(), *pair),
            [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(made.close)
        return made

    @staticmethod
    def bare(client: socket.socket) -> Raw:
        """A connection without TLS."""
        raw = Raw.__new__(Raw)
        raw.socket, raw.data = client, b""
        return raw

    def curl(self, server: harness.Server, path: str, *flags) -> bytes:
        done = subprocess.run(["curl", "-sS", "--max-time", "60", "--cacert", self.authority.certificate,
                               *flags, f"https://{server.fields['http']}{path}"],
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout
