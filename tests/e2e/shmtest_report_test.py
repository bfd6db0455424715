"""What shoal shmtest says of its conditions: the table, the JUnit file, and its warnings."""
import json
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import harness
from harness import SKIPPED
from shmtest_test import SOME_FAILED, namespaces, shmtest

NEVER_WORKED = ("the command exited with 0 in no condition, so that nothing shows that it works at all; add "
                "the control, --matrix host,...")


class Report(harness.TestCase):
    def test_junit_is_well_formed(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.xml"
            text = "printf 'a<b>&\"\\001\\377]]>'; test $SHOAL_SHMTEST_CONDITION = 1m"
            result = shmtest("--matrix", "4k,1m", "--junit", file, "--", "sh", "-c", text)
            self.assertEqual(result.returncode, SOME_FAILED)
            self.assertEqual(result.stderr.decode().splitlines()[-1],
                             f"shoal shmtest: wrote JUnit's XML: {file}")
            suite = ET.parse(file).getroot().find("testsuite")
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("2", "1"))
        cases = {case.get("name"): case for case in suite.iter("testcase")}
        self.assertIsNone(cases["1m"].find("failure"))
        self.assertEqual(cases["1m"].get("classname"), "shmtest.sh")
        self.assertIn("a<b>", cases["1m"].find("system-out").text)
        self.assertIn(cases["1m"].find("properties/property").attrib,
                      [{"name": "shm_peak_bytes", "value": peak} for peak in ("0", "unknown")])
        self.assertIn('a<b>&"\ufffd\ufffd]]>', cases["4k"].find("failure").text)

    def test_a_log_in_json_has_no_line_about_the_file(self):
        result = shmtest("--matrix", "1m", "--junit", "/dev/null", "--log-format", "json", "--", "true")
        self.assertEqual((result.returncode, b"wrote" in result.stderr), (0, False))

    def test_the_table(self):
        text = shmtest("--matrix", "4k,1m", "--", "sh", "-c",
                       "echo seen; test $SHOAL_SHMTEST_CONDITION = 1m").stdout.decode()
        self.assertIn("1 passed, 1 failed, 0 skipped", text)
        self.assertIn("--- 4k: exit code 1", text)
        self.assertIn("seen", text)

    def test_a_command_that_never_works_is_no_proof(self):
        """A wrong flag of the engine's fails everywhere."""
        words = ("--", "sh", "-c", "echo wrong flag; exit 64")
        for matrix in ("1m,64m", "1m"):
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "report.xml"
                never = shmtest("--matrix", matrix, "--junit", file, *words)
                suite = ET.parse(file).getroot().find("testsuite")
            self.assertEqual(never.returncode, SOME_FAILED)
            self.assertEqual(never.stderr.decode().splitlines()[-1], f"shoal: warning: {NEVER_WORKED}")
            self.assertEqual(suite.find("properties/property").attrib,
                             {"name": "warning", "value": NEVER_WORKED})
        never = shmtest("--matrix", "1m", "--json", "--log-format", "json", *words)
        self.assertTrue(json.loads(never.stdout)["never_worked"])
        line = json.loads(never.stderr.decode().splitlines()[-1])
        self.assertEqual((line["level"], line["message"]), ("WARNING", NEVER_WORKED))
        quiet = shmtest("--matrix", "1m", "--log-level", "error", *words)
        self.assertNotIn(NEVER_WORKED, quiet.stderr.decode())
        # The control shows it, and belongs to the matrix where errors are accepted.
        for flags in (("--matrix", "host,1m"), ("--matrix", "1m", "--accept", "error")):
            shown = shmtest(*flags, *words)
            self.assertEqual(shown.returncode, SOME_FAILED)
            self.assertIn("The control (host) failed", shown.stdout.decode())
            self.assertNotIn(NEVER_WORKED, shown.stderr.decode())
        works = shmtest("--matrix", "4k,1m", "--", "sh", "-c", "test $SHOAL_SHMTEST_CONDITION = 1m")
        self.assertEqual((works.returncode, b"warning" in works.stderr), (SOME_FAILED, False))


if __name__ == "__main__":
    if not namespaces():
        raise SystemExit(SKIPPED)
    harness.main()
