"""What `cmake --install` installs: install_test.py BUILD. The man page and completions must have
every command and flag.

They are made from the same table as --help, but each by its own code, so each is read here as its
user would: troff formats the page, and bash completes with its script. The scripts for zsh and fish
are read by those shells if they are installed.
"""
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import harness

BUILD = Path(sys.argv[1])


def commands() -> list[str]:
    """The commands that shoal --help lists: serve, ..., bench decode, ..."""
    listed = harness.run("--help").stdout.decode().split("\n\n")[2]
    found = re.findall(r"^  ((?:bench )?[a-z]+) ", listed, re.MULTILINE)
    assert len(found) >= 11, found
    return found


def flags(command: str) -> set[str]:
    text = harness.run(*command.split(), "--help").stdout.decode()
    heads = re.findall(r"^  ((?:-\w, )?--[a-z][a-z-]*(?:, --[a-z-]+)*)", text, re.MULTILINE)
    found = {flag for head in heads for flag in head.split(", ")}
    assert {"-h", "--help", "--log-level"} <= found, found
    return found


class InstallTest(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.prefix = Path(cls.folder.name) / "a prefix"
        subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.prefix],
                       check=True, capture_output=True)
        cls.share = cls.prefix / "share"

    def test_the_program_and_its_module(self):
        out = subprocess.run([self.prefix / "bin" / "shoal", "--version"],
                             check=True, capture_output=True).stdout
        module = self.prefix / "lib" / "shoal" / "libshoal_cuda.so"
        self.assertEqual(module.exists(), (BUILD / "libshoal_cuda.so").exists())
        if module.exists():
            self.assertIn(f"CUDA module: {self.prefix}/bin/../lib/shoal/libshoal_cuda.so, "
                          "matches this program (build ", out.decode())
        else:
            self.assertIn("CUDA module: none", out.decode())

    def test_man_page(self):
        page = self.share / "man" / "man1" / "shoal.1"
        formatted = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-P-cbou", page],
                                   capture_output=True, text=True)
        self.assertEqual((formatted.returncode, formatted.stderr), (0, ""))
        body = formatted.stdout.split("\nCOMMANDS\n")[1].split("\nEXIT STATUS\n")[0]
        sections = dict(re.findall(
            r"^   shoal ([a-z ]+?)(?: \[?MODEL\]?| -- COMMAND)?\n(.*?)(?=^   \S|\Z)", body,
            re.M | re.S))
        self.assertEqual(list(sections), commands())
        for command, text in sections.items():
            heads = " ".join(re.findall(r"^       (-.*)$", text, re.MULTILINE))
            self.assertEqual(set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", heads)), flags(command),
                             command)
        status = formatted.stdout.split("\nEXIT STATUS\n")[1]
        self.assertEqual(re.findall(r"^       (\d+)\b", status, re.MULTILINE),
                         ["0", "1", "64", "65", "66", "69", "70", "74", "75"])

    def complete(self, *words: str, cwd=None) -> list[str]:
        """What bash offers for the last word."""
        script = self.share / "bash-completion" / "completions" / "shoal"
        run = ('source "$1"; shift; set -- "$@"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
               'spec=$(complete -p shoal) || exit 3; spec=${spec#*-F }; "${spec%% *}"; '
               'printf "%s\\n" "${COMPREPLY[@]}"')
        out = subprocess.run(["bash", "--norc", "-c", run, "bash", script, "shoal", *words],
                             check=True, capture_output=True, text=True, cwd=cwd)
        self.assertEqual(out.stderr, "")
        return [line for line in out.stdout.splitlines() if line]

    def test_bash_completes_commands_and_flags(self):
        self.assertEqual(set(self.complete("")),
                         {name.split()[0] for name in commands()} | {"help", "--help", "--version"})
        self.assertEqual(self.complete("ser"), ["serve"])
        self.assertEqual(self.complete("bench", ""), ["decode", "prefill", "collectives"])
        for command in commands():
            self.assertEqual(set(self.complete(*command.split(), "-")), flags(command), command)

    def test_bash_completes_values_and_files(self):
        self.assertEqual(self.complete("serve", "--device", "c"), ["cpu", "cuda"])
        self.assertEqual(self.complete("serve", "--device", "=", "cu"), ["cuda"])
        self.assertEqual(self.complete("doctor", "--log-level", "="),
                         ["debug", "info", "warning", "error"])
        self.assertEqual(self.complete("serve", "--host", ""), [], "a value that cannot be listed")
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "a model").mkdir()
            self.assertEqual(self.complete("generate", "a", cwd=folder), ["a model"])
            self.assertEqual(self.complete("generate", "m", "--jsonl", "a", cwd=folder),
                             ["a model"])
            self.assertEqual(self.complete("shmtest", "--jobs", "2", "--", "a", cwd=folder),
                             ["a model"])
        self.assertEqual(self.complete("help", "--completion", "f"), ["fish"])

    def test_zsh_script(self):
        """Every specification must be one that _arguments understands, and none may be missing."""
        text = (self.share / "zsh" / "site-functions" / "_shoal").read_text()
        self.assertTrue(text.startswith("#compdef shoal\n"))
        cases = dict(
            re.findall(r"^    '([a-z ]+)'\)\n      _arguments \\\n(.*?)        && return 0\n", text,
                       re.M | re.S))
        self.assertEqual(list(cases), commands())
        for command, specs in cases.items():
            found = set()
            for spec in shlex.split(specs.replace("\\\n", "")):
                match = re.fullmatch(
                    r"\*(--?[a-z-]+?)=?\[(?:[^\[\]\\]|\\.)+\](?::(?:[^:\\]|\\.)+:.*)?", spec)
                if match:
                    found.add(match[1])
                else:
                    self.assertIn(spec, ("*:MODEL:_files", "*::COMMAND:_normal"))
            self.assertEqual(found, flags(command), command)

    def test_fish_script(self):
        """Every line must be a `complete` command with the condition of its command, and no flag
        may be missing.
        """
        text = (self.share / "fish" / "vendor_completions.d" / "shoal.fish").read_text()
        found: dict[str, set[str]] = {}
        for line in text.splitlines()[1:]:
            # The only escapes that fish has in quotes are \' and \\, which shlex does not know.
            words = shlex.split(line.replace("\\\\", "").replace("\\'", ""))
            self.assertEqual(words[:3], ["complete", "-c", "shoal"], line)
            if "-n" in words and ("-l" in words or "-s" in words):
                command = (words[words.index("-n") + 1]
                           .replace("__fish_seen_subcommand_from ", "").replace("; and", ""))
                flag = "--" + \
                    words[words.index("-l") + 1] if "-l" in words else "-" + \
                                      words[words.index("-s") + 1]
                found.setdefault(command, set()).add(flag)
        for command in commands():
            self.assertEqual(found[command], flags(command), command)

    def test_zsh_and_fish_read_theirs(self):
        scripts = {"zsh": self.share / "zsh/site-functions/_shoal",
                   "fish": self.share / "fish/vendor_completions.d/shoal.fish"}
        here = [shell for shell in scripts if shutil.which(shell)]
        if not here:
            raise unittest.SkipTest("neither zsh nor fish is here")
        for shell in here:
            read = subprocess.run([shell, "-n", scripts[shell]], capture_output=True, text=True)
            self.assertEqual((read.returncode, read.stderr), (0, ""), shell)


if __name__ == "__main__":
    harness.main(arguments=(sys.argv[1],))
