"""shoal bench decode says whether it measured memory or caches, and what its fraction is."""
import json
import re

import harness


class BenchDecode(harness.TestCase):
    def number_of(self, text: str) -> float:
        """"283 MB/s" as a number."""
        self.assertRegex(text, r"^(\d\.\d\d|\d\d\.\d|\d{3,}) ")
        number, unit = text.split()
        return float(number) * 1000 ** " kMGTP".index(unit[0] if unit[0] in "kMGTP" else " ")

    def test_it_says_that_a_model_fits_into_the_caches(self):
        words = ("bench", "decode", harness.DEMO, "--tokens", 8)
        report = json.loads(harness.run(*words, "--json").stdout)
        text = harness.run(*words).stdout
        fits = report["weight_bytes"] <= report["cache_bytes"]
        self.assertEqual("fit into the processor's caches" in str(text), fits, (report, text))

    def test_the_fraction_is_the_quotient_of_the_two_rates(self):
        report = json.loads(harness.run("bench", "decode", harness.DEMO, "--tokens", 48,
                                        "--json").stdout)
        self.assertAlmostEqual(report["fraction"],
                               report["bytes_per_s"] / report["read_bandwidth_bytes_per_s"], 3)

    def test_the_spread_and_the_load_are_beside_the_fraction(self):
        words = ("bench", "decode", harness.DEMO, "--tokens", 24)
        report = json.loads(harness.run(*words, "--json").stdout)
        self.assertLessEqual(report["fraction_least"], report["fraction"])
        self.assertLessEqual(report["fraction"], report["fraction_most"])
        self.assertGreater(report["fraction_least"], 0)
        self.assertGreaterEqual(report["load_average"], 0)
        self.assertRegex(report["read_loop"], "^(plain|prefetching) loads, (huge pages if granted|small pages)$")

        text = harness.run(*words).stdout.decode()
        # Three digits and a prefix, and no power of ten.
        found = re.search(r"read at (\S+ [kMGT]?B/s), where this machine reads (\S+ [kMGT]?B/s) "
                          r"\((?:plain|prefetching) loads, (?:huge|small) pages(?: if granted)?\):\s+"
                          r"fraction ([\d.]+) \(([\d.]+) to ([\d.]+)\)", text)
        self.assertIsNotNone(found, text)
        rate, machine = map(self.number_of, found.groups()[:2])
        fraction, least, most = map(float, found.groups()[2:])
        self.assertAlmostEqual(fraction, rate / machine, msg=text, delta=0.001 + 0.011 * fraction)
        self.assertTrue(least <= fraction <= most, text)
        self.assertRegex(text, r"load average before the start: \d")

    def test_a_prefill_says_the_load_too(self):
        words = ("bench", "prefill", harness.DEMO, "--tokens", 8)
        self.assertIn("load_average", json.loads(harness.run(*words, "--json").stdout))
        text = harness.run(*words).stdout.decode()
        self.assertIn("load average before the start: ", text)
        found = re.search(r"products: (\S+ [kMGT]?FLOP) at (\S+ [kMGT]?FLOP/s) ", text)
        self.assertIsNotNone(found, text)
        for figure in found.groups():
            self.assertGreater(self.number_of(figure), 0)

    def test_one_token_is_no_tokens(self):
        text = harness.run("bench", "prefill", harness.DEMO, "--tokens", 1).stdout.decode()
        self.assertIn(", 1 token\n", text)


if __name__ == "__main__":
    harness.main()
