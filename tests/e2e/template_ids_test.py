"""The ids of rendered conversations, compared with Hugging Face's tokenizers: real templates, real and
small tokenizers, and messages without special tokens.

It runs with the Python of build/venv (scripts/get-model) and the templates of scripts/get-templates.
The text itself is compared with Jinja2's in tests/models/chat_template_diff_test.py.
"""
import json
import sys
import tempfile
from pathlib import Path

import harness

try:
    from tokenizers import Tokenizer
except ImportError:
    print("skipped: this Python has no tokenizers (scripts/get-model installs it)")
    sys.exit(harness.SKIPPED)

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "build" / "chat-templates"
SMALL = [ROOT / "tests" / "data" / "oracle" / name
         for name in ("llama3-gqa-tied-sharded", "qwen2-bias-uneven", "mistral-window")]
MESSAGES = [{"role": "user", "content": "Well, \"thanks\" — äöü 日本語 😀\n\n  x = 12345;"},
            {"role": "assistant", "content": "Two  spaces, <b>tags</b> and\ttabs."},
            {"role": "user", "content": " Bye"}]


class TemplateIds(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.messages = Path(folder.name) / "messages.json"
        self.messages.write_text(json.dumps(MESSAGES))

    def compare(self, model: Path, tokenizer: Tokenizer, template: Path) -> bool:
        """False if the template refuses the conversation."""
        flags = ("render", model, "--messages", self.messages, "--chat-template", template)
        rendered = harness.start(*flags)
        text, error = rendered.communicate()
        if rendered.returncode != 0:
            self.assertEqual(rendered.returncode, harness.USAGE, (template.name, error))
            return False
        ids = harness.run(*flags, "--ids").stdout.decode()
        expected = tokenizer.encode(text.decode(), add_special_tokens=False).ids
        self.assertEqual([int(one) for one in ids.replace(",", " ").split()], expected,
                         (template.name, model.name))
        return True

    def test_real_templates_with_a_real_tokenizer(self):
        model = ROOT / "models" / "smollm2"
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        compared = sum(self.compare(model, tokenizer, template)
                       for template in sorted(TEMPLATES.glob("*.jinja")))
        self.assertGreaterEqual(compared, 40)

    def test_small_tokenizers_of_every_kind(self):
        templates = sorted(TEMPLATES.glob("*.jinja"))[::10]
        for model in SMALL:
            tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
            compared = sum(self.compare(model, tokenizer, template) for template in templates)
            self.assertGreater(compared, 2)


if __name__ == "__main__":
    harness.main()
