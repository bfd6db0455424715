#!/usr/bin/env python3
"""Compares the chat templates of Shoal with Jinja2: chat_template_diff_test.py PART PROGRAM

PART is constructs (our own templates, one for each construct), generated (random ones, by the seed
of the day), or real (public templates, which scripts/get-templates fetches). PROGRAM is
chat_template_main. Text, or the text of raise_exception, must be equal; whatever else Jinja2
refuses must be refused.
"""
import json
import os
import re
import subprocess
import sys
import unittest
import warnings
from pathlib import Path

import chat_template_reference as reference
from chat_template_constructs import TEMPLATES, VARIABLES
from chat_template_conversations import CONVERSATIONS
from chat_template_generator import templates

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "build" / "chat-templates"
PROGRAM = ""
# Compiling a template that slices a number makes Python print a warning about it.
warnings.simplefilter("ignore", SyntaxWarning)


def of_shoal(cases):
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    run = subprocess.run([PROGRAM], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


class Comparison(unittest.TestCase):
    maxDiff = 2000

    def compare(self, name, wanted, got):
        if re.search(r" at 0x[0-9a-f]{6,}", wanted.get("text", "")):
            return  # Python printed an address
        self.assertEqual(list(wanted), list(got), f"{name}\nJinja2: {wanted}\nShoal: {got}")
        if "error" not in wanted:
            self.assertEqual(wanted, got, name)

    def compare_templates(self, sources):
        cases = [{"template": source, "variables": VARIABLES} for source in sources]
        results = of_shoal(cases)
        self.assertEqual(len(results), len(sources))
        for source, got in zip(sources, results):
            self.compare(source, reference.render(source, VARIABLES), got)


class Constructs(Comparison):
    def test_each_construct(self):
        self.assertGreater(len(TEMPLATES), 280)
        self.compare_templates(TEMPLATES)


class Generated(Comparison):
    def test_templates_of_the_day(self):
        day = int(os.environ.get("SHOAL_TEST_DAY", "0"))
        count = 6000 if os.environ.get("SHOAL_TEST_BREADTH") == "full" else 600
        print(f"seed {day}")
        self.compare_templates(templates(day, count))


class Real(Comparison):
    def test_public_templates(self):
        files = sorted(REAL.glob("*.jinja"))
        self.assertGreaterEqual(
            len(files), 40, f"{REAL} has {len(files)} templates: run scripts/get-templates, which "
            "needs the Python package index")
        cases, wanted, names = [], [], []
        for file in files:
            source = file.read_text()
            for number, talk in enumerate(CONVERSATIONS):
                prompt = number % 3 != 2
                cases.append({"template": source, "messages": talk["messages"],
                              "kwargs": talk["kwargs"], "add_generation_prompt": prompt})
                names.append(f"{file.name}: {talk['name']}")
                wanted.append(reference.render_chat(source, talk["messages"], talk["kwargs"],
                                                    prompt))
        for name, want, got in zip(names, wanted, of_shoal(cases), strict=True):
            self.compare(name, want, got)
        texts = sum("text" in want for want in wanted)
        print(f"{len(files)} templates, {len(cases)} prompts, of which {texts} are not refused")
        self.assertGreater(texts, len(cases) // 2)


if __name__ == "__main__":
    PROGRAM = sys.argv[2]
    unittest.main(argv=[sys.argv[0], sys.argv[1].capitalize()], verbosity=2)
