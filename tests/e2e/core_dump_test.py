"""A core file of a rank has neither caches nor weights nor what ranks share, so that a crash is over
soon. What takes long to dump all the same is tests/runtime/supervisor/core_dump_test.cc."""
import os
import re
import resource
import signal
import tempfile
import unittest
from pathlib import Path

import breadth
import harness

MIB = 2**20
MOST = 64 * MIB


def free_memory() -> int:
    return int(re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024


KV_CACHE = 256 * MIB if breadth.NARROW or free_memory() < 8192 * MIB else 3072 * MIB
# A sequence of the demo can use 1.5 MiB, and no cache is larger than its sequences can use.
FLAGS = ("-tp", 2, "--threads-per-rank", 1, "--max-num-seqs", KV_CACHE // MIB,
         "--kv-cache-memory", f"{KV_CACHE // MIB}m")


def mappings(pid: int) -> list[tuple[str, int, bool]]:
    """The name, the bytes in memory and whether it is left out of core files, of each mapping."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    found = []
    for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE)[1:]:
        name = part.split("\n")[0].split(maxsplit=5)[5:]
        in_memory = int(re.search(r"^Rss:\s+(\d+) kB", part, re.MULTILINE)[1]) * 1024
        flags = re.search(r"^VmFlags:(.*)", part, re.MULTILINE)
        found.append(("".join(name), in_memory, " dd" in flags[1]))
    return found


@unittest.skipIf(harness.EMULATOR or "SHOAL_TEST_SANITIZED" in os.environ,
                 "an emulator or a sanitizer has memory of its own")
class CoreDump(harness.TestCase):
    def served(self, transport: str, **popen) -> harness.Server:
        server = self.serve(harness.DEMO, *FLAGS, "--transport", transport, **popen)
        server.wait_ready()
        return server

    def stop(self, server):
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())

    def check_mappings(self, server):
        for rank in server.workers(2):
            found = mappings(rank)
            self.assertLess(sum(size for _, size, out in found if not out), MOST)
            self.assertGreater(sum(size for _, size, out in found if out), KV_CACHE / 2)
            weights = [out for name, _, out in found if name.endswith(".safetensors")]
            pool = [out for name, _, out in found if re.match("/dev/shm|/memfd:shoal", name)]
            self.assertTrue(weights and all(weights))
            self.assertTrue(pool and all(pool))

    def test_what_is_large_is_left_out(self):
        for transport in ("memfd", "cma"):
            with self.subTest(transport=transport):
                server = self.served(transport)
                self.check_mappings(server)
                self.stop(server)

    def test_a_core_file_is_small(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        server = self.served(
            "shm", cwd=folder.name, executable=os.path.abspath(harness.SHOAL),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (hard, hard)))
        self.check_mappings(server)
        pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
        if not pattern or re.search("[|@/]", pattern):
            self.skipTest(f"core files of this machine go to {pattern!r}")
        if hard != resource.RLIM_INFINITY:
            self.skipTest("the size of core files is limited here (ulimit -Hc)")
        os.kill(server.workers(2)[1], signal.SIGSEGV)
        server.wait_logged("the ranks run again")
        self.assertRegex(server.err.text(), r"rank 1 .*signal 11 .*; core dumped")
        self.stop(server)
        [core] = Path(folder.name).iterdir()
        self.assertLess(MIB, core.stat().st_size)
        self.assertLess(core.stat().st_size, MOST)


if __name__ == "__main__":
    harness.main()
