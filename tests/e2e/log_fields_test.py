"""The facts of log lines as JSON: those that docs/json.md lists, with the values that clients saw."""
import json
import os
import re
import signal
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import docs_test
import harness
import http_client
from http_client import Raw, ServerCase, call, complete, request_bytes

EVERY = {"time", "level", "process", "pid", "message"}
GREEDY = {"prompt": "In the beginning", "temperature": 0, "ignore_eos": True}


def documented() -> dict[str, set[str]]:
    """The fields of each event, as the document lists them."""
    rows = docs_test.table(docs_test.document("docs/json.md"), "log events")
    return {event.strip("`"): {name for part in fields.split("; ")
                               for name in re.findall(r"`(\w+)`", part.split(":")[0])}
            for event, _, fields in rows}


def in_sources() -> dict[str, set[str]]:
    """The fields of each event, as the lines of the program name them."""
    found: dict[str, set[str]] = {}
    for path in [*(harness.ROOT / "server").rglob("*.cc"), *(harness.ROOT / "runtime").rglob("*.cc")]:
        for rest in re.split(r'\{\{"event", ', path.read_text())[1:]:
            depth, end = 2, 0
            while depth > 0:
                depth += {"{": 1, "}": -1}.get(rest[end], 0)
                end += 1
            event = re.match(r'(?:"|cat\(front, ")(\w+)', rest)[1]
            names = set(re.findall(r'\{"(\w+)",', rest[:end]))
            event = event if not event.startswith("_") else "grpc" + event
            assert found.setdefault(event, names) == names, event
    return found


def distinct(members: list[tuple]) -> dict:
    """An object in which no name is twice."""
    names = [name for name, _ in members]
    assert len(set(names)) == len(names), members
    return dict(members)


class LogCase(ServerCase):
    FLAGS = ("--log-format", "json")

    def lines(self) -> list[dict]:
        """The whole lines so far. Each must be JSON."""
        return [json.loads(line, object_pairs_hook=distinct)
                for line in self.server.err.text().split("\n")[:-1]]

    def events(self, name: str, **members) -> list[dict]:
        wanted = {"event": name, **members}.items()
        return [line for line in self.lines() if wanted <= line.items()]

    def event(self, name: str, **members) -> dict:
        """Waits for a line of this event with these members, and returns the first."""
        return harness.wait_until(lambda: self.events(name, **members), f"{name} {members}",
                                  self.server.err.text)[0]

    def check_lines(self):
        """Every line has the members that the document says, and no other. An index of logs refuses a
        line in which a name has another type than before."""
        known, types = documented(), {}
        for line in self.lines():
            every = EVERY | ({"rank"} if line["process"] == "worker" else set())
            own = {"event", *known[line["event"]]} if "event" in line else set()
            self.assertEqual(set(line), every | own)
            for name, value in line.items():
                kind = float if type(value) is int else type(value)
                if value is not None:
                    self.assertEqual(types.setdefault(name, kind), kind, (name, line))

    def check_tokens(self, line: dict, usage: dict):
        for name in ("prompt_tokens", "completion_tokens"):
            self.assertEqual(line[name], usage[name], line)


