"""shoal-shmtest and shoal-doctor run where nothing else is, and are what `shoal shmtest` and `shoal
doctor` are.

The first word of the command line is the folder that they are in.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
from harness import SHOAL, SKIPPED, USAGE

FOLDER = Path(sys.argv[1])
NAMES = ("shmtest", "doctor")
# Root needs no user namespace, and may lack them.
UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child",
           *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
# $1: the root. $2: the size of its /dev/shm. The rest runs in it.
ENTER = """
set -e
root=$1 size=$2
shift 2
mount --bind "$root" "$root"  # as the root of a container, it is a mount
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o size="$size" tmpfs "$root/dev/shm"
exec env -i PATH=/ /usr/sbin/chroot "$root" "$@"
"""


def run(*words, **popen) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in words], capture_output=True, timeout=5 * harness.GUARD,
                          stdin=subprocess.DEVNULL, **popen)


class EmptyRoot(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        for folder in ("proc", "dev"):
            (self.root / folder).mkdir()
        for name in NAMES:
            shutil.copy(FOLDER / f"shoal-{name}", self.root)

    def inside(self, size: str, *words) -> subprocess.CompletedProcess:
        return run(*UNSHARE, "sh", "-c", ENTER, "sh", self.root, size, *words,
                   env=harness.environment())

    def outside(self, size: str, *words) -> subprocess.CompletedProcess:
        """The same with everything else of this machine."""
        return run(*UNSHARE, "sh", "-c",
                   'mount -t proc proc /proc; mount -t tmpfs -o size="$1" tmpfs /dev/shm; shift; '
                   'exec "$@"', "sh", size, *words, env=harness.environment())

    def test_doctor_says_what_shoal_doctor_says(self):
        for size, rung, flags in (("64m", "shm", ()), ("4k", "memfd", ()),
                                  ("400k", "shm-lean", ("--transport", "shm,shm-lean"))):
            with self.subTest(size):
                # The kernel starts it from PATH, and it starts itself for its ranks.
                found = self.inside(size, "shoal-doctor", "--json", *flags)
                whole = self.outside(size, SHOAL, "doctor", "--json", *flags)
                self.assertEqual(found.returncode, whole.returncode, found.stderr.decode())
                report, expected = json.loads(found.stdout), json.loads(whole.stdout)
                self.assertEqual(report["rung"], rung)
                self.assertGreater(report["self_test"]["bytes_per_s"], 0)
                for key in ("rung", "order", "needs", "degraded", "tp"):
                    self.assertEqual(report[key], expected[key], key)
                self.assertEqual([refusal["rung"] for refusal in report["refusals"]],
                                 [refusal["rung"] for refusal in expected["refusals"]])

    def test_doctor_of_other_kinds(self):
        for flags in (("--needs",), ("--nccl-version", "2.19.4", "-tp", "4")):
            with self.subTest(flags):
                # What helps against a shortage depends on more than /dev/shm.
                found = self.outside("64m", FOLDER / "shoal-doctor", *flags)
                whole = self.outside("64m", SHOAL, "doctor", *flags)
                self.assertEqual((found.returncode, found.stdout),
                                 (whole.returncode, whole.stdout), found.stderr.decode())
        refused = self.inside("64m", "/shoal-doctor", "--device", "cuda")
        self.assertEqual((refused.returncode, refused.stdout), (USAGE, b""))
        self.assertIn(b"linked statically", refused.stderr)

    def test_a_remedy_names_the_program_that_is_there(self):
        # A whole segment of NCCL that a killed run left a day ago.
        leave = ('umask 077; head -c 9637892 /dev/zero > /dev/shm/nccl-AbCd02; '
                 'touch -d yesterday /dev/shm/nccl-AbCd02; exec "$@"')
        for words in ((FOLDER / "shoal-doctor",), (SHOAL, "doctor")):
            result = self.outside("9500k", "sh", "-c", leave, "sh", *words)
            program = " ".join(str(Path(words[0]).name) if i == 0 else w
                               for i, w in enumerate(words))
            self.assertIn(f"\n    {program} --clean-stale\n", result.stdout.decode())

    def test_shmtest_runs_what_is_there(self):
        result = self.inside("64m", "shoal-shmtest", "--matrix", "64m,4k,missing,no-memfd", "--json",
                             "--jobs", 2, "--", "shoal-doctor", "--transport", "shm,tcp")
        self.assertEqual(result.returncode, 1, result.stderr.decode())
        entries = {e["condition"]: e for e in json.loads(result.stdout)["conditions"]}
        self.assertEqual({name: e["exit_code"] for name, e in entries.items()},
                         {"64m": 0, "4k": 1, "missing": 1, "no-memfd": 0})
        self.assertEqual({e["sigbus"] for e in entries.values()}, {False})


class CommandLine(harness.TestCase):
    def test_help_is_the_same_with_its_own_name(self):
        for name in NAMES:
            own = run(FOLDER / f"shoal-{name}", "--help")
            whole = run(SHOAL, name, "--help")
            self.assertEqual((own.returncode, own.stderr), (0, b""))
            shown = [text.stdout.decode().replace(f"shoal {name}", f"shoal-{name}")
                     for text in (own, whole)]
            if name == "doctor":  # the whole program knows models, and the flags of serve for them
                shown = [set(re.findall(r"^  (--[a-z-]+)", text, re.M)) for text in shown]
                self.assertIn("--min-transport", shown[0])
                self.assertLess(shown[0], shown[1])
            else:
                self.assertEqual(*shown)

    def test_version(self):
        whole = json.loads(run(SHOAL, "--version", "--json").stdout)
        for name in NAMES:
            own = json.loads(run(FOLDER / f"shoal-{name}", "--version", "--json").stdout)
            self.assertEqual(own, {key: whole[key] for key in own})
            self.assertIn("commit", own)
            text = run(FOLDER / f"shoal-{name}", "--version").stdout.decode()
            self.assertTrue(text.startswith(f"shoal-{name} {whole['version']}\ncommit: "), text)

    def test_wrong_words(self):
        for words, says in ((("shmtest",), "shoal-shmtest -- COMMAND"),
                            (("shmtest", "--matrx", "4k"), "did you mean --matrix?"),
                            (("doctor", "--zzzzzzzzzzzzzzzz"), "see shoal-doctor --help"),
                            (("doctor", "serve"), "see shoal-doctor --help"),
                            (("doctor", "models/demo", "-tp", "2"),
                             '"models/demo" for doctor; shoal-doctor takes no MODEL: ')):
            with self.subTest(words):
                own = run(FOLDER / f"shoal-{words[0]}", *words[1:])
                self.assertEqual((own.returncode, own.stdout), (USAGE, b""))
                self.assertIn(says, own.stderr.decode())


if __name__ == "__main__":
    if run(*UNSHARE, "true").returncode != 0:
        raise SystemExit(SKIPPED)
    harness.main(arguments=(sys.argv[1],))
