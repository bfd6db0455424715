"""What ps, top and pgrep show of a server's ranks."""
from pathlib import Path

import harness


class ProcessNames(harness.TestCase):
    def test_ranks_are_named(self):
        server = self.serve(harness.DEMO, "-tp", 3)
        server.wait_ready()
        names = [Path(f"/proc/{pid}/comm").read_text() for pid in server.workers(3)]
        self.assertEqual(sorted(names), ["shoal-rank-0\n", "shoal-rank-1\n", "shoal-rank-2\n"])


if __name__ == "__main__":
    harness.main()