class Requests(LogCase):
    def test_http(self):
        name = 'a "b" \\'  # what JSON has to escape
        data = request_bytes({**GREEDY, "max_tokens": 5}, "/v1/completions", "1.1",
                             f"x-request-id: {name}", "Connection: close")
        with Raw(self.server, data) as raw:
            whole = raw.rest()
        answer = json.loads(whole.partition(b"\r\n\r\n")[2])
        line = self.event("http_request", request_id=name)
        self.assertEqual((line["method"], line["route"], line["status"], line["answer_bytes"]),
                         ("POST", "/v1/completions", 200, len(whole)))
        self.assertEqual(line["finish"], answer["choices"][0]["finish_reason"])
        self.check_tokens(line, answer["usage"])
        self.assertLessEqual(0, line["queue_ms"])
        self.assertLess(0, min(line["first_token_ms"], line["took_ms"]))
        self.assertRegex(line["message"], rf"status 200, 4 \+ 5 tokens, {len(whole)} bytes, \d+ ms, ")

        several = complete(self.server, {"x-request-id": "several"}, **{**GREEDY, "prompt": ["In", "And"]})
        line = self.event("http_request", request_id="several")
        self.check_tokens(line, several.json()["usage"])
        self.assertEqual({choice["finish_reason"] for choice in several.json()["choices"]},
                         {line["finish"]})
        self.stop()
        self.check_lines()

    def test_http_refused(self):
        refused = complete(self.server, {"x-request-id": "refused"}, **GREEDY, max_tokens=-5)
        line = self.event("http_request", request_id="refused")
        self.assertEqual((refused.status, line["status"]), (400, 400))
        self.check_tokens(line, {"prompt_tokens": 0, "completion_tokens": 0})
        self.assertEqual([line[name] for name in ("finish", "queue_ms", "first_token_ms")], [None] * 3)
        self.assertEqual(call(self.server, "GET", "/v2").status, 404)
        line = self.event("http_request", status=404)
        self.assertEqual((line["method"], line["route"], line["path"], line["request_id"]),
                         ("GET", "unknown", "/v2", None))
        self.assertTrue(line["message"].startswith("http unknown path /v2: status 404, "), line)
        self.assertEqual(self.event("http_request", request_id="refused")["path"], None)
        self.assertEqual(call(self.server, "GET", "/" + 200 * "x" + "?secret").status, 404)
        self.event("http_request", path="/" + 127 * "x" + "...")
        for method, said in (("DELETE", "DELETE"), (16 * "P", 16 * "P"), (17 * "P", None), ("put", None)):
            self.assertEqual(call(self.server, method, f"/{method}").status, 404)
            self.assertEqual(self.event("http_request", path=f"/{method}")["method"], said)
        self.check_lines()

    def test_grpc(self):
        words = ("--prompt", "In", "--max-tokens", 3, "--json")
        answer = json.loads(self.server.client(*words).communicate()[0])
        line = self.event("grpc_request", request_id=answer["request_id"])
        self.assertEqual((line["method"], line["code"], line["finish"]),
                         ("Generate", "OK", answer["finish_reason"]))
        self.check_tokens(line, answer["usage"])
        self.assertLess(0, min(line["first_token_ms"], line["took_ms"]))

        self.server.client(*words, "--model", "another").communicate()
        line = self.event("grpc_request", code="NOT_FOUND")
        self.check_tokens(line, {"prompt_tokens": 0, "completion_tokens": 0})
        self.assertEqual((line["request_id"], line["finish"]), (None, None))
        self.check_lines()


class Start(LogCase):
    """/dev/shm is never as large as the headroom, so that the first transport is refused."""

    TRANSPORT = ("--transport", "shm,tcp", "--shm-headroom", "100TiB")
    FLAGS = (*LogCase.FLAGS, *TRANSPORT)

    def test_phases_and_transport(self):
        report = json.loads(harness.run("doctor", "-tp", 2, *self.TRANSPORT, "--json", code=1).stdout)
        [need] = [need for need in report["needs"] if need["rung"] == "tcp"]
        [refusal] = report["refusals"]
        self.event("transport_cost", transport=self.server.fields["transport"], first="shm",
                   verdict=report["verdict"], degraded=report["degraded"],
                   remedy=report["remedies"][0]["title"])
        self.event("transport_refused", transport="shm", phase=refusal["phase"],
                   code=refusal["code"], shm_short=True, next="tcp")
        [line] = self.events("transport")
        self.assertEqual((line["transport"], line["ranks"], line["verdict"], line["degraded"]),
                         ("tcp", 2, "slower", True))
        self.assertEqual((line["dev_shm_bytes"], line["memory_bytes"]),
                         (need["dev_shm_bytes"], need["memory_bytes"]))
        phases = self.events("start_phase")
        self.assertEqual([(line["phase"], line["transport"]) for line in phases],
                         [("probe", "tcp"), ("spawn", None), ("open", "tcp"), ("self-test", "tcp"),
                          ("load", None), ("touch", None), ("warm-up", "tcp")])
        for line in phases:
            seconds = float(re.search(r"took (\S+) s", line["message"])[1])
            self.assertAlmostEqual(seconds, line["took_ms"] / 1e3, delta=0.0006)
        [program] = self.events("serve")
        about = json.loads(harness.run("version", "--json").stdout)
        self.assertEqual((program["event"], program["version"], program["commit"] or "unknown",
                          program["model"]),
                         ("serve", about["version"], about["commit"], str(harness.DEMO)))
        self.assertTrue(program["message"].startswith(f"shoal {about['version']}"), program)
        self.assertTrue(program["message"].endswith(f", model {harness.DEMO}"), program)
        [memory] = self.events("memory")
        self.assertEqual(memory["ranks"], 2)
        self.assertIn(f"({memory['kv_blocks']} blocks of 16 tokens)", memory["message"])
        self.assertGreater(memory["available_bytes"], memory["weights_bytes"])
        self.stop()
        self.event("draining", requests=0, message="stopping: no request is running")
        self.event("stopped")
        self.check_lines()


