"""Random faults during 16 streams: none is lost, no text is wrong, no process is left.

The day is the seed. scripts/test --all draws a few faults each day, and scripts/test --long 200.
"""
import sys

import breadth
import harness

try:
    import grpc  # noqa: F401
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(harness.SKIPPED)

import fault_storm

FAULTS = 200 if breadth.FULL else 8


class RandomFaults(harness.TestCase):
    def test_no_stream_is_lost(self):
        storm = fault_storm.Storm(breadth.day())
        done = lambda: sum("fault" in told for told in storm.told) >= FAULTS  # noqa: E731
        storm.run(done, server_faults=min(FAULTS, 50))
        self.assertGreaterEqual(storm.whole, fault_storm.STREAMS)
        print(f"{FAULTS} faults, {storm.whole} whole answers, {storm.tokens} tokens: {storm.told}")


if __name__ == "__main__":
    harness.main()
