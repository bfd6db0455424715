"""The files of keys and certificates: what is refused, and how they change under a running server."""
import json
import os
import re
import signal
import socket
import ssl
import tempfile
from pathlib import Path

import certificates
import denied
import harness
from http_client import Raw, address_of, call, request_bytes
from http_test import PROMPT
from tls_case import LONG, Case


class Rotation(Case):
    """Certificates and keys are replaced while the server runs."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.next = self.authority.issue("next")
        self.files = self.pair.copy_to(self.folder, "tls")
        self.keys = self.folder / "keys"
        self.keys.write_text("old\nboth\n")

    def subjects(self, server) -> list[str]:
        """Whose certificate new connections get, on both ports."""
        found = []
        for front in ("http", "grpc"):
            with socket.create_connection(address_of(server, front), harness.GUARD) as plain:
                context = self.authority.context()
                context.set_alpn_protocols(["h2" if front == "grpc" else "http/1.1"])
                with context.wrap_socket(plain, server_hostname="localhost") as client:
                    found.append(dict(part[0] for part in client.getpeercert()["subject"])["commonName"])
        return found

    def reread(self, server, log: str, change):
        """Changes files and sends SIGHUP to all of the server's processes, as a terminal that closes
        does. The server may look by itself in between."""
        before = len(re.findall(log, server.err.text()))
        change()
        os.killpg(server.pid, signal.SIGHUP)
        server.wait_logged(log, before + 1)

    def test_under_streams(self):
        server = self.start("--api-key-file", self.keys, pair=self.files)
        old = {"Authorization": "Bearer old"}
        expected = call(server, "POST", "/v1/completions", LONG, old).json()["choices"][0]["text"]
        streams = [Raw(server, request_bytes({**LONG, "stream": True}, "/v1/completions", "1.1",
                                             "Authorization: Bearer old")) for _ in range(4)]
        client = server.client("--prompt", PROMPT, "--max-tokens", 400, "--temperature", 0,
                               "--ignore-eos", "--api-key", "old", "--ssl-ca-certs",
                               self.authority.certificate)
        printed = harness.Reader(client.stdout)
        harness.wait_until(printed.text, "the client's first token")
        for raw in streams:
            raw.until(b"data: ")
        self.keys.write_text("new\nboth\n")
        self.reread(server, "certificates have changed and are used",
                    lambda: self.next.copy_to(self.folder, "tls"))
        # A look that began before may have seen the certificates, and the keys too early.
        server.wait_logged("the API keys have changed and are used")
        self.assertEqual(self.subjects(server), ["next", "next"])
        for key, status in (("old", 401), ("new", 200), ("both", 200)):
            answer = call(server, "GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
            self.assertEqual(answer.status, status, key)
        for raw in streams:
            body = raw.until(b"[DONE]\n\n")
            events = re.findall(rb"data: (\{.*\})", body)
            text = "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])
            self.assertEqual(text, expected)
            # The connection lives on, and a revoked key is refused on it.
            raw.data = b""
            raw.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer old\r\n\r\n")
            self.assertIn(b"401", raw.until(b"invalid_api_key"))
            raw.socket.close()
        self.assertEqual(client.wait(), 0)
        self.assertEqual(printed.rest().rstrip("\n"), expected.rstrip("\n"))
        self.assertEqual(len(server.workers(1)), 1)
        self.stop(server)

    def test_bad_files(self):
        """The old pair and the old keys stay, and each bad change is named once."""
        server = self.start("--api-key-file", self.keys, pair=self.files)
        bad = "the certificates have changed and cannot be used"
        for what, change in (
                ("not that of the first certificate",
                 lambda: self.files.key.write_bytes(self.next.key.read_bytes())),
                ("there is no certificate", lambda: self.files.certificate.write_text("hello")),
                ("is damaged", lambda: self.files.certificate.write_bytes(
                    self.next.certificate.read_bytes()[:300])),
                ("cannot be read", self.files.certificate.unlink)):
            with self.subTest(what):
                self.reread(server, bad, change)
                self.assertIn(what, server.err.text())
                self.assertEqual(self.subjects(server), ["server", "server"])
        warnings = server.err.text().count(bad)
        os.kill(server.pid, signal.SIGHUP)  # nothing has changed since
        self.reread(server, "the API keys have changed and cannot be used",
                    lambda: self.keys.write_text("# nobody\n"))
        self.assertEqual(server.err.text().count(bad), warnings)
        self.assertEqual(call(server, "GET", "/v1/models",
                              headers={"Authorization": "Bearer old"}).status, 200)
        self.reread(server, "certificates have changed and are used",
                    lambda: self.next.copy_to(self.folder, "tls"))
        self.assertEqual(self.subjects(server), ["next", "next"])
        self.assertNotIn("old", re.sub("those from before|old pair", "", server.err.text()))
        self.stop(server)

    def test_without_a_signal(self):
        """As Kubernetes does it: a symbolic link leads to another folder. Meanwhile a half handshake
        with gRPC ends, because it may take as long."""
        for name, pair in (("one", self.pair), ("two", self.next)):
            (self.folder / name).mkdir()
            pair.copy_to(self.folder / name, "tls")
        (self.folder / "data").symlink_to("one")
        server = self.start(pair=certificates.Pair(self.folder / "data/tls.pem",
                                                   self.folder / "data/tls.key"))
        half = self.bare(socket.create_connection(address_of(server, "grpc"), harness.GUARD))
        half.send(b"\x16")
        (self.folder / "later").symlink_to("two")
        (self.folder / "later").rename(self.folder / "data")
        harness.wait_until(lambda: self.subjects(server) == ["next", "next"],
                           "the next certificate")
        self.assertEqual(half.rest(), b"")
        half.socket.close()
        self.stop(server)

    def test_sighup_without_files(self):
        server = self.serve(harness.DEMO, "-tp", 2)
        server.wait_ready()
        ranks = server.workers(2)
        for _ in range(3):
            os.killpg(server.pid, signal.SIGHUP)
        self.assertEqual(call(server, "POST", "/v1/completions", {**LONG, "max_tokens": 4}).status, 200)
        self.assertEqual(server.workers(2), ranks, server.err.text())
        self.stop(server)


class Files(Case):
    """What cannot be used is named before the model is loaded."""

    def refused(self, *flags, **popen) -> str:
        server = harness.start("serve", harness.DEMO, "--grpc-port", 0, *flags, **popen)
        err = server.communicate()[1].decode()
        self.assertEqual(server.returncode, harness.USAGE, err)
        self.assertNotIn("transport", err)
        return err

    def test_bad_files(self):
        pair, other = self.pair, self.authority.issue("other")
        folder = self.authority.folder
        encrypted, empty = folder / "encrypted.key", folder / "empty"
        certificates.openssl("pkey", "-in", pair.key, "-aes256", "-passout", "pass:word", "-out", encrypted)
        empty.write_text("")
        for certificate, key, flag, what in (
                ("/nowhere", pair.key, "--ssl-certfile", "cannot be read"),
                (pair.certificate, "/nowhere", "--ssl-keyfile", "cannot be read"),
                (empty, pair.key, "--ssl-certfile", "no certificate"),
                (pair.key, pair.key, "--ssl-certfile", "no certificate"),
                (pair.certificate, empty, "--ssl-keyfile", "no private key"),
                (pair.certificate, encrypted, "--ssl-keyfile", "is encrypted"),
                (pair.certificate, other.key, "--ssl-keyfile", "is not that of")):
            with self.subTest(what):
                err = self.refused("--ssl-certfile", certificate, "--ssl-keyfile", key)
                name = certificate if flag == "--ssl-certfile" else key
                self.assertIn(f"{flag} {name}", err)
                self.assertIn(what, err)
                self.assertNotIn("PRIVATE", err)

    def test_flags(self):
        certificate = ("--ssl-certfile", self.pair.certificate, "--ssl-keyfile", self.pair.key)
        for flags, what in (
                (("--ssl-keyfile", self.pair.key), "needs --ssl-certfile"),
                (("--ssl-ca-certs", self.authority.certificate), "needs --ssl-certfile"),
                ((*certificate, "--ssl-cert-reqs", 2), "needs --ssl-ca-certs"),
                ((*certificate, "--ssl-ca-certs", self.authority.certificate), "checks nobody"),
                ((*certificate, "--ssl-cert-reqs", 3), "optional"),
                ((*certificate, "--ssl-cert-reqs", "required", "--ssl-ca-certs", "/dev/null"),
                 "--ssl-ca-certs /dev/null")):
            with self.subTest(flags):
                self.assertIn(what, self.refused(*flags))

    def test_no_permission(self):
        self.skip_unless_reached_by(65534)
        self.pair.key.chmod(0o600)
        self.authority.folder.chmod(0o755)
        err = self.refused(*self.pair.serve_flags(),
                           preexec_fn=denied.limit(denied.resource.RLIMIT_CORE, 0, uid=65534))
        self.assertRegex(err, "--ssl-keyfile .* cannot be read[^$]*Permission denied")

    def test_expired_and_one_file(self):
        """An expired certificate is a warning. A key may be in the file of its certificate."""
        expired = self.authority.issue("expired", days=-1)
        whole = self.authority.folder / "whole.pem"
        whole.write_bytes(expired.key.read_bytes() + expired.certificate.read_bytes())
        server = self.serve(harness.DEMO, "-tp", 1, "--ssl-certfile", whole)
        server.wait_ready()
        server.wait_logged("WARN.*--ssl-certfile .*whole.pem: the certificate has expired")
        with self.assertRaisesRegex(ssl.SSLError, "certificate has expired"):
            server.tls = self.authority.context()
            call(server, "GET", "/health")
        self.stop(server)

    def test_the_warning_of_an_open_server(self):
        for flags, warned in (((), True), (("--api-key", "k"), False), (self.pair.serve_flags(), False)):
            server = self.serve(harness.DEMO, "-tp", 1, "--host", "0.0.0.0", *flags)
            server.wait_ready()
            self.stop(server)
            self.assertEqual("neither a key" in server.err.rest(), warned, flags)


if __name__ == "__main__":
    harness.main()