class Ranks(LogCase):
    """In the third step rank 1 stops, until it is killed."""

    FLAGS = (*LogCase.FLAGS, "--step-timeout", 5 * harness.GUARD)

    def setUp(self):
        with harness.planted("1:step-3:stop"):
            super().setUp()

    def test_lost_and_back(self):
        client = self.server.client("--prompt", "In", "--max-tokens", 9, "--ignore-eos", "--json")
        harness.kill_and_wait([harness.stopped_rank(self.server.pid)])
        answer = json.loads(client.communicate()[0])
        line = self.event("ranks_recovered", transport=self.server.fields["transport"])
        seconds = float(re.search(r"after (\S+) s", line["message"])[1])
        self.assertAlmostEqual(seconds, line["took_ms"] / 1e3, delta=0.006)
        [line] = self.events("ranks_lost")
        self.assertEqual({name: line[name] for name in line.keys() - EVERY},
                         {"event": "ranks_lost", "lost_rank": 1, "fault": "outside",
                          "code": "ABORTED", "phase": "step", "step": 3, "signal": signal.SIGKILL,
                          "counts": True, "restarts": 1, "max_restarts": 3})
        self.check_tokens(self.event("grpc_request", request_id=answer["request_id"]), answer["usage"])
        self.check_lines()


class Ends(LogCase):
    """Rank 1 stops for good in the third step, so that a request is not over in time."""

    FLAGS = (*LogCase.FLAGS, "--step-timeout", 5 * harness.GUARD, "--shutdown-grace", 0.01,
             "--shutdown-timeout", 0.2)

    def setUp(self):
        with harness.planted("1:step-3:stop"):
            super().setUp()

    def test_a_shutdown_that_cancels(self):
        client = self.server.client("--prompt", "In", "--max-tokens", 9, "--ignore-eos",
                                    "--log-format", "json")
        harness.stopped_rank(self.server.pid)
        self.stop()
        self.event("stopping", grace_ms=10)
        self.event("draining", requests=1, limit_ms=200)
        self.event("drain_late", limit_ms=200)
        self.event("grpc_request", prompt_tokens=2, completion_tokens=2, finish="abort")
        self.assertEqual(self.event("draining")["message"],
                         "stopping: 1 request may finish within 0.2 s")
        self.assertEqual(self.event("stopped"), self.lines()[-1])
        self.check_lines()
        said = json.loads(client.communicate()[1], object_pairs_hook=distinct)
        self.assertEqual((said["event"], said["exit_code"], said["code"], said["fault"]),
                         ("error", client.returncode, None, None))


class Keys(LogCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "keys"
        self.path.write_text("one\n")
        self.FLAGS = (*LogCase.FLAGS, "--api-key-file", self.path)
        super().setUp()

    def change(self, text: str):
        """The whole file at once, because the server may look at any time."""
        new = self.path.with_name("new")
        new.write_text(text)
        new.replace(self.path)
        os.kill(self.server.pid, signal.SIGHUP)

    def test_keys_that_change(self):
        self.change("two\n")
        self.event("secrets_replaced", what="the API keys")
        self.change("# nobody\n")
        line = self.event("secrets_refused", what="the API keys")
        self.assertIn(f" stay: {line['code']}: ", line["message"])
        self.check_lines()


class Container(harness.TestCase):
    def test_a_server_that_nobody_outside_reaches_says_so(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        socket = Path(folder.name) / "socket"
        with unittest.mock.patch.dict(os.environ, KUBERNETES_SERVICE_HOST="10.96.0.1"):
            for flags, hosts in (((), ["127.0.0.1"]), (("--host", "0.0.0.0"), []),
                                 (("--uds", socket), [])):
                server = self.serve(harness.DEMO, "-tp", 1, "--log-format", "json", *flags)
                server.wait_ready()
                server.process.terminate()
                self.assertEqual(server.end(), 0, server.err.rest())
                said = [line for line in map(json.loads, server.err.rest().splitlines())
                        if line.get("event") == "loopback_only"]
                self.assertEqual([line["host"] for line in said], hosts, flags)
                for line in said:
                    self.assertEqual((line["level"], line["message"]), (
                        "WARNING", "only processes in this container's network can reach "
                                   "127.0.0.1; --host 0.0.0.0 lets others in"))


class Document(unittest.TestCase):
    def test_every_event_of_the_program_is_listed(self):
        self.assertEqual(documented(), in_sources())


class Errors(harness.TestCase):
    def test_a_server_that_does_not_start(self):
        process = harness.start("serve", "/nowhere", "--log-format", "json")
        line = json.loads(process.communicate()[1], object_pairs_hook=distinct)
        self.assertEqual(line.keys(), EVERY | {"event"} | documented()["error"])
        self.assertEqual((line["event"], line["exit_code"], line["code"], line["fault"]),
                         ("error", process.returncode, "NOT_FOUND", "own"))


if __name__ == "__main__":
    http_client.main()
