"""The HTTP front as any client sees it: requests that are right, wrong, malformed and unfinished.

Usage: http_test.py [Wire|Api|Access]. Sockets are real, and so are the server and its ranks.
"""
import json
import os
import signal
import socket

import harness
import http_client
from http_client import Raw, ServerCase, Stream, address_of, call, complete, request_bytes

PROMPT = "In the beginning"
GREEDY = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True}
LONG = {**GREEDY, "max_tokens": 400}


# Requests that no server may take, and the status each gets; 0: the connection is closed without an
# answer. A body that is announced twice, or in two ways, lets one server see another request in it
# than the next one.
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MALFORMED = [
    ("no HTTP at all", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ("no version", b"GET /health\r\n\r\n", 400),
    ("an unknown version", b"GET /health HTTP/3.7\r\nHost: localhost\r\n\r\n", 400),
    ("no Host", b"GET /health HTTP/1.1\r\n\r\n", 400),
    ("two Hosts", b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
    ("two lengths", HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
    ("a length and chunks",
     HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
    ("a length with a sign", HEAD + b"Content-Length: +2\r\n\r\n{}", 400),
    ("a negative length", HEAD + b"Content-Length: -1\r\n\r\n{}", 400),
    ("a length of 99 digits", HEAD + b"Content-Length: " + b"9" * 99 + b"\r\n\r\n{}", 400),
    ("a length beyond the limit", HEAD + b"Content-Length: 99999999\r\n\r\n", 413),
    ("a negative chunk", HEAD + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n", 400),
    ("a chunk of 99 digits",
     HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 99 + b"\r\n{}\r\n0\r\n\r\n", 400),
    ("an unknown transfer coding", HEAD + b"Transfer-Encoding: gzip\r\n\r\nGET /version HTTP/1.1", 400),
    ("two transfer codings", HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    ("a coding that means nothing", HEAD + b"Transfer-Encoding: identity\r\n\r\n{}", 400),
    ("chunks in HTTP/1.0", b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     400),
    ("an endless chunk extension", HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 200_000,
     400),
    ("a header without a colon", b"GET /health HTTP/1.1\r\nHost: localhost\r\nnothing\r\n\r\n", 400),
    ("a blank before the colon", b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
    ("a NUL in a header", b"GET /health HTTP/1.1\r\nHost: local\0host\r\n\r\n", 400),
    ("a head of 20 KB", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000, 431),
    ("a compressed body", HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b", 415),
    ("a body that is no JSON", HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\n{]",
     400),
    ("a body of another type", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
     b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415),
    ("a method that the path has not", b"DELETE /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
     405),
    ("no method that exists", b"FROB /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
    ("a path that does not exist", b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
]


class Wire(ServerCase):
    """The bytes of HTTP."""

    def test_malformed_requests(self):
        for what, data, status in MALFORMED:
            with self.subTest(what), Raw(self.server, data) as raw:
                self.assertEqual(raw.status(), status, raw.data)
                # The answer is one object of JSON, whatever the request was.
                head, _, body = raw.rest().partition(b"\r\n\r\n")
                self.assertEqual(len(body), int(head.split(b"Content-Length: ")[1].split()[0]))
                self.assertIn("message", json.loads(body)["error"])
        self.check_alive()
        self.stop()

    def check_alive(self):
        self.assertEqual(call(self.server, "GET", "/health").status, 200)
        self.assertEqual(complete(self.server, prompt="a", max_tokens=1).status, 200)

    def test_forms_of_requests_and_answers(self):
        whole = complete(self.server, **GREEDY, max_tokens=5).json()["choices"][0]["text"]
        body = json.dumps({**GREEDY, "max_tokens": 5}).encode()
        with self.subTest("HTTP/1.0, as nginx speaks it"), Raw(
                self.server, request_bytes({**GREEDY, "max_tokens": 5, "stream": True}, version="1.0")) as raw:
            head, _, rest = raw.rest().partition(b"\r\n\r\n")
            self.assertNotIn(b"chunked", head)
            self.assertEqual(Stream.parse(rest).text(), whole)
            self.assertTrue(Stream.parse(rest).done)
        with self.subTest("a body in chunks, byte by byte"), Raw(
                self.server, HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n") as raw:
            for byte in body:
                raw.send(b"1\r\n%c\r\n" % byte)
            raw.send(b"0\r\n\r\n")
            self.assertEqual(json.loads(raw.rest().partition(b"\r\n\r\n")[2])["choices"][0]["text"],
                             whole)
        with self.subTest("Expect: 100-continue"), Raw(self.server, HEAD + (
                f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        ).encode()) as raw:
            self.assertEqual(raw.until(b"\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n")
            raw.data = b""
            raw.send(body)
            self.assertIn(whole, json.loads(raw.rest().partition(b"\r\n\r\n")[2])["choices"][0]["text"])
        with self.subTest("HEAD"), Raw(
                self.server, b"HEAD /health HTTP/1.1\r\nHost: a.localhost\r\nConnection: close\r\n\r\n"
        ) as raw:
            head, _, rest = raw.rest().partition(b"\r\n\r\n")
            self.assertTrue(head.startswith(b"HTTP/1.1 200 OK"), head)
            self.assertEqual(rest, b"")
            self.assertNotIn(b"Content-Length: 0", head)
        with self.subTest("three requests at once"), Raw(
                self.server, b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2 +
                b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") as raw:
            self.assertEqual(raw.rest().count(b"HTTP/1.1 200 OK"), 3)
        with self.subTest("one byte at a time"), Raw(self.server) as raw:
            for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n":
                raw.send(bytes([byte]))
            self.assertEqual(raw.status(), 200)
        self.stop()

    def test_a_unix_socket(self):
        path = f"/tmp/shoal-{os.getpid()}.sock"
        server = self.serve(harness.DEMO, "-tp", 1, "--uds", path)
        self.assertEqual(server.wait_ready()["http"], "unix:" + path)
        with socket.socket(socket.AF_UNIX) as plain:
            plain.connect(path)
            client = server.tls.wrap_socket(plain, server_hostname="localhost") if server.tls else plain
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            self.assertIn(b"200 OK", client.recv(4096))
        os.kill(server.pid, signal.SIGTERM)
        self.assertEqual(server.end(), 0)
        self.assertFalse(os.path.exists(path))
        self.stop()

    def test_ports(self):
        port = address_of(self.server)[1]
        busy = harness.run("serve", harness.DEMO, "--grpc-port", 0, "--port", port,
                           code=harness.UNAVAILABLE)
        self.assertRegex(busy.stderr.decode(), rf"{port}: the port is in use.*another --port")
        none = self.serve(harness.DEMO, "-tp", 1, "--port", -1)
        self.assertNotIn("http", none.wait_ready())
        os.kill(none.pid, signal.SIGTERM)
        self.assertEqual(none.end(), 0)
        six = self.serve(harness.DEMO, "-tp", 1, "--host", "::1")
        self.assertTrue(six.wait_ready()["http"].startswith("[::1]:"))
        self.assertEqual(call(six, "GET", "/health").status, 200)
        os.kill(six.pid, signal.SIGTERM)
        self.assertEqual(six.end(), 0)
        self.stop()


class Api(ServerCase):
    """OpenAI's routes."""

    FLAGS = ("--served-model-name", "demo,org/other", "--sse-keep-alive-interval", "0.3")

    def test_completions(self):
        expected = json.loads(harness.run(
            "generate", harness.DEMO, "--prompt", PROMPT, "--max-tokens", 12, "--seed", 7,
            "--logprobs", 3, "--temperature", "0.8", "--json").stdout)
        fields = {"prompt": PROMPT, "max_tokens": 12, "seed": 7, "temperature": 0.8, "logprobs": 3,
                  "return_token_ids": True}
        whole = complete(self.server, **fields, model="org/other").json()
        choice = whole["choices"][0]
        self.assertEqual(whole["model"], "org/other")
        self.assertEqual(choice["token_ids"], expected["token_ids"])
        self.assertEqual(choice["prompt_token_ids"], expected["prompt_token_ids"])
        self.assertEqual(choice["text"], expected["text"])
        self.assertEqual(choice["logprobs"]["token_logprobs"],
                         [token["logprob"] for token in expected["logprobs"]])
        self.assertEqual(whole["usage"]["completion_tokens"], 12)
        self.assertTrue(whole["system_fingerprint"])
        for offset, text in zip(choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]):
            self.assertEqual(choice["text"][offset:offset + len(text)], text)
        stream = Stream.parse(complete(self.server, **fields, stream=True,
                                       stream_options={"include_usage": True}).body)
        self.assertTrue(stream.done)
        self.assertEqual(stream.text(), expected["text"])
        self.assertEqual(stream.ids(), expected["token_ids"])
        self.assertEqual(stream.finish(), [expected["finish_reason"]])
        self.assertEqual(stream.events[-1]["usage"], whole["usage"])
        self.check_prompts(expected)
        self.check_stops()
        self.stop()

    def check_prompts(self, expected: dict):
        """Each form of a prompt gives the same answer."""
        ids = expected["prompt_token_ids"]
        fields = {"max_tokens": 12, "seed": 7, "temperature": 0.8}
        for prompt, choices in ((ids, 1), ([PROMPT, PROMPT], 2), ([ids, ids, ids], 3)):
            answer = complete(self.server, prompt=prompt, **fields).json()
            self.assertEqual([(c["index"], c["text"]) for c in answer["choices"]],
                             [(i, expected["text"]) for i in range(choices)])
            self.assertEqual(answer["usage"]["prompt_tokens"], choices * len(ids))

    def check_stops(self):
        text = complete(self.server, **GREEDY, max_tokens=20).json()["choices"][0]["text"]
        stop = text[6:9]
        choice = complete(self.server, **GREEDY, max_tokens=20, stop=stop).json()["choices"][0]
        self.assertEqual(choice["text"], text[:text.index(stop)])
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", stop))

    def test_fields_and_errors(self):
        cases = [
            ({"prompt": "a", "n": 2}, 400, "n", "UNSUPPORTED_FIELD"),
            ({"prompt": "a", "echo": True}, 400, "echo", "UNSUPPORTED_FIELD"),
            ({"prompt": "a", "logit_bias": {"1": 3}}, 400, "logit_bias", "UNSUPPORTED_FIELD"),
            ({"prompt": "a", "temperature": "hot"}, 400, "temperature", "INVALID_REQUEST"),
            ({"prompt": "a", "temperature": -1}, 400, "temperature", "INVALID_REQUEST"),
            ({"prompt": "a", "stop": [1]}, 400, "stop", "INVALID_REQUEST"),
            ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "INVALID_REQUEST"),
            ({"prompt": "a", "stream_options": {}}, 400, "stream_options", "INVALID_REQUEST"),
            ({"prompt": []}, 400, "prompt", "INVALID_REQUEST"),
            ({"prompt": [[]]}, 400, "prompt", "INVALID_REQUEST"),
            ({"prompt": ["a", 1]}, 400, "prompt", "INVALID_REQUEST"),
            ({"prompt": [10**30]}, 400, "prompt", "INVALID_REQUEST"),
            ({"prompt": "a " * 600}, 400, "prompt", "context_length_exceeded"),
            ({"prompt": "a", "model": "gpt"}, 404, "model", "model_not_found"),
            ([], 400, None, "INVALID_REQUEST"),
            ({}, 400, "prompt", "INVALID_REQUEST"),
        ]
        for body, status, param, code in cases:
            with self.subTest(body=str(body)[:60]):
                answer = call(self.server, "POST", "/v1/completions", body)
                self.assertEqual(answer.status, status, answer.body)
                self.assertEqual((answer.error["param"], answer.error["code"]), (param, code))
        neutral = {"n": 1, "best_of": 1, "echo": False, "suffix": None, "logit_bias": {},
                   "user": "me", "response_format": {"type": "text"}, "guided_json": None}
        answer = complete(self.server, prompt="a", max_tokens=1, **neutral, zzz=1, **{"a\r\nb": 2})
        self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(answer.headers["x-shoal-ignored-fields"], "a__b, zzz")
        self.check_other_routes()
        self.stop()

    def check_other_routes(self):
        models = call(self.server, "GET", "/v1/models").json()["data"]
        self.assertEqual([(m["id"], m["max_model_len"]) for m in models],
                         [("demo", 512), ("org/other", 512)])
        self.assertEqual(call(self.server, "GET", "/v1/models/org%2Fother").json()["id"], "org/other")
        self.assertEqual(call(self.server, "GET", "/v1/models/x").error["code"], "model_not_found")
        tokens = call(self.server, "POST", "/tokenize", {"prompt": PROMPT}).json()
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        text = call(self.server, "POST", "/detokenize", {"tokens": tokens["tokens"][1:]}).json()
        self.assertEqual(text["prompt"], PROMPT)
        self.assertIn("version", call(self.server, "GET", "/version").json())

    def test_a_stream_shows_that_it_lives(self):
        """While the ranks are stopped nothing comes but comments, and the head with the first."""
        ranks = self.server.workers(2)
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP)
        with Raw(self.server, request_bytes({**GREEDY, "max_tokens": 4, "stream": True}, "/v1/completions",
                                            "1.1", "Connection: close")) as raw:
            head = raw.until(b": waiting\n\n")
            self.assertIn(b"text/event-stream", head)
            self.assertIn(b"X-Accel-Buffering: no", head)
            self.assertIn(b"Cache-Control: no-cache", head)
            for rank in ranks:
                os.kill(rank, signal.SIGCONT)
            self.assertIn(b"data: [DONE]", raw.rest())
        self.stop()

    def test_a_deadline(self):
        """What a proxy waits for no longer gets 504, or an error if the answer has begun."""
        ranks = self.server.workers(2)
        deadline = "x-envoy-expected-rq-timeout-ms: 500"
        for stream, mark in ((False, b"504 Gateway Timeout"), (True, b'"code":"DEADLINE_EXCEEDED"}}')):
            body = {**GREEDY, "max_tokens": 4, "stream": stream}
            for rank in ranks:
                os.kill(rank, signal.SIGSTOP)
            with Raw(self.server, request_bytes(body, "/v1/completions", "1.1", deadline)) as raw:
                self.assertIn(mark, raw.until(mark))
            for rank in ranks:
                os.kill(rank, signal.SIGCONT)
        self.assertEqual(complete(self.server, {deadline.split(":")[0]: "60000"}, prompt="a",
                                  max_tokens=1).status, 200)
        self.stop()

    def test_an_id_that_runs_is_refused(self):
        with Raw(self.server, request_bytes({**LONG, "stream": True, "request_id": "mine"})) as raw:
            raw.until(b"data: ")
            twice = complete(self.server, {"x-request-id": "x"}, prompt="a", max_tokens=1,
                             request_id="mine")
            self.assertEqual((twice.status, twice.error["code"]), (409, "DUPLICATE_REQUEST"))
            self.assertEqual(twice.headers["x-request-id"], "x")
            # The header alone is a name for logs, which a proxy may give to several calls.
            same = complete(self.server, {"x-request-id": "mine"}, prompt="a", max_tokens=1)
            self.assertEqual((same.status, same.headers["x-request-id"]), (200, "mine"))
            self.assertTrue(complete(self.server, prompt="a", max_tokens=1).headers["x-request-id"])
        self.stop()


class Access(ServerCase):
    """Keys, hosts and origins."""

    FLAGS = ("--api-key", "first", "--api-key", "second", "--allowed-origins", "https://good.example",
             "--allowed-hosts", "box.example")

    def test_keys(self):
        bearer = {"Authorization": "Bearer second"}
        for path in ("/v1/models", "/v1/models/demo", "/metrics", "/version", "/nothing"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "},
                            {"Authorization": "Basic second"}, {"Authorization": "second"}):
                answer = call(self.server, "GET", path, headers=headers)
                self.assertEqual((answer.status, answer.error["code"]), (401, "invalid_api_key"))
        for path in ("/v1/completions", "/tokenize", "/detokenize", "/v1/chat/completions"):
            self.assertEqual(call(self.server, "POST", path, {"prompt": "a"}).status, 401)
        self.assertEqual(call(self.server, "GET", "/v1/models", headers=bearer).status, 200)
        self.assertEqual(complete(self.server, bearer, prompt="a", max_tokens=1).status, 200)
        self.assertEqual(call(self.server, "GET", "/health/live").status, 200)
        self.assertNotIn("transport", call(self.server, "GET", "/health").json())
        self.assertIn("transport", call(self.server, "GET", "/health", headers=bearer).json())
        self.check_grpc()
        self.check_secrecy()
        self.stop()

    def check_grpc(self):
        """The same keys guard gRPC, through the program's own client and a stranger's health check."""
        for flags, error in (((), "needs an API key"), (("--api-key", "x"), "not valid"),
                             (("--api-key", "second"), "")):
            client = self.server.client("--prompt", "a", "--max-tokens", 1, *flags)
            text = client.communicate()[1].decode()
            self.assertTrue(error in text and (error or not client.returncode), text)

    def check_secrecy(self):
        """No key is in the log, or in the environment of a rank."""
        self.assertNotIn("second", self.server.err.text())
        for rank in self.server.workers(2):
            with open(f"/proc/{rank}/environ", "rb") as environ:
                self.assertNotIn(b"API_KEY", environ.read())

    def test_keys_from_elsewhere(self):
        path = f"/tmp/shoal-keys-{os.getpid()}"
        with open(path, "w") as file:
            file.write("# of the team\n\n  third \n")
        self.addCleanup(os.remove, path)
        os.environ["SHOAL_API_KEY"] = "fourth"
        try:
            server = self.serve(harness.DEMO, "-tp", 1, "--api-key-file", path)
        finally:
            del os.environ["SHOAL_API_KEY"]
        server.wait_ready()
        for key, status in (("third", 200), ("fourth", 200), ("first", 401), ("", 401)):
            answer = call(server, "GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
            self.assertEqual(answer.status, status, key)
        for rank in server.workers(1):
            with open(f"/proc/{rank}/environ", "rb") as environ:
                self.assertNotIn(b"fourth", environ.read())
        server.kill()
        bad = harness.run("serve", harness.DEMO, "--grpc-port", 0, "--api-key-file", "/dev/null",
                          code=harness.USAGE)
        self.assertIn(b"--api-key-file gives no keys", bad.stderr)
        self.stop()

    def test_origins_and_hosts(self):
        key = {"Authorization": "Bearer first"}
        for headers, status in (
                ({"Origin": "https://good.example"}, 200), ({"Origin": "https://evil.example"}, 403),
                ({"Origin": "null"}, 403), ({"Host": "box.example:8000"}, 200),
                ({"Host": "localhost"}, 200), ({"Host": "127.1.2.3:9"}, 200), ({"Host": "[::1]:80"}, 200),
                ({"Host": "evil.example"}, 403), ({"Host": "127.0.0.1.evil.example"}, 403),
                ({"Host": "localhost.evil.example"}, 403)):
            answer = call(self.server, "GET", "/v1/models", headers={**key, **headers})
            self.assertEqual(answer.status, status, headers)
            self.assertEqual(answer.headers.get("access-control-allow-origin"),
                             "https://good.example" if "good" in str(headers) else None)
        preflight = call(self.server, "OPTIONS", "/v1/completions", headers={
            "Origin": "https://good.example", "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type"})
        self.assertEqual(preflight.status, 204)
        self.assertIn("authorization", preflight.headers["access-control-allow-headers"])
        self.assertEqual(call(self.server, "OPTIONS", "/v1/completions",
                              headers={"Origin": "https://evil.example"}).status, 403)
        self.stop()


if __name__ == "__main__":
    http_client.main()
