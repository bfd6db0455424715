"""Every JSON document that docs/json.md lists, from good and from bad places, against its schema."""
import json
import os
import subprocess
import unittest

import grpc
import harness
import jsonschema
from doctor_test import doctor, inside, namespaces_work
from http_client import complete
from reflection_test import Reflector

SCHEMAS = harness.ROOT / "docs" / "schemas"


def negative_figures(value, name: str = "") -> list[tuple[str, float]]:
    """The figures below 0 in a document, each with the name of its field."""
    if isinstance(value, dict):
        return [one for key, inner in value.items() for one in negative_figures(inner, key)]
    if isinstance(value, list):
        return [one for inner in value for one in negative_figures(inner, name)]
    return [(name, value)] if isinstance(value, (int, float)) and value < 0 else []


def empty_texts(value, name: str = "") -> list[str]:
    """The names of the fields that hold an empty text, where null would say that there is none."""
    if isinstance(value, dict):
        return [one for key, inner in value.items() for one in empty_texts(inner, key)]
    if isinstance(value, list):
        return [one for inner in value for one in empty_texts(inner, name)]
    return [name] if value == "" else []


class Documents(harness.TestCase):
    def check(self, schema: str, text: str) -> dict:
        with open(SCHEMAS / f"{schema}.schema.json") as file:
            validator = jsonschema.Draft202012Validator(json.load(file))
        document = json.loads(text)
        errors = [f"{'/'.join(map(str, error.path))}: {error.message[:300]}"
                  for error in validator.iter_errors(document)]
        self.assertEqual(errors, [])
        self.assertEqual(set(negative_figures(document)) - {("rank", -1)}, set())
        self.assertEqual(set(empty_texts(document)) - {"command", "value"}, set())
        self.assertEqual(document["version"], harness.run("--version").stdout.decode().split()[1])
        return document

    def test_doctor_here(self):
        for flags in (("-tp", 1), ("-tp", 2), ("-tp", 3, "--clean-stale"),
                      ("--transport", "tcp"), ("--device", "cuda")):
            with self.subTest(flags=flags):
                process = harness.start("doctor", *flags, "--json")
                self.check("transport-report", process.communicate()[0])

    def test_doctor_of_no_model(self):
        process = harness.start("doctor", "/nosuch", "--json")
        report = self.check("transport-report", process.communicate()[0])
        self.assertEqual(process.returncode, harness.NO_MODEL)
        # What was not decided is null, and no figure that nobody has chosen.
        self.assertEqual([report[name] for name in ("headroom_bytes", "rung", "self_test", "shm_size")],
                         [None] * 4)

    @unittest.skipUnless(namespaces_work(), "this kernel forbids mount namespaces here")
    def test_doctor_in_small_places(self):
        for mount, flags, verdict in (
                ("size=1m", (), "as-good"), ("size=1m", ("--transport", "shm,tcp"), "slower"),
                ("size=1m", ("--transport", "shm"), "none"),
                ("size=1m", ("--min-transport", "shm"), "forbidden"),
                ("size=4k,nr_inodes=1", (), "as-good")):
            with self.subTest(mount=mount, flags=flags):
                fill = "umask 077; true > /dev/shm/nccl-AbCd01 || true; "
                done = inside(mount, fill + doctor(*flags, "--json", "--clean-stale") + " || true")
                report = self.check("transport-report", done.stdout)
                self.assertEqual(report["verdict"], verdict)

    def test_arithmetic_alone(self):
        self.check("needs", harness.run("doctor", "--needs", "--json").stdout)
        for version in ("2.12.12", "2.27.7", "2.32.3", "2.99"):
            process = harness.start("doctor", "--nccl-version", version, "-tp", 8, "--json")
            self.check("nccl-plan", process.communicate()[0])

    def test_a_running_server(self):
        server = harness.Server(harness.DEMO, "-tp", 2)
        self.addCleanup(server.kill)
        with grpc.insecure_channel(server.wait_ready()["grpc"]) as channel:
            report = Reflector(channel).call("shoal.v1.Transport/GetReport")[0][0]
            self.assertIsNone(self.check("transport-report", report.json)["waits"], "no steps yet")

    def test_a_running_server_says_who_makes_the_others_wait(self):
        with harness.planted("1:step-3:compute-2"):
            server = self.serve(harness.DEMO, "-tp", 2, "--threads-per-rank", 1, "--port", 0)
        fields = server.wait_ready()
        with grpc.insecure_channel(fields["grpc"]) as channel:
            reflector = Reflector(channel)

            def after_some_steps():
                self.assertEqual(complete(server, prompt="In", max_tokens=64, ignore_eos=True).status, 200)
                report = reflector.call("shoal.v1.Transport/GetReport")[0][0]
                return report if report.HasField("waits") else None
            report = harness.wait_until(after_some_steps, "ten steps that each rank has told of")
            info = reflector.call("openengine.v1.Control/GetServerInfo")[0][0]
        waits = self.check("transport-report", report.json)["waits"]
        self.assertEqual((waits["rank"], report.waits.rank), (1, 1))
        self.assertEqual((waits["share"], waits["of_rank"], waits["for_rank"]),
                         (report.waits.share, list(report.waits.of_rank), list(report.waits.for_rank)))
        self.assertEqual(waits["share"], waits["for_rank"][1])
        self.assertLess(waits["of_rank"][1], waits["of_rank"][0])
        sentence = r"^rank 1 makes the others wait \d+ % of the step$"
        for text in (waits["text"], report.waits.text, info.extra.fields["waits"].string_value):
            self.assertRegex(text, sentence)
        server.process.terminate()
        self.assertEqual(server.end(), 0)
        server.wait_logged("in the last minute of steps " + sentence[1:-1])

    @unittest.skipUnless(namespaces_work(), "this kernel forbids mount namespaces here")
    def test_shmtest(self):
        for flags in (("--matrix", "host,1m,missing"), ("--min-size",)):
            for command in ("true", "exit 3", "kill -BUS $$"):
                with self.subTest(flags=flags, command=command):
                    done = subprocess.run(
                        [harness.SHOAL, "shmtest", *flags, "--json", "--", "sh", "-c", command],
                        capture_output=True, text=True, timeout=2 * harness.GUARD, env=harness.environment())
                    self.check("shmtest", done.stdout)

    def test_no_field_may_be_left_out(self):
        def optional(schema):
            if isinstance(schema, list):
                return [one for inner in schema for one in optional(inner)]
            if not isinstance(schema, dict):
                return []
            left_out = set(schema.get("properties", {})) - set(schema.get("required", []))
            return [*left_out, *(one for inner in schema.values() for one in optional(inner))]
        for schema in SCHEMAS.iterdir():
            self.assertEqual(optional(json.loads(schema.read_text())), [], schema.name)

    def test_every_schema_is_in_the_docs(self):
        with open(harness.ROOT / "docs" / "json.md") as file:
            docs = file.read()
        for schema in SCHEMAS.iterdir():
            self.assertIn(f"(schemas/{schema.name})", docs)
        # `tp` and `dev_shm` say what they are by their names.
        plain = {"schema", "version", "tp", "dev_shm"}
        properties = [json.loads(schema.read_text())["properties"] for schema in SCHEMAS.iterdir()]
        properties += [one["conditions"]["items"]["properties"] for one in properties if "conditions" in one]
        for field in set().union(*properties) - plain:
            self.assertIn(f"`{field}`", docs)


if __name__ == "__main__":
    harness.main()
