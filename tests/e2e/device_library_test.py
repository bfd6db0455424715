"""--reproducible off with a library for products, on emulated devices. The library is a fake
(tests/fakes/fake_cublaslt.cc), and so are its bits: what is seen here is which products it gets,
with which matrices, and what the program says of it."""
import json
import os
import shutil
import tempfile
import unittest.mock
from pathlib import Path

import numpy as np

import breadth
import harness
from emulated_gpu import FAKES, ON_DEVICES
from http_client import complete

LIBRARY = FAKES / "libfake_cublaslt.so"
OFF = ("--reproducible", "off", "--cublas-library", LIBRARY)
NO_LIBRARY = tuple(word for word in ON_DEVICES if word not in ("--cublas-library", LIBRARY))
DEMO = harness.ORACLE / "llama3-gqa-tied-sharded"
ORACLES = sorted(file.parent.name for file in harness.ORACLE.glob("*/config.json"))


def told(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class Products(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.told = Path(folder.name) / "told"
        settings = unittest.mock.patch.dict(os.environ, {
            "EMULATED_GPU_PEERS": "all", "FAKE_CUBLAS_TELL": str(self.told)})
        settings.start()
        self.addCleanup(settings.stop)

    def check_logits(self, name: str, ranks: int):
        folder = harness.ORACLE / name
        expected = json.loads((folder / "expected.json").read_text())
        prompt = max(expected["prompts"], key=lambda one: len(one["ids"]))
        config = json.loads((folder / "config.json").read_text())
        dtype = config.get("dtype") or config["torch_dtype"]
        self.told.unlink(missing_ok=True)
        # Only the rung that is named may be used: with three ranks its sums have NCCL's own order.
        rung = ("--transport", "nccl-p2p") if ranks > 1 else ()
        ours = harness.logits(folder, prompt["ids"], *ON_DEVICES, *OFF, "-tp", ranks, *rung)
        reference = np.load(folder / prompt["logits"]).astype(np.float64)
        distance = (np.linalg.norm(ours.astype(np.float64) - reference, axis=1)
                    / np.linalg.norm(reference, axis=1))
        self.assertLessEqual(distance.mean(), 1e-4 if dtype == "float32" else 1.5e-2)
        self.assertLessEqual(distance.max(), 1e-4 if dtype == "float32" else 4e-2)
        # Three copies of the prompt follow each other, so that most rows are the library's: it gets
        # 33 or more.
        products = self.products_of(folder, (prompt["ids"] * 3)[:200], ranks)
        if dtype == "float16":  # no library has products of float16 and float32
            self.assertEqual(products, 0)
        else:
            # At least q, k and v, and gate and up of every layer, and the last product. Before that
            # each of these three has been tried.
            self.assertGreaterEqual(products, ranks * (2 * config["num_hidden_layers"] + 1 + 3))

    def products_of(self, folder: Path, ids: list[int], ranks: int) -> int:
        """How many products of all these tokens the library has computed in a step. Its logits must
        be close to those of own kernels."""
        self.told.unlink(missing_ok=True)
        ours = harness.logits(folder, ids, *ON_DEVICES, "-tp", ranks).astype(np.float64)
        self.assertEqual(told(self.told), [])
        its = harness.logits(folder, ids, *ON_DEVICES, *OFF, "-tp", ranks).astype(np.float64)
        distance = np.linalg.norm(its - ours, axis=1) / np.linalg.norm(ours, axis=1)
        self.assertLessEqual(distance.max(), 2e-2)
        rows = [int(line.split()[1]) for line in told(self.told) if line.startswith("computes")]
        return sum(len(ids) <= one <= len(ids) * 5 // 4 for one in rows)

    def test_logits_are_the_references(self):
        for name in [DEMO.name] if breadth.NARROW else ORACLES:
            for ranks in (1, 2, 3):
                with self.subTest(name, ranks=ranks):
                    self.check_logits(name, ranks)

    def serve_with(self, *flags) -> tuple[dict[str, str], str]:
        server = self.serve(DEMO, *ON_DEVICES, "-tp", 2, "--max-num-seqs", 2,
                            "--kv-cache-memory", "2m", "--decode-stretch", 0, "--max-step-ms",
                            60000, *flags)
        fields = server.wait_ready()
        for _ in range(3):  # the first steps are short, until the server knows how long they take
            before = told(self.told)
            client = server.client("--prompt-ids", harness.ids_flag(range(130)), "--max-tokens", 3,
                                   "--temperature", 0)
            out, err = client.communicate()
            self.assertEqual(client.returncode, 0, err)
            self.assertTrue(out)
        self.later = told(self.told)[len(before):]
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())
        return fields, server.err.rest()

    def test_what_decides_the_bits_is_shown(self):
        fields, log = self.serve_with(*OFF)
        self.assertEqual(fields["arithmetic"], "cuda-sm90-8-off-cublas-13.1.1-from-33")
        self.assertIn(f"cuBLASLt 13.1.1 at {LIBRARY} computes products of 33 rows and more", log)
        self.assertNotEqual(self.later, [])
        self.assertEqual(set(self.later), {"computes 160 rows"}, "a step has made a plan")

    def answered(self, *flags, **settings: str) -> tuple[str, str]:
        """What READY says of the arithmetic, and the system_fingerprint of an answer."""
        with unittest.mock.patch.dict(os.environ, settings):
            server = self.serve(DEMO, *flags, "--kv-cache-memory", "2m")
        arithmetic = server.wait_ready()["arithmetic"]
        answer = complete(server, prompt=[1, 2, 3], max_tokens=1).json()
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())
        return arithmetic, answer["system_fingerprint"]

    def test_the_fingerprint_of_an_answer_names_what_decides_its_bits(self):
        """The device, its class, and with off the library's version and table; and nothing else."""
        cases = (
            ("cuda-sm90-8", (), {}),
            ("cuda-sm90-8", ("-tp", 2, "--transport", "host-memfd"), {"EMULATED_GPU_PEERS": "none"}),
            ("cuda-sm80-8", (), {"EMULATED_GPU_TENSOR_CORE": "sm80"}),
            ("cuda-sm90-8-off", ("--reproducible", "off", "--cublas-library", "/nonexistent"), {}),
            ("cuda-sm90-8-off-cublas-13.1.1-from-33", OFF, {}),
            ("cuda-sm90-8-off-cublas-13.9.3-from-33", OFF, {"FAKE_CUBLAS_VERSION": "130903"}),
            ("cuda-sm90-8-off-cublas-13.1.1-from-128", OFF, {
                "EMULATED_GPU_CAPABILITY": "8.0", "EMULATED_GPU_TENSOR_CORE": "sm90"}))
        by_arithmetic = dict([self.answered("--device", "cpu")])
        self.assertNotIn("cuda", *by_arithmetic)
        for arithmetic, flags, settings in cases:
            with self.subTest(arithmetic, flags=flags):
                said, fingerprint = self.answered(*ON_DEVICES, *flags, **settings)
                self.assertEqual(said, arithmetic)
                self.assertEqual(by_arithmetic.setdefault(said, fingerprint), fingerprint)
        self.assertEqual(len(set(by_arithmetic.values())), len(cases))

    def test_it_is_not_even_opened_for_reproducible_results(self):
        fields, log = self.serve_with("--cublas-library", "/nonexistent/l.so")
        self.assertEqual(fields["arithmetic"], "cuda-sm90-8")
        self.assertNotIn("cuBLASLt", log)

    def test_own_kernels_compute_everything_without_it(self):
        for library, version, why in (("/nonexistent/l.so", "130101", "cannot open shared object"),
                                      (LIBRARY, "140000", "cuBLASLt 14.0.0 at .* is of no supported")):
            with self.subTest(library), unittest.mock.patch.dict(
                    os.environ, {"FAKE_CUBLAS_VERSION": version}):
                fields, log = self.serve_with("--reproducible", "off", "--cublas-library", library)
                self.assertEqual(fields["arithmetic"], "cuda-sm90-8-off")
                self.assertRegex(log, f"own kernels compute every product, because .*{why}")

    def start_where(self, *versions: int, **settings: str) -> tuple[Path, str, str]:
        """What a server says that finds copies under the names of these versions, in the folder that
        is the first to be searched. Under the other name it finds a broken file, and so no library
        of this machine. No flag names one."""
        folder = self.told.with_name("named")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for version in (13, 12):
            name = folder / f"libcublasLt.so.{version}"
            shutil.copy(LIBRARY, name) if version in versions else name.touch()
        with unittest.mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": str(folder), **settings}):
            server = self.serve(DEMO, *NO_LIBRARY, "--reproducible", "off")
        fields = server.wait_ready()
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())
        return folder, fields["arithmetic"], server.err.rest()

    def test_without_a_flag_the_newest_name_that_works_is_taken(self):
        for versions, old, taken in (((13, 12), "none", 13), ((12,), "none", 12),
                                     ((13, 12), "so.13", 12)):
            with self.subTest(versions, old_driver_for=old):
                folder, arithmetic, log = self.start_where(
                    *versions, FAKE_CUBLAS_OLD_DRIVER=old, FAKE_CUBLAS_VERSION=f"{taken}0903")
                self.assertEqual(arithmetic, f"cuda-sm90-8-off-cublas-{taken}.9.3-from-33")
                self.assertIn(f"cuBLASLt {taken}.9.3 at {folder}/libcublasLt.so.{taken} computes", log)

    def test_without_any_it_says_where_it_looked(self):
        folder, arithmetic, log = self.start_where(13, FAKE_CUBLAS_OLD_DRIVER="so.13")
        self.assertEqual(arithmetic, "cuda-sm90-8-off")
        self.assertRegex(log, rf"own kernels compute every product, because cublasLtCreate of {folder}"
                              r"/libcublasLt.so.13: the library was not initialized; cuBLASLt cannot "
                              rf"be loaded: .*libcublasLt.so.12: .* \(looked in {folder}, .*ldconfig "
                              r"lists\); install cuBLAS of CUDA 13 or 12 ")

    def test_a_product_that_it_does_not_have_is_said(self):
        with unittest.mock.patch.dict(os.environ, {"FAKE_CUBLAS_REFUSES": "160"}):
            _, log = self.serve_with(*OFF)
        self.assertRegex(log, "no algorithm for a product of 160 rows")
        self.assertEqual(set(self.later), {"computes 192 rows"})

    def test_a_device_that_fails_in_a_product_of_the_library(self):
        """The error stays with its process, and new ranks go on with the stream."""
        fails = self.told.with_name("fails")
        with unittest.mock.patch.dict(os.environ, {"FAKE_CUBLAS_FAIL": str(fails)}):
            server = self.serve(DEMO, *ON_DEVICES, *OFF, "--max-step-ms", 60000)
        server.wait_ready()
        for attempt in range(3):  # the first steps are short
            if attempt == 2:
                fails.touch()
            client = server.client("--prompt-ids", harness.ids_flag(range(130)), "--max-tokens", 3,
                                   "--temperature", 0)
            out, err = client.communicate()
            self.assertEqual(client.returncode, 0, err)
        self.assertFalse(fails.exists())
        self.assertRegex(server.err.text(), "the GPU has failed.*cublasLtMatmul|"
                                            "cublasLtMatmul.*failed to launch")
        server.wait_logged("the ranks run again")

    def test_a_library_that_hangs_holds_up_no_start(self):
        """The process that tries it is ended, and everything else that it found is kept."""
        with unittest.mock.patch.dict(os.environ, {"FAKE_CUBLAS_HANG": "1"}):
            fields, log = self.serve_with(*OFF, "--startup-timeout", 40)
        self.assertEqual(fields["arithmetic"], "cuda-sm90-8-off")
        self.assertRegex(log, "own kernels compute every product, because a try to open .* did not end well")


if __name__ == "__main__":
    harness.main()
