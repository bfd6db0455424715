"""Ranks that are killed from outside cost no stream: 18 streams, ten SIGKILLs of drawn ranks, each
after 20 to 100 good steps since the ranks run again, over one rung (kill_storm_test.py RUNG), with
the default of --max-restarts. Every answer has the bits of an undisturbed run.

A good step is what the server takes for one: any that has ended well, also while prompts are computed
again. So ranks are killed too when not every stream is back where it stood. The day is the seed.
"""
import re
import sys
from pathlib import Path

import breadth
import harness

try:
    import grpc  # noqa: F401
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(harness.SKIPPED)

import fault_storm

RUNG = sys.argv[1] if len(sys.argv) > 1 else "shm"
KILLS, LEAST, MOST = 10, 20, 100


class KillStorm(fault_storm.Storm):
    STREAMS, FLAGS = 18, ()

    def order_of_rungs(self) -> list[str]:
        return [RUNG]

    def kinds(self) -> list[str]:
        return ["fault_kill_one"]

    def steps_between(self) -> int:
        self.drawn = self.draw.randint(LEAST, MOST)
        return self.drawn

    def steps(self) -> int:
        return self.log.good_steps

    def fault_kill_one(self, fault: dict):
        fault |= {"drawn": self.drawn, "steps": self.steps()}
        self.kill(fault)

    def check(self, stream):
        super().check(stream)
        self.require(not stream.twice, "a request was blamed for a kill from outside")


def kernel_kills() -> int:
    """How many processes of this machine the kernel has killed for want of memory."""
    return int(re.search(r"(?m)^oom_kill (\d+)$", Path("/proc/vmstat").read_text())[1])


class Kills(harness.TestCase):
    def test_no_stream_is_lost(self):
        before = kernel_kills()
        storm = KillStorm(breadth.day())
        storm.run(lambda: sum("fault" in told for told in storm.told) >= KILLS)
        kills = [told for told in storm.told if "fault" in told]
        print(f"{RUNG}: {storm.whole} whole answers, {storm.tokens} tokens; good steps before each kill, "
              f"drawn and seen: {[(kill['drawn'], kill['steps']) for kill in kills]}")
        self.assertEqual(len(kills), KILLS)
        # The line that says so may be one that was lost, on a machine that is too busy to read the log.
        # And if the kernel kills anybody meanwhile, it may have killed the rank too, for all that the
        # server knows.
        self.assertGreaterEqual(storm.log.free + storm.log.lost + kernel_kills() - before, KILLS,
                                "a kill counts as a restart")
        self.assertGreaterEqual(storm.whole, KillStorm.STREAMS)


if __name__ == "__main__":
    harness.main(arguments=tuple(sys.argv[1:2]))
