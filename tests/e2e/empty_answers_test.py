"""What `shoal generate` and `shoal client` say of an answer that the model has ended at once."""
import json
import re
import tempfile
from pathlib import Path

import harness


class EmptyAnswers(harness.TestCase):
    """A model for chats ends at once if it gets a bare prompt."""

    PROMPT = ("--prompt", "In the", "--temperature", 0, "--max-tokens", 4)

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = Path(folder.name)
        for file in harness.DEMO.iterdir():
            if file.name != "generation_config.json":
                (self.model / file.name).symlink_to(file)
        self.usual = json.loads(harness.run("generate", harness.DEMO, *self.PROMPT, "--json").stdout)
        (self.model / "generation_config.json").write_text(
            json.dumps({"eos_token_id": self.usual["token_ids"][:1]}))

    def generate(self, *words) -> tuple[bytes, str]:
        process = harness.start("generate", self.model, *words)
        out, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)
        return out, err.decode()

    def test_generate(self):
        hint = "shoal generate: the answer is empty: the model gave its end-of-sequence token before " \
               "any text. It has a chat template; ask it with --chat, or with --messages FILE (- is stdin), " \
               'a list as [{"role": "user", "content": "Hello"}]\n'
        self.assertEqual(self.generate(*self.PROMPT), (b"\n", hint))
        length = "shoal generate: finish reason length: the answer stopped at --max-tokens 4\n"
        self.assertEqual(self.generate(*self.PROMPT, "--ignore-eos")[1], length)
        # JSON has the reason, and who gives token ids has counted them.
        self.assertEqual(self.generate(*self.PROMPT, "--ignore-eos", "--json")[1], "")
        self.assertEqual(self.generate("--prompt-ids", "1,2", *self.PROMPT[2:], "--ignore-eos")[1], "")
        longer = (*self.PROMPT[:-1], 40, "--ignore-eos", "--max-model-len", 8)
        self.assertIn("stopped at --max-model-len, which counts the prompt too\n", self.generate(*longer)[1])
        # The model did not end this one.
        self.assertEqual(self.generate(*self.PROMPT, "--ignore-eos", "--stop", self.usual["text"][:2]),
                         (b"\n", ""))
        (self.model / "chat_template.jinja").unlink()
        self.assertEqual(self.generate(*self.PROMPT), (b"\n", ""))

    def test_a_batch(self):
        says = " empty: the model gave its end-of-sequence token before any text. It has a chat " \
               'template; ask it with "messages" instead of a prompt, a list as ' \
               '[{"role": "user", "content": "Hello"}]\n'
        requests = self.model / "requests.jsonl"
        empty = {"prompt": "In the"}
        others = [{"prompt": "In the", "ignore_eos": True},
                  {"prompt_ids": self.usual["prompt_token_ids"]}]
        for lines, hint in (([empty, *others, empty], "shoal generate: 2 answers are" + says),
                            ([empty, *others], "shoal generate: 1 answer is" + says), (others, "")):
            requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
            batch = ("--jsonl", requests, "--temperature", 0, "--max-tokens", 4)
            out, err = self.generate(*batch)
            self.assertEqual([json.loads(line)["text"] == "" for line in out.splitlines()],
                             [line != others[0] for line in lines])
            self.assertRegex(err, rf"\Ashoal generate: {len(lines)} requests, .*\n{re.escape(hint)}\Z")
            # A log in JSON is no place for it.
            self.assertEqual(self.generate(*batch, "--log-format", "json")[1], "")
        requests.write_text(json.dumps(empty))
        (self.model / "chat_template.jinja").unlink()
        self.assertRegex(self.generate(*batch)[1], r"\Ashoal generate: 1 request, .*\n\Z")

    def test_client(self):
        server = self.serve(self.model)
        server.wait_ready()
        stop = ("--ignore-eos", "--stop", self.usual["text"][:2])
        for flags, hinted in (((), True), (("--ignore-eos",), False), (stop, False)):
            client = server.client(*self.PROMPT, *flags)
            err = client.communicate()[1].decode()
            self.assertEqual(client.returncode, 0, err)
            hint = "the answer is empty: the model gave its end-of-sequence token before any text, as models " \
                   "for chats often do after a bare prompt. Ask its HTTP port with --chat or --messages\n"
            self.assertEqual(err.endswith(hint), hinted, err)


if __name__ == "__main__":
    harness.main()
