"""TLS on both ports, with real certificates and clients of other makes: tls_test.py [PART].

How calls over HTTP end is tested by http_ends_test.py, which can speak TLS too.
"""
import contextlib
import json
import os
import re
import socket
import ssl
import struct
import subprocess
import warnings

import certificates
import harness
import http_client
from http_client import Raw, address_of, call, request_bytes
from http_test import PROMPT
from tls_case import LONG, Case, grpc

if grpc:
    import grpc_names

KEY = {"Authorization": "Bearer key"}


def routes() -> list[tuple[str, str, bool]]:
    """(method, path, needs a key) of every route: docs/http.md has them, and a test compares them
    with the program's."""
    text = (harness.ROOT / "docs/http.md").read_text()
    table = text[text.index("<!-- routes: begin"):text.index("<!-- routes: end")]
    rows = re.findall(r"^\| (\w+)[^|]*\| `([^`]+)` \| (yes|no) \|$", table, re.MULTILINE)
    assert len(rows) >= 10, table
    return [(method, path.replace("NAME", "demo"), key == "yes") for method, path, key in rows]


class Wire(Case):
    """What works over an encrypted connection, and which connections are refused."""

    def test_clients(self):
        server = self.start()
        self.assertEqual(server.fields["tls"], "1")
        body = json.dumps({**LONG, "max_tokens": 8})
        expected = call(server, "POST", "/v1/completions", json.loads(body)).json()["choices"]
        for flags in ((), ("--tlsv1.2", "--tls-max", "1.2"), ("--http1.0",), ("--http2",), ("--no-alpn",)):
            with self.subTest(curl=flags):
                answer = self.curl(server, "/v1/completions", *flags, "--json", body)
                self.assertEqual(json.loads(answer)["choices"], expected)
        stream = self.curl(server, "/v1/completions", "--http1.0", "--json",
                           json.dumps({**json.loads(body), "stream": True}))
        parsed = http_client.Stream.parse(stream)
        self.assertEqual((parsed.text(), parsed.done), (expected[0]["text"], True))
        server.tls.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        with Raw(server, b"GET /health HTTP/1.0\r\n\r\n") as raw:
            self.assertEqual(raw.socket.selected_alpn_protocol(), "http/1.1")
            raw.socket.suppress_ragged_eofs = False  # the end must be said, not only happen
            self.assertIn(b"200 OK", raw.rest())
        if grpc:
            name = "/grpc.health.v1.Health/Check"
            check = self.channel(server).unary_unary(name)
            self.assertEqual(check(b"", timeout=harness.GUARD), b"\x08\x01")
        self.stop(server)

    def test_the_own_client(self):
        server = self.start("--api-key", "key")
        ask = ("--prompt", PROMPT, "--max-tokens", 4, "--api-key", "key", "--json")
        ca = ("--ssl-ca-certs", self.authority.certificate)
        out, err = server.client(*ask, *ca).communicate()
        self.assertIn(b"token_ids", out, err)
        secure = harness.start("client", "--server", f"https://{server.fields['grpc']}", *ask, *ca)
        self.assertEqual(secure.communicate()[0][:20], out[:20])
        for flags, code in ((("--ssl-ca-certs", "/nowhere"), harness.USAGE), ((), harness.UNAVAILABLE),
                            (("--ssl-ca-certs", self.other().certificate), harness.UNAVAILABLE)):
            client = server.client(*ask, *flags)
            err = client.communicate()[1]
            self.assertEqual(client.returncode, code, err)
        self.stop(server)

    def test_the_own_clients_chats(self):
        own = self.authority.issue("client")
        server = self.start("--api-key", "key", "--ssl-ca-certs", self.authority.certificate,
                            "--ssl-cert-reqs", "required")
        messages = self.authority.folder / "messages.json"
        messages.write_text('[{"role": "user", "content": "In the beginning"}]')
        url = f"https://{server.fields['http']}"
        shown = ("--ssl-certfile", own.certificate, "--ssl-keyfile", own.key)
        trusted = ("--ssl-ca-certs", self.authority.certificate)

        def ask(server_name, *flags):
            client = harness.start("client", "--server", server_name, "--messages", messages,
                                   "--max-tokens", 4, "--temperature", 0, "--api-key", "key", *flags)
            out, err = client.communicate()
            return client.returncode, out, err.decode()
        code, out, err = ask(url, *trusted, *shown)
        self.assertEqual(code, 0, err)
        self.assertGreater(len(out.strip()), 3)
        named = url.replace("127.0.0.1", "localhost")
        self.assertEqual(ask(named, *trusted, *shown)[:2], (0, out), "by its name too")
        self.assertEqual(ask(server.fields["http"], *trusted, *shown)[:2], (0, out))
        for name, flags, code, said in (
                (url, shown, harness.UNAVAILABLE, "--ssl-ca-certs"),
                (url, ("--ssl-ca-certs", self.other().certificate, *shown), harness.UNAVAILABLE,
                 "not trusted"),
                (url, trusted, harness.UNAVAILABLE, "certificate required"),
                (url, (*trusted, "--ssl-certfile", own.key), harness.USAGE, "--ssl-certfile"),
                (url, ("--ssl-ca-certs", "/nowhere"), harness.USAGE, "/nowhere"),
                (url.replace("https", "http"), trusted, harness.USAGE, "http://"),
                (url.replace("https", "http"), (), harness.USAGE, "https://")):
            got, out, err = ask(name, *flags)
            self.assertEqual((got, out), (code, b""), (name, flags, err))
            self.assertIn(said, err, (name, flags))
        self.stop(server)

    def other(self) -> certificates.Authority:
        made = certificates.Authority("other")
        self.addCleanup(made.temporary.cleanup)
        return made

    def test_who_does_not_speak_tls(self):
        server = self.start("--log-level", "debug", "--header-timeout", "2")
        plain = self.serve(harness.DEMO, "-tp", 1)
        plain.wait_ready()
        for data in (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET"):
            with socket.create_connection(address_of(server), harness.GUARD) as client:
                client.sendall(data)
                answer = self.bare(client).rest()
                self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
                self.assertIn(b"https://", answer)
        with socket.create_connection(address_of(server, "grpc"), harness.GUARD) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertEqual(self.bare(client).rest(), b"")
        with socket.create_connection(address_of(server), harness.GUARD) as client:
            client.sendall(b"\x16\x03\x01\xff\xff" + os.urandom(300))  # it begins as TLS
            self.bare(client).rest()
        for front in ("http", "grpc"):
            with socket.create_connection(address_of(plain, front), harness.GUARD) as client, \
                    self.assertRaises((ssl.SSLError, ConnectionError)):
                self.authority.context().wrap_socket(client, server_hostname="localhost")
        for one in (server, plain):
            self.assertEqual(call(one, "GET", "/health").status, 200)
        server.wait_logged("does not speak TLS")
        for one in (server, plain):
            self.stop(one)
            # But for a container, that one needs --host to be reached from outside.
            self.assertNotRegex(one.err.rest(), r"(?m)^\S+ (WARN|ERROR)(?!.*; --host 0\.0\.0\.0)")

    def test_old_protocols(self):
        """No TLS below 1.2, no renegotiation, and no protocol but HTTP/1 on the HTTP port."""
        server = self.start()
        warnings.simplefilter("ignore", DeprecationWarning)  # that is the point
        old = self.authority.context()
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        http2 = self.authority.context()
        http2.set_alpn_protocols(["h2"])
        for context, front in ((old, "http"), (old, "grpc"), (http2, "http")):
            with socket.create_connection(address_of(server, front), harness.GUARD) as client, \
                    self.assertRaises((ssl.SSLError, ConnectionError)):
                context.wrap_socket(client, server_hostname="localhost")
        again = subprocess.run(["openssl", "s_client", "-tls1_2", "-connect", server.fields["http"]],
                               input=b"R\n", capture_output=True, timeout=harness.GUARD,
                               check=False)
        self.assertIn(b"no renegotiation", again.stderr)
        self.stop(server)

    def test_half_handshakes(self):
        """Hundreds of them cost nobody else anything, and they are closed in time."""
        server = self.start("--max-http-connections", 100, "--header-timeout", 2)
        with Raw(server, request_bytes({**LONG, "stream": True})) as stream:
            stream.until(b"data: ")
            hello = self.client_hello()
            half = []
            for i in range(300):
                half.append(socket.create_connection(address_of(server), harness.GUARD))
                with contextlib.suppress(ConnectionError):  # it had to make room for the next
                    half[-1].sendall((b"", hello[:1], hello[:100], hello)[i % 4])
            for _ in range(100):
                half.append(socket.create_connection(address_of(server, "grpc"), harness.GUARD))
                half[-1].sendall(hello[:50])
            self.assertEqual(call(server, "GET", "/health").status, 200)
            if grpc:
                name = "/grpc.health.v1.Health/Check"
                check = self.channel(server).unary_unary(name)
                self.assertEqual(check(b"", timeout=harness.GUARD), b"\x08\x01")
            self.assertIn(b"[DONE]", stream.until(b"[DONE]"))
        for one in half[:300]:
            with contextlib.suppress(ConnectionResetError):
                while one.recv(1 << 16):
                    pass
        for one in half:
            one.close()
        self.stop(server)

    def client_hello(self) -> bytes:
        out = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.authority.context().wrap_bio(ssl.MemoryBIO(), out,
                                              server_hostname="localhost").do_handshake()
        return out.read()

    def test_leaving(self):
        """A client that leaves ends its call at once, however it leaves."""
        server = self.start("--kv-cache-memory", "16m")
        for way in ("close_notify", "fin", "rst"):
            for i in range(10):
                raw = Raw(server, request_bytes({**LONG, "stream": i % 2 == 0}))
                if i % 4 == 0:
                    raw.until(b"data: ")
                if way == "rst":
                    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if way == "close_notify":
                    raw.socket.settimeout(0.001)
                    with contextlib.suppress(OSError):
                        raw.socket.unwrap()
                else:
                    raw.socket.close()
                    raw.socket.close()
        # The whole cache is free, so that nothing of them runs.
        answer = call(server, "POST", "/v1/completions",
                      {"prompt": "a", "max_tokens": 500, "ignore_eos": True})
        self.assertEqual(answer.json()["usage"]["completion_tokens"], 500)
        self.stop(server)


class Keys(Case):
    """Client certificates and API keys, on every route and every RPC that there is."""

    def setUp(self):
        super().setUp()
        self.client = self.authority.issue("client")
        self.stranger = certificates.Authority("stranger")
        self.addCleanup(self.stranger.temporary.cleanup)
        self.mtls = ("--ssl-ca-certs", self.authority.certificate, "--ssl-cert-reqs")

    def no_connection(self, server, pair=None):
        server.tls = self.authority.context(pair)
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            # In TLS 1.3 a client hears of a refusal when it reads.
            call(server, "GET", "/health")

    def test_routes(self):
        server = self.start(*self.mtls, "required", "--api-key", "key", "--health-port", 0)
        self.no_connection(server)
        self.no_connection(server, self.stranger.issue("client"))
        server.tls = self.authority.context(self.client)
        for method, path, needs_key in routes():
            with self.subTest(path=path):
                for headers, allowed in (({}, not needs_key), (KEY, True),
                                         ({"Authorization": "Bearer no"}, not needs_key)):
                    status = call(server, method, path, {} if method == "POST" else None, headers).status
                    self.assertEqual(status != 401, allowed, (headers, status))
        self.assertEqual(json.loads(self.curl(
            server, "/v1/models", "--cert", self.client.certificate, "--key", self.client.key,
            "-H", "Authorization: Bearer key"))["object"], "list")
        self.check_health_port(server)
        self.stop(server)

    def check_health_port(self, server):
        """It serves probes to anyone, and nothing else to anybody."""
        server.fields["http"], server.tls = server.fields["health"], None
        for method, path, _ in routes():
            status = 200 if path in ("/health", "/health/live", "/metrics") else 404
            for headers in ({}, KEY):
                answer = call(server, method, path, {} if method == "POST" else None, headers)
                self.assertEqual(answer.status, status, path)
                if status == 404:
                    self.assertIn("health port", answer.error["message"])
        self.assertNotIn("transport", call(server, "GET", "/health").json())
        self.assertIn("transport", call(server, "GET", "/health", headers=KEY).json())

    def test_rpcs(self):
        open_server = self.start(*self.mtls, 2, client=self.client)
        names = grpc_names.methods(self.channel(open_server, self.client)) if grpc else {}
        self.channel(open_server)  # skips the test without grpc
        self.stop(open_server)
        self.assertIn("/openengine.v1.Inference/Generate", names)
        server = self.start(*self.mtls, 2, "--api-key", "key", client=self.client)
        for name, streams in names.items():
            if "reflection" in name:
                continue
            with self.subTest(name):
                for channel in (self.channel(server), self.channel(server, self.stranger.issue("c"))):
                    self.assertEqual(grpc_names.invoke(channel, name, streams),
                                     grpc.StatusCode.UNAVAILABLE)
                channel = self.channel(server, self.client)
                code = grpc_names.invoke(channel, name, streams)
                self.assertEqual(code not in (grpc.StatusCode.UNAUTHENTICATED,
                                              grpc.StatusCode.UNIMPLEMENTED),
                                 self.is_health(name), code)
                code = grpc_names.invoke(channel, name, streams, [("authorization", "Bearer key")])
                self.assertNotIn(code, (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE))
        self.stop(server)

    @staticmethod
    def is_health(name: str) -> bool:
        """Only what tells health works without a key."""
        return "Health" in name or name.rsplit("/", 1)[1] in ("ServerLive", "ServerReady", "ModelReady")

    def test_optional(self):
        server = self.start(*self.mtls, "optional")
        for pair in (None, self.client):
            server.tls = self.authority.context(pair)
            self.assertEqual(call(server, "GET", "/health").status, 200)
            self.assertTrue(self.channel(server, pair).unary_unary("/grpc.health.v1.Health/Check")(
                b"", timeout=harness.GUARD))
        self.no_connection(server, self.stranger.issue("client"))
        self.stop(server)


if __name__ == "__main__":
    harness.main()
