"""shoal bench decode says whether it measured memory or caches."""
import json

import harness


class BenchDecode(harness.TestCase):
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


if __name__ == "__main__":
    harness.main()
