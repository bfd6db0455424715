"""Programs that stand around a server, as they are: nginx in front of it, Prometheus beside it.

scripts/get-clients unpacks them into build/clients.
"""
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import certificates
import harness
from http_client import Stream, address_of, call
from http_test import GREEDY, PROMPT
from ports import free_ports

PROGRAMS = harness.ROOT / "build/clients/usr"
NGINX, PROMETHEUS, PROMTOOL = (PROGRAMS / name for name in ("sbin/nginx", "bin/prometheus",
                                                            "bin/promtool"))
# What an administrator writes, and files in a folder of the test.
NGINX_CONFIG = """
daemon off; master_process off; pid {folder}/pid; error_log stderr;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  proxy_connect_timeout 5s; proxy_send_timeout 5s; proxy_read_timeout 5s;
  upstream kept {{ server {plain}; keepalive 4; }}
  server {{ listen 127.0.0.1:{ports[0]}; location / {{ proxy_pass http://{plain}; }} }}
  server {{ listen 127.0.0.1:{ports[1]}; location / {{
    proxy_pass http://kept; proxy_http_version 1.1;
    proxy_set_header Connection ""; proxy_set_header Host $host; }} }}
  server {{ listen 127.0.0.1:{ports[2]}; location / {{
    proxy_pass https://{encrypted}; proxy_ssl_trusted_certificate {ca};
    proxy_ssl_verify on; proxy_ssl_name localhost; }} }}
}}
"""
PROMETHEUS_CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: shoal
    scheme: https
    tls_config: {{ca_file: {ca}}}
    authorization: {{credentials: key}}
    static_configs: [{{targets: ['{target}']}}]
"""


class Case(harness.TestCase):
    def setUp(self):
        super().setUp()
        if not NGINX.exists() or not PROMETHEUS.exists():
            self.skipTest("run scripts/get-clients first")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.authority = certificates.Authority()
        self.addCleanup(self.authority.temporary.cleanup)
        self.tls = self.authority.issue("server").serve_flags()

    def beside(self, program: Path, *flags) -> subprocess.Popen:
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen([program, *flags], env=harness.environment(), stderr=log,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

        def stop():
            process.kill()
            process.wait()
        self.addCleanup(stop)
        return process

    def log(self) -> str:
        return (self.folder / "log").read_text()


class Nginx(Case):
    """In front of two servers, with timeouts of 5 s."""

    def ask(self, port: int, came=lambda line: None, **fields):
        """(status, body) of a completion that is asked for through a port. came() gets each line of
        an answer when it comes."""
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions",
                                         json.dumps({**GREEDY, "max_tokens": 30, **fields}).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=harness.GUARD) as answer:
                body = b""
                for line in answer:
                    came(line)
                    body += line
                return answer.status, body
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def test_streams_and_whole_answers(self):
        flags = ("-tp", 2, "--sse-keep-alive-interval", 2, "--step-timeout", 5 * harness.GUARD)
        plain, encrypted = self.serve(harness.DEMO, *flags), self.serve(harness.DEMO, *flags, *self.tls)
        for server in (plain, encrypted):
            server.wait_ready()
        ports = free_ports(3)
        config = self.folder / "nginx.conf"
        config.write_text(NGINX_CONFIG.format(
            folder=self.folder, ports=ports, plain=plain.fields["http"],
            encrypted=encrypted.fields["http"], ca=self.authority.certificate))
        self.beside(NGINX, "-p", self.folder, "-e", "stderr", "-c", config)
        harness.wait_until(lambda: self.listens(ports[2]), "nginx")
        expected = call(plain, "POST", "/v1/completions", {**GREEDY, "max_tokens": 30}).json()
        for port in ports:
            for _ in range(3):
                status, body = self.ask(port)
                self.assertEqual((status, json.loads(body)["choices"]), (200, expected["choices"]))
        ranks = [rank for server in (plain, encrypted) for rank in server.workers(2)]
        answers = self.while_stopped(ranks, ports)
        for port in ports:
            status, body = answers[port, True]
            stream = Stream.parse(body)
            self.assertEqual((status, stream.text(), stream.done),
                             (200, expected["choices"][0]["text"], True), self.log())
            # Without signs of life nginx gives up, so that the time was long enough to tell.
            self.assertEqual(answers[port, False][0], 504)
        for server in (plain, encrypted):
            os.kill(server.pid, signal.SIGTERM)
            self.assertEqual(server.end(), 0)

    def while_stopped(self, ranks, ports) -> dict:
        """Answers to requests that come while the ranks do nothing for longer than nginx waits: until
        it has given up each whole answer, and each stream has shown two signs of life."""
        answers, signs = {}, dict.fromkeys(ports, 0)

        def ask(port, stream):
            def came(line: bytes):
                signs[port] += line.startswith(b":")
            answers[port, stream] = self.ask(port, came, stream=stream)
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP)
        threads = [threading.Thread(target=ask, args=(port, stream)) for port in ports
                   for stream in (True, False)]
        for thread in threads:
            thread.start()
        harness.wait_until(lambda: all((port, False) in answers and signs[port] >= 2
                                       for port in ports), "the end of the whole answers", self.log)
        for rank in ranks:
            os.kill(rank, signal.SIGCONT)
        for thread in threads:
            thread.join()
        return answers

    @staticmethod
    def listens(port: int) -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), harness.GUARD).close()
        except OSError:
            return False
        return True


class Prometheus(Case):
    def test_scraping_with_a_key_over_tls(self):
        server = self.serve(harness.DEMO, "-tp", 1, "--api-key", "key", *self.tls)
        server.wait_ready()
        server.tls = self.authority.context()
        key = {"Authorization": "Bearer key"}
        call(server, "POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 4}, key)
        text = call(server, "GET", "/metrics", headers=key).body
        checked = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True,
                                 check=False)
        self.assertNotIn(b"error while linting", checked.stderr + checked.stdout)
        config = self.folder / "prometheus.yml"
        config.write_text(PROMETHEUS_CONFIG.format(
            ca=self.authority.certificate, target=f"localhost:{address_of(server)[1]}"))
        subprocess.run([PROMTOOL, "check", "config", config], capture_output=True, check=True)
        port = free_ports(1)[0]
        self.beside(PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={self.folder}/data",
                    f"--web.listen-address=127.0.0.1:{port}")

        def value(query: str) -> float | None:
            url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
            try:
                with urllib.request.urlopen(url, timeout=harness.GUARD) as answer:
                    found = json.load(answer)["data"]["result"]
            except OSError:
                return None
            return float(found[0]["value"][1]) if found else None
        harness.wait_until(lambda: value("up") == 1, "a scrape")
        self.assertEqual(value("vllm:generation_tokens_total"), 4)
        self.assertIsNotNone(value("shoal_http_requests_total"), self.log())
        os.kill(server.pid, signal.SIGTERM)
        self.assertEqual(server.end(), 0)


if __name__ == "__main__":
    harness.main()
