"""Other projects' parsers read our metrics: Prometheus' client for Python, and promtool if it is
installed. usage: metrics_text_test.py PRINT_METRICS

PRINT_METRICS is the program of print_metrics.cc. What the parser finds is compared with
docs/metrics.md. The exit code is 77 (skipped) if Python has no such parser.
"""
import math
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    print("skipped: this Python has no parser (Debian: python3-prometheus-client)")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[3]
MODEL = 'a "model" \\ of\nmany'
PROGRAM = ""


def documented() -> dict[str, dict]:
    """By name, what docs/metrics.md says of each metric."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    block = text.split("<!-- metrics: begin -->\n")[1].split("<!-- metrics: end -->")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")]
            for row in block.strip().splitlines()[2:]]
    return {name.strip("`"): {"type": kind, "since": since,
                              "labels": [label for label in labels.split(", ") if label]}
            for name, kind, labels, since, _ in rows}


def printed(state: str) -> str:
    return subprocess.run([PROGRAM, state], check=True, stdout=subprocess.PIPE, text=True,
                          timeout=60).stdout


def families(text: str) -> dict:
    """By the name in the text. The parser takes the _total from the names of counters."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        assert name not in found, f"{name} is there twice"
        found[name] = family
    return found


class Text(unittest.TestCase):
    def check(self, text: str):
        """Types, labels and buckets are as they must be."""
        known = documented()
        for name, family in families(text).items():
            with self.subTest(name):
                self.assertEqual(family.type, known[name]["type"])
                self.assertTrue(family.documentation)
                series = set()
                for sample in family.samples:
                    labels = [label for label in sample.labels if label != "le"]
                    self.assertEqual(labels, known[name]["labels"])
                    self.assertTrue(math.isfinite(sample.value))
                    key = (sample.name, *sample.labels.items())
                    self.assertNotIn(key, series)
                    series.add(key)
                if family.type == "histogram":
                    self.check_buckets(family)

    def check_buckets(self, family):
        buckets = [(float(sample.labels["le"]), sample.value) for sample in family.samples
                   if sample.name.endswith("_bucket")]
        self.assertEqual(buckets, sorted(buckets))
        self.assertEqual(sorted(count for _, count in buckets), [count for _, count in buckets])
        [count] = [s.value for s in family.samples if s.name.endswith("_count")]
        self.assertEqual(buckets[-1], (math.inf, count))

    def test_while_the_model_loads(self):
        text = printed("loading")
        self.check(text)
        expected = {name for name, about in documented().items() if about["since"] == "start"}
        self.assertEqual(set(families(text)), expected)

    def test_after_some_requests(self):
        text = printed("serving")
        self.check(text)
        found = families(text)
        self.assertEqual(set(found), set(documented()))
        value = {(sample.name, sample.labels.get("finished_reason") or sample.labels.get("code")):
                 sample.value for family in found.values() for sample in family.samples
                 if "le" not in sample.labels}
        self.assertEqual(value["vllm:request_success_total", "stop"], 1)
        self.assertEqual(value["vllm:request_success_total", "length"], 1)
        self.assertEqual(value["vllm:request_success_total", "abort"], 0)
        self.assertEqual(value["vllm:prompt_tokens_total", None], 6)
        self.assertEqual(value["vllm:generation_tokens_total", None], 8)
        self.assertEqual(value["vllm:inter_token_latency_seconds_count", None], 6)
        self.assertEqual(value["shoal_http_requests_total", "200"], 2)
        self.assertEqual(value["shoal_http_requests_total", "404"], 1)
        self.assertEqual({sample.labels["route"] for sample in
                          found["shoal_http_requests_total"].samples},
                         {"/v1/completions", "other"})
        self.assertEqual({sample.labels["model_name"] for family in found.values()
                          for sample in family.samples if "model_name" in sample.labels}, {MODEL})

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool(self):
        for state in ("loading", "serving"):
            answer = subprocess.run(["promtool", "check", "metrics"], input=printed(state),
                                    text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            # 3: it could be read, and has names that are not to promtool's taste (vLLM's).
            self.assertIn(answer.returncode, (0, 3), answer.stdout)
            for line in answer.stdout.splitlines():
                self.assertTrue(line.startswith("vllm:"), line)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
