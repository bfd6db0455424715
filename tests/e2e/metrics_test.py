"""GET /metrics of the real server, read by the parser of Prometheus' own client for Python.

A rank of it is killed, and clients try to choose labels. promtool reads the text too if it is
installed. The exit code is 77 (skipped) if Python has no such parser.
"""
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import harness
from http_client import call, complete

sys.path.insert(0, str(harness.ROOT / "tests" / "server" / "metrics"))
import metrics_text_test

REQUEST = {"prompt": "In the beginning", "temperature": 0, "ignore_eos": True}


def values(text: str) -> dict[tuple, float]:
    """By the name of the sample and the values of its labels, without the model and the engine."""
    found = {}
    for family in metrics_text_test.families(text).values():
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items()
                      if name not in ("model_name", "engine")]
            found[(sample.name, *labels)] = sample.value
    return found


class Metrics(harness.TestCase):
    def scrape(self, server) -> str:
        answer = call(server, "GET", "/metrics")
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8")
        return answer.body.decode()

    def test_while_the_model_loads(self):
        # A rank stands still while it loads, and the socket is there before that.
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        with harness.planted("1:load:stop"):
            server = self.serve(harness.DEMO, "-tp", 2, "--uds", folder / "http", "--step-timeout",
                                5 * harness.GUARD)

        def get() -> str:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(folder / "http"))
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
                                   b"Connection: close\r\n\r\n")
                data = b""
                while block := connection.recv(1 << 16):
                    data += block
            head, _, body = data.partition(b"\r\n\r\n")
            self.assertTrue(head.startswith(b"HTTP/1.1 200 "), head)
            return body.decode()

        def listens() -> bool:
            # The name is there a moment before connections are taken.
            with socket.socket(socket.AF_UNIX) as connection:
                return connection.connect_ex(str(folder / "http")) == 0

        harness.wait_until(listens, "the socket")
        loading = get()
        self.assertEqual(server.out.text(), "", "the model is still loading")
        known = metrics_text_test.documented()
        self.assertEqual(set(metrics_text_test.families(loading)),
                         {name for name in known if known[name]["since"] == "start"})
        self.assertEqual(values(loading)["shoal_rank_up", "1"], 0)
        os.kill(harness.stopped_rank(server.pid), signal.SIGCONT)
        server.wait_ready()
        ready = get()
        self.assertEqual(set(metrics_text_test.families(ready)),
                         {name for name in known if known[name]["since"] != "event"}
                         | {"shoal_http_requests_total"})
        self.assertEqual(values(ready)["shoal_rank_up", "1"], 1)
        self.assertGreater(values(ready)["shoal_start_phase_seconds", "load"], 0)

    def test_a_killed_rank_and_what_clients_try(self):
        with harness.planted("1:step-20:stop"):
            server = self.serve(harness.DEMO, "-tp", 2, "--port", 0, "--threads-per-rank", 1,
                                "--step-timeout", 5 * harness.GUARD, "--served-model-name", 'a "b"')
        server.wait_ready()
        rank = server.workers(2)[1]
        answers = []
        streams = [threading.Thread(target=lambda: answers.append(
            complete(server, max_tokens=24, **REQUEST))) for _ in range(4)]

        def requests() -> float:
            now = values(self.scrape(server))
            return now["vllm:num_requests_running",] + now["vllm:num_requests_waiting",]
        with harness.stopped(rank):  # all four are there before the second step
            for stream in streams:
                stream.start()
            harness.wait_until(lambda: requests() == 4, "four requests")
        self.assertEqual(harness.stopped_rank(server.pid), rank)  # in the middle of their answers
        self.assertEqual(requests(), 4)
        os.kill(rank, signal.SIGKILL)
        for stream in streams:
            stream.join()
        self.assertEqual({answer.status for answer in answers}, {200})
        for path in ("/v1/models/x", "/v1/models/y", "/a", '/"} 1', "/metrics?x=1"):
            call(server, "GET", path.replace('"', "%22").replace(" ", "%20"))
        self.assertEqual(complete(server, model="unknown", **REQUEST).status, 404)
        text = self.scrape(server)
        found = values(text)
        self.assertEqual(found["shoal_restarts_total",], 1)
        self.assertEqual(found["shoal_recovered_requests_total",], 4)
        self.assertEqual(found["shoal_rank_up", "1"], 1)
        self.assertEqual(found["vllm:generation_tokens_total",], 4 * 24)
        self.assertEqual(found["vllm:request_success_total", "length"], 4)
        self.assertEqual(found["vllm:inter_token_latency_seconds_count",], 4 * 23)
        self.assertEqual(found["vllm:e2e_request_latency_seconds_count",], 4)
        self.assertEqual(found["vllm:num_requests_running",], 0)
        self.assertEqual(found["shoal_http_requests_total", "/v1/completions", "200"], 4)
        self.assertEqual(found["shoal_http_requests_total", "/v1/completions", "404"], 1)
        self.assertEqual({key[1] for key in found if key[0] == "shoal_http_requests_total"},
                         {"/v1/completions", "/v1/models/NAME", "/metrics", "other"})
        models = {sample.labels["model_name"]
                  for family in metrics_text_test.families(text).values()
                  for sample in family.samples if "model_name" in sample.labels}
        self.assertEqual(models, {'a "b"'})
        self.assertLess(abs(time.time() - found["process_start_time_seconds",]), 600)
        self.check_with_promtool(text)

    def check_with_promtool(self, text: str):
        if shutil.which("promtool") is None:
            return
        answer = subprocess.run(["promtool", "check", "metrics"], input=text, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        # 3: it can be read, and has names that are not to promtool's taste (vLLM's).
        self.assertIn(answer.returncode, (0, 3), answer.stdout)


if __name__ == "__main__":
    harness.main()
