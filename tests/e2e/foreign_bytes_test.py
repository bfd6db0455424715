"""A model directory whose name is not UTF-8, as on Latin-1 file systems.

Ranks, names and logs must cope with it.
"""
import json
import os
import tempfile
from pathlib import Path

import harness

PROMPT = ["--prompt", "In the beginning", "--max-tokens", "8", "--temperature", "0"]


class ForeignBytes(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = Path(folder.name) / os.fsdecode(b"caf\xe9")
        self.model.symlink_to(harness.DEMO)

    def test_ranks_load_it(self):
        wanted = json.loads(harness.run("generate", harness.DEMO, *PROMPT, "--json").stdout)["text"]
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                answer = json.loads(harness.run("generate", self.model, *PROMPT, "--json", "-tp",
                                                ranks).stdout)
                self.assertEqual(answer["text"], wanted)

    def test_it_is_served_under_a_name_that_a_request_can_say(self):
        server = self.serve(self.model, "-tp", 2, "--log-format", "json")
        name = server.wait_ready()["model"]
        self.assertEqual(name, "caf\ufffd")
        out, err = server.client("--model", name, *PROMPT).communicate()
        self.assertTrue(out, err)
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())
        for line in server.err.rest().splitlines():
            json.loads(line)

    def test_an_error_has_the_path_as_it_is(self):
        done = harness.run("generate", self.model / "none", *PROMPT, "-tp", 2,
                           code=harness.NO_MODEL)
        self.assertIn(b"caf\xe9/none", done.stderr)


if __name__ == "__main__":
    harness.main()
