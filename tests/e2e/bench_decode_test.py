"""shoal bench decode says whether it measured memory or caches, and all its figures agree."""
import json
import re
import statistics

import docs_test
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
        if fits:
            self.assertRegex(text.decode(), r"fraction can exceed 1\n  fraction of that bandwidth [\d.]+ ")

    def test_a_single_turn_has_no_range_and_no_median(self):
        text = harness.run("bench", "decode", harness.DEMO, "--tokens", 8).stdout.decode()
        self.assertRegex(text, r"\n  [\d.]+ tokens/s \([\d.]+ ms a token\); load average before the start: "
                               r"[\d.]+ on \d+ CPUs?(: busy, so .*)?\n")
        self.assertRegex(text, r"\n  fraction of that bandwidth [\d.]+ \(one turn of 8 tokens only; "
                               r"--tokens 64 runs 8 turns and gives a range\)\n\Z")
        self.assertNotIn("median", text)

    def test_all_figures_are_of_the_turn_with_the_median_fraction(self):
        report = json.loads(harness.run("bench", "decode", harness.DEMO, "--tokens", 36,
                                        "--json").stdout)
        turns = report["turns"]
        self.assertEqual([turn["tokens"] for turn in turns], [8, 8, 8, 8, 4])
        for figures in (report, *turns):
            # A token reads every weight, so bytes and tokens per second are one rate.
            rate = report["weight_bytes"] / figures["seconds"]
            self.assertAlmostEqual(figures["bytes_per_s"] / rate, 1, 4)
            self.assertAlmostEqual(figures["fraction"], figures["bytes_per_s"]
                                   / figures["read_bandwidth_bytes_per_s"], 3)
        self.assertAlmostEqual(report["tokens_per_s"] * report["weight_bytes"]
                               / report["bytes_per_s"], 1, 4)
        self.assertIn({key: report[key] for key in turns[0] if key != "tokens"},
                      [{key: turn[key] for key in turn if key != "tokens"} for turn in turns])
        fractions = [turn["fraction"] for turn in turns]
        self.assertEqual((report["fraction_least"], report["fraction"], report["fraction_most"]),
                         (min(fractions), statistics.median(fractions), max(fractions)))
        # The read bandwidth was measured beside each turn: the first and the last one share none.
        self.assertNotEqual(turns[0]["read_bandwidth_bytes_per_s"],
                            turns[-1]["read_bandwidth_bytes_per_s"])

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
                          r"\((?:plain|prefetching) loads, (?:huge|small) pages(?: if granted)?\)\n"
                          r"(?:  the weights fit .*\n)?  fraction of that bandwidth ([\d.]+) \(([\d.]+) to ([\d.]+) in 3 turns "
                          r"of at most 8 tokens\)",
                          text)
        self.assertIsNotNone(found, text)
        rate, machine = map(self.number_of, found.groups()[:2])
        fraction, least, most = map(float, found.groups()[2:])
        self.assertAlmostEqual(fraction, rate / machine, msg=text, delta=0.001 + 0.011 * fraction)
        self.assertIn("all figures but the ranges are of the turn that has the median fraction", text)
        paces = re.search(r"  ([\d.]+) tokens/s \(([\d.]+) ms a token; ([\d.]+) to ([\d.]+) tokens/s in "
                          r"3 turns(; noisy: turns differ by more than a factor of 2)?\);", text)
        self.assertIsNotNone(paces, text)
        tokens, ms, slowest, fastest = map(float, paces.groups()[:4])
        for figure in paces.groups()[:4]:
            digits = figure.replace(".", "").lstrip("0")
            self.assertTrue(len(digits) <= 4 or "." not in figure, text)
        self.assertTrue(slowest <= tokens <= fastest, text)
        self.assertAlmostEqual(tokens * ms, 1000, msg=text, delta=10)
        size = int(re.search(r"a token reads the weights, (\d+) B", text)[1])
        self.assertAlmostEqual(tokens * size / rate, 1, msg=text, delta=0.01)
        self.assertTrue(least <= fraction <= most, text)
        self.assertRegex(text, r"load average before the start: [\d.]+ on \d+ CPUs?(: busy, so .*)?\n")

    def test_a_prefill_says_the_load_too(self):
        words = ("bench", "prefill", harness.DEMO, "--tokens", 8)
        self.assertIn("load_average", json.loads(harness.run(*words, "--json").stdout))
        text = harness.run(*words).stdout.decode()
        self.assertIn("load average before the start: ", text)
        found = re.search(r"products: (\S+ [kMGT]?FLOP) at (\S+ [kMGT]?FLOP/s) ", text)
        self.assertIsNotNone(found, text)
        for figure in found.groups():
            self.assertGreater(self.number_of(figure), 0)
        # It names nothing that only the repository has.
        self.assertNotIn("bench/", text)

    def test_a_prefill_is_the_median_of_its_runs(self):
        words = ("bench", "prefill", harness.DEMO, "--tokens", 8)
        report = json.loads(harness.run(*words, "--json").stdout)
        self.assertEqual(len(report["runs"]), 5)
        self.assertEqual(report["seconds"], statistics.median(report["runs"]))
        text = harness.run(*words).stdout.decode()
        found = re.search(r"  [\d.]+ tokens/s \(median ([\d.]+) s; ([\d.]+) to ([\d.]+) s in 5 runs"
                          r"(; noisy: runs differ by more than a factor of 2)?\); load", text)
        self.assertIsNotNone(found, text)
        median, least, most = map(float, found.groups()[:3])
        self.assertTrue(least <= median <= most, text)

    def test_the_document_lists_every_field(self):
        rows = docs_test.table(docs_test.document("docs/json.md"), "bench fields")
        for bench in ("decode", "prefill"):
            report = json.loads(harness.run("bench", bench, harness.DEMO, "--tokens", 8, "--json").stdout)
            listed = [name for names, of, _ in rows if of in (bench, "both")
                      for name in re.findall(r"`(\w+)`", names)]
            self.assertEqual(sorted(listed), sorted(report), bench)

    def test_one_token_is_no_tokens(self):
        text = harness.run("bench", "prefill", harness.DEMO, "--tokens", 1).stdout.decode()
        self.assertIn(", 1 token\n", text)


if __name__ == "__main__":
    harness.main()
