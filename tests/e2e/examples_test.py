"""The examples must run as they are written, and every grpcurl line must fit the descriptors and
get an answer.

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
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(harness.SKIPPED)

EXAMPLES = harness.ROOT / "examples"
PROTO = harness.ROOT / "proto"
SHMTEST = EXAMPLES / "shmtest-ci"
# Every server offers this service. Its .proto belongs to gRPC, so the two messages are written out
# here.
HEALTH = ("grpc.health.v1.Health/Check", {"service"})


def code_block(path: Path) -> str:
    """The only ```sh block of a page, without the indentation of a list."""
    (block,) = re.findall(r"^( *)```sh\n(.*?)^ *```", path.read_text(), re.MULTILINE | re.DOTALL)
    return "".join(line.removeprefix(block[0]) for line in block[1].splitlines(keepends=True))


def descriptors() -> descriptor_pool.DescriptorPool:
    """The descriptors of every .proto file that servers use."""
    with tempfile.NamedTemporaryFile() as file:
        names = [str(path.relative_to(PROTO)) for path in PROTO.glob("*/v1/*.proto")]
        subprocess.run(["protoc", f"-I{PROTO}", "--include_imports",
                        f"--descriptor_set_out={file.name}", *names], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(Path(file.name).read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    for description in files:
        pool.Add(description)
    return pool


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
    @classmethod
    def setUpClass(cls):
        cls.pool = descriptors()
        cls.lines = [shlex.split(line) for line in code_block(EXAMPLES / "grpcurl.md").splitlines()
                     if line and not line.startswith("#")]

    def calls(self):
        """(method, JSON text) of every line that calls a method.

        The other lines are list and describe.
        """
        for words in self.lines:
            self.assertEqual(words[:2], ["grpcurl", "-plaintext"], words)
            data, rest = (words[3], words[4:]) if words[2] == "-d" else ("{}", words[2:])
            self.assertEqual(rest[0], "127.0.0.1:50051", words)
            if rest[1] == "describe":
                self.pool.FindServiceByName(rest[2])
            elif rest[1] != "list":
                self.assertEqual(len(rest), 2, words)
                yield rest[1], data

    def test_methods_and_fields_are_those_of_the_descriptors(self):
        methods = set()
        for method, data in self.calls():
            methods.add(method)
            if method == HEALTH[0]:
                continue
            service, _, name = method.partition("/")
            description = self.pool.FindServiceByName(service).methods_by_name[name]
            json_format.Parse(data, self.message(description.input_type))
        self.assertLessEqual(
            {"openengine.v1.Inference/Generate", "openengine.v1.Control/GetServerInfo",
             "openengine.v1.Control/GetLoad", "shoal.v1.Transport/GetReport", HEALTH[0]}, methods)
        # The parser must refuse a field that does not exist.
        request = self.pool.FindMessageTypeByName("openengine.v1.GenerateRequest")
        with self.assertRaises(json_format.ParseError):
            json_format.Parse('{"prompts": "x"}', self.message(request))

    def message(self, description):
        return message_factory.MessageFactory(self.pool).GetPrototype(description)()

    def test_a_server_answers_every_line(self):
        server = self.serve(harness.DEMO)
        address = server.wait_ready()["grpc"]
        with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            for method, data in self.calls():
                request, answer_type = self.request(method, data)
                # Send and receive raw bytes. A call with a single answer can be read as a stream of
                # one.
                answers = list(channel.unary_stream(f"/{method}")(
                    request, timeout=5 * harness.GUARD))
                self.assertGreaterEqual(len(answers), 1, method)
                if answer_type is None:
                    self.assertEqual(answers, [b"\x08\x01"], "SERVING")
                    continue
                answer = self.message(answer_type)
                answer.ParseFromString(answers[-1])
                if method.endswith("/Generate"):
                    self.assertEqual(answer.WhichOneof("event"), "finished", data)

    def request(self, method: str, data: str):
        """The bytes of the request, and the descriptor of the answer."""
        if method == HEALTH[0]:
            fields = json_format.json.loads(data)
            self.assertLessEqual(set(fields), HEALTH[1])
            name = fields["service"].encode()
            return b"\x0a" + bytes([len(name)]) + name, None
        service, _, name = method.partition("/")
        description = self.pool.FindServiceByName(service).methods_by_name[name]
        message = json_format.Parse(data, self.message(description.input_type))
        return message.SerializeToString(), description.output_type


class ShmtestStep(harness.TestCase):
    def step(self) -> list[str]:
        """The words of the command that the workflow runs."""
        (line,) = re.findall(r"^ +- run: (sudo shoal shmtest .*)$",
                             (SHMTEST / "workflow.yaml").read_text(), re.MULTILINE)
        return [harness.SHOAL if word == "shoal" else word
                for word in shlex.split(line.removeprefix("sudo "))]

    def run_step(self, words: list[str], folder: str) -> subprocess.CompletedProcess:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True,
                              env=harness.environment(), timeout=240)
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
