"""The configuration of `shoal serve` by file, environment and flags, as a running server shows it."""
import json
import os
import tempfile
from pathlib import Path
from unittest import mock

import harness
import http_client
from harness import USAGE


class ConfigTest(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, text: str, name: str = "shoal.yaml") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def environment(self, **variables: str):
        patch = mock.patch.dict(os.environ, {f"SHOAL_{name}": text
                                             for name, text in variables.items()})
        patch.start()
        self.addCleanup(patch.stop)

    def printed(self, *flags) -> dict:
        return json.loads(harness.run("serve", *flags, "--print-config", "--json").stdout)

    def test_a_server_with_all_three(self):
        config = self.file(f"""
            model: {harness.DEMO}
            tensor-parallel-size: 3
            served-model-name: [from-file]
            max_model_len: 96
            api-key: key-of-the-file
            """.replace("            ", ""))
        # A Service of Kubernetes named shoal sets the port to an address.
        self.environment(TENSOR_PARALLEL_SIZE="2", MAX_MODEL_LEN="64", PORT="tcp://10.0.0.1:8000",
                         API_KEY="key-of-the-environment", NO_FLAG="x")
        server = harness.Server(f"--config={config}", "--max-model-len", 48)
        self.addCleanup(server.kill)
        fields = server.wait_ready()
        self.assertEqual(fields["tp"], "2")
        for key in ("key-of-the-file", "key-of-the-environment"):
            answer = http_client.call(server, "GET", "/v1/models",
                                      headers={"Authorization": f"Bearer {key}"})
            model = answer.json()["data"][0]
            self.assertEqual((model["id"], model["max_model_len"]), ("from-file", 48))
            for worker in server.workers(2):
                self.assertNotIn(key.encode(), Path(f"/proc/{worker}/environ").read_bytes())
            self.assertNotIn(key, server.err.text())
        self.assertEqual(http_client.call(server, "GET", "/v1/models").status, 401)
        server.wait_logged(r"tensor-parallel-size \(SHOAL_TENSOR_PARALLEL_SIZE\), ")

    def test_what_is_printed_is_read_again(self):
        config = self.file("dtype: float32\ntransport: [tcp, shm]\napi-key: a-key\n")
        self.environment(MAX_NUM_SEQS="5", API_KEY="another-key", CONFIG=str(config))
        words = ("serve", "m", "--port", -1, "--clean-stale", "--print-config")
        text = harness.run(*words).stdout.decode()
        self.assertIn("max-num-seqs: 5  # environment: SHOAL_MAX_NUM_SEQS\n", text)
        self.assertIn("port: -1  # command line\n", text)
        self.assertIn(f"# file: {config}:1\n", text)
        self.assertNotIn("a-key", text)
        self.assertNotIn("another-key", text)
        before = self.printed(*words[1:-1])
        again = self.file(text, "again.yaml")
        with mock.patch.dict(os.environ):
            for name in [name for name in os.environ if name.startswith("SHOAL_")]:
                if name != harness.TAG_NAME:
                    del os.environ[name]
            after = self.printed("--config", again)
        for values in (before, after):
            del values["config"], values["api-key"]
        self.assertEqual({flag: one["value"] for flag, one in before.items()},
                         {flag: one["value"] for flag, one in after.items()})
        self.assertEqual(before["transport"], {"value": ["tcp,shm"], "source": f"file: {config}:2"})
        self.assertTrue(after["transport"]["source"].startswith(f"file: {again}:"))

    def test_mistakes(self):
        for text, said in (("dtyp: auto\n", ":1: unknown key \"dtyp\"; did you mean dtype?"),
                           ("seed: 1\nseed: 2\n", ":2: seed is set at"),
                           ("\nseed: [1\n", "is not YAML"),
                           ("host: {a: b}\n", ":1: \"host\" is a map")):
            config = self.file(text)
            error = harness.run("serve", "m", "--config", config, code=USAGE).stderr.decode()
            self.assertIn(f"{config}", error)
            self.assertIn(said, error)
        harness.run("serve", "m", "--config", self.folder / "none.yaml", code=USAGE)
        self.environment(MAX_NUM_SEQS="0")
        error = harness.run("serve", "m", code=USAGE).stderr.decode()
        self.assertIn("SHOAL_MAX_NUM_SEQS must be a whole number in [1, 65536], not \"0\"", error)


if __name__ == "__main__":
    harness.main()
