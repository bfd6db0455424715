"""Files in /dev/shm that killed runs have left: doctor finds them, --clean-stale removes them, and every
command that has the flag lists what it removed.
"""
import json
import re
import shlex
import unittest

import harness
from doctor_test import doctor, inside, namespaces_work
from pages import whole_pages

# The receiver's half of an NCCL connection with lean buffers, as NCCL makes it.
LEFT_BYTES = 1642500
LEFT = (f"umask 077; head -c {LEFT_BYTES} /dev/zero > /dev/shm/nccl-AbCd01; "
        "touch -d '1 hour ago' /dev/shm/nccl-AbCd01")
LEFT_FILE = f"/dev/shm/nccl-AbCd01, {whole_pages(LEFT_BYTES)} B (1.6 MiB)"


@unittest.skipUnless(namespaces_work(), "this kernel forbids mount namespaces here")
class LeftFiles(harness.TestCase):
    def test_doctor_finds_them_and_cleans_on_request_only(self):
        report = json.loads(inside("size=2m", f"{LEFT}; {doctor('--json')} || true").stdout)
        self.assertEqual([(f["path"], f["state"]) for f in report["facts"]["left_files"]],
                         [("/dev/shm/nccl-AbCd01", "stale")])
        done = inside("size=2m",
                      f"{LEFT}; {doctor('--clean-stale')} || true; ls -A /dev/shm | wc -l")
        self.assertEqual(done.stdout.splitlines()[-1], "0", done.stdout + done.stderr)
        self.assertIn(f"removed {LEFT_FILE}\n", done.stdout)
        report = json.loads(inside("size=2m", f"{LEFT}; {doctor('--clean-stale', '--json')}").stdout)
        self.assertEqual(report["removed"], [{"path": "/dev/shm/nccl-AbCd01", "state": "stale",
                                              "bytes": whole_pages(LEFT_BYTES)}])
        done = inside("size=2m",
                      f"{LEFT}; exec 7< /dev/shm/nccl-AbCd01; {doctor('--clean-stale')} || true; "
                      "ls -A /dev/shm | wc -l")
        self.assertEqual(done.stdout.splitlines()[-1], "1", "somebody has it open")
        self.assertIn(f"kept {LEFT_FILE}: in use\n", done.stdout)

    def test_every_command_lists_what_it_removes(self):
        own = "head -c 5000 /dev/zero > /dev/shm/nccl-config; touch -d '1 hour ago' /dev/shm/nccl-config"
        for words in (("generate", harness.DEMO, "--prompt", "In", "--max-tokens", 1),
                      ("logits", harness.DEMO, "--prompt", "In", "--out", "/dev/shm/out.npy"),
                      ("bench", "decode", harness.DEMO, "--tokens", 8)):
            for flags, begin in (((), "shoal: "), (("--log-level", "info"), r"\d+Z INFO front \[\d+\] ")):
                with self.subTest(words=words, flags=flags):
                    command = shlex.join(map(str, [harness.SHOAL, *words, "-tp", 1, "--clean-stale", *flags]))
                    done = inside("size=4m", f"{LEFT}; {own}; {command}; ls /dev/shm/nccl-*")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(done.stdout.splitlines()[-1], "/dev/shm/nccl-config")
                    self.assertNotIn("removed", done.stdout, "the result is for programs")
                    for line in (f"removed {LEFT_FILE}", f"kept /dev/shm/nccl-config, {whole_pages(5000)} B: "
                                 "it may be somebody's own"):
                        self.assertRegex(done.stderr, f"(?m){begin}--clean-stale: {re.escape(line)}$")

    def test_somebodys_own_file_with_such_a_name_is_kept(self):
        for name, make in (("backup", "head -c 100000 /dev/zero > /dev/shm/nccl-backup"),
                           ("config", "umask 077; head -c 5000 /dev/zero > /dev/shm/nccl-config"),
                           ("result", "head -c 1642500 /dev/zero > /dev/shm/nccl-result")):
            with self.subTest(name=name):
                done = inside("size=4m", f"{make}; touch -d '1 hour ago' /dev/shm/*; "
                              f"{doctor('--clean-stale')}; ls /dev/shm")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f"kept /dev/shm/nccl-{name}, ", done.stdout)
                self.assertEqual(done.stdout.splitlines()[-1], f"nccl-{name}")


if __name__ == "__main__":
    harness.main()
