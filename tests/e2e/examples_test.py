"""The examples must run as they are written, and every grpcurl line must fit what the server's
reflection says and get an answer.

grpcurl itself is neither in Debian nor on PyPI. Its lines are read as it would read them: the
method by its full name, and the JSON by protobuf's own parser, which refuses fields that the
descriptors do not have.
"""
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ET
from pathlib import Path

import harness

try:
    import grpc
    from google.protobuf import json_format
    from reflection_test import Reflector
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(harness.SKIPPED)

EXAMPLES = harness.ROOT / "examples"
PROTO = harness.ROOT / "proto"
SHMTEST = EXAMPLES / "shmtest-ci"


def code_block(path: Path) -> str:
    """The only ```sh block of a page, without the indentation of a list."""
    (block,) = re.findall(r"^( *)```sh\n(.*?)^ *```", path.read_text(), re.MULTILINE | re.DOTALL)
    return "".join(line.removeprefix(block[0]) for line in block[1].splitlines(keepends=True))


class Client(harness.TestCase):
    def test_it_streams(self):
        server = self.serve(harness.DEMO, "-tp", 2)
        address = server.wait_ready()["grpc"]
        with tempfile.TemporaryDirectory() as folder:
            # Run in a copy, because the lines make a folder next to proto/.
            for name in ("proto", "examples"):
                (Path(folder) / name).symlink_to(harness.ROOT / name)
            lines = code_block(EXAMPLES / "README.md").replace("cd proto &&", f"cd {PROTO} &&")
            lines = (lines.replace("../stubs", f"{folder}/stubs")
                     .replace("python3 ", f"{sys.executable} "))
            self.assertIn("127.0.0.1:50051", lines)
            out = subprocess.run(["bash", "-euc", lines.replace("127.0.0.1:50051", address)],
                                 cwd=folder, capture_output=True, text=True,
                                 env={**harness.environment(), "no_proxy": "*"})
            self.assertEqual(out.returncode, 0, out.stderr)
            self.assertGreater(len(out.stdout), 100)
            self.assertTrue(out.stdout.endswith("\n(60 tokens, FINISH_REASON_LENGTH)\n"),
                            out.stdout)
            refused = subprocess.run([sys.executable, EXAMPLES / "client.py", address,
                                      "word " * 2000], capture_output=True, text=True,
                                     env={**harness.environment(), "PYTHONPATH": f"{folder}/stubs",
                                          "no_proxy": "*"})
            self.assertEqual(refused.returncode, 1)
            self.assertRegex(refused.stderr, r"^INVALID_ARGUMENT: .+\n$")

    def test_it_is_short(self):
        self.assertLessEqual(len((EXAMPLES / "client.py").read_text().splitlines()), 20)


class Grpcurl(harness.TestCase):
    """The lines are read as grpcurl reads them, with nothing but what the server says of itself."""

    def setUp(self):
        super().setUp()
        channel = grpc.insecure_channel(self.serve(harness.DEMO).wait_ready()["grpc"],
                                        options=[("grpc.enable_http_proxy", 0)])
        self.addCleanup(channel.close)
        self.server = Reflector(channel)

    def run_line(self, words: list[str]) -> str | None:
        """Asks what the line asks. Returns the method, unless it is a question about services."""
        self.assertEqual(words[:2], ["grpcurl", "-plaintext"], words)
        data, rest = (words[3], words[4:]) if words[2] == "-d" else ("{}", words[2:])
        self.assertEqual(rest[0], "127.0.0.1:50051", words)
        if rest[1] == "list":
            self.assertIn("openengine.v1.Inference", self.server.services())
        elif rest[1] == "describe":
            self.assertEqual(self.server.service(rest[2]).full_name, rest[2])
        else:
            self.assertEqual(len(rest), 2, words)
            answers, code = self.server.call(rest[1], data)
            self.assertEqual(code, grpc.StatusCode.OK, words)
            if rest[1].endswith("/Generate"):
                self.assertEqual(answers[-1].WhichOneof("event"), "finished", words)
            elif rest[1] == "grpc.health.v1.Health/Check":
                self.assertEqual(str(answers[0]), "status: SERVING\n", words)
            return rest[1]
        return None

    def test_a_server_answers_every_line(self):
        lines = [shlex.split(line) for line in code_block(EXAMPLES / "grpcurl.md").splitlines()
                 if line and not line.startswith("#")]
        methods = set(map(self.run_line, lines))
        self.assertLessEqual(
            {"openengine.v1.Inference/Generate", "openengine.v1.Control/GetServerInfo",
             "openengine.v1.Control/GetLoad", "shoal.v1.Transport/GetReport",
             "grpc.health.v1.Health/Check"}, methods)
        # A field that does not exist must be refused, or the lines above would prove nothing.
        with self.assertRaises(json_format.ParseError):
            self.server.call("openengine.v1.Inference/Generate", '{"prompts": "x"}')


class ShmtestStep(harness.TestCase):
    def step(self) -> list[str]:
        """The words of the command that the workflow runs."""
        (line,) = re.findall(r"^ +- run: (sudo shoal shmtest .*)$",
                             (SHMTEST / "workflow.yaml").read_text(), re.MULTILINE)
        return [harness.SHOAL if word == "shoal" else word
                for word in shlex.split(line.removeprefix("sudo "))]

    def run_step(self, words: list[str], folder: str) -> subprocess.CompletedProcess:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True,
                              env=harness.environment(), timeout=4 * harness.GUARD)
        if done.returncode == harness.UNAVAILABLE:
            raise unittest.SkipTest("no namespaces here")
        return done

    def test_it_passes_and_would_fail(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "exchange_test.py"
            script.write_text((SHMTEST / script.name).read_text())
            good = self.run_step(self.step(), folder)
            self.assertEqual(good.returncode, 0, good.stdout + good.stderr)
            cases = ET.parse(Path(folder) / "shm.xml").getroot().findall(".//testcase")
            self.assertGreaterEqual(len(cases), 8)
            # Without the reservation the same program dies of SIGBUS if memory is short, and the
            # step must report it.
            careless = script.read_text().replace("os.posix_fallocate(file.fileno(), 0, BYTES)",
                                                  "os.ftruncate(file.fileno(), BYTES)")
            self.assertNotEqual(careless, script.read_text())
            script.write_text(careless)
            bad = self.run_step(self.step(), folder)
            self.assertEqual(bad.returncode, 1, bad.stdout + bad.stderr)
            failed = {case.get("name")
                      for case in ET.parse(Path(folder) / "shm.xml").iterfind(".//testcase")
                      if case.find("failure") is not None}
            self.assertIn("4k", failed)


if __name__ == "__main__":
    harness.main()
