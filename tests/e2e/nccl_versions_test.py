"""The ladder over a stand-in of a release of NCCL that nobody knows.

As in nccl_test.py, the environments are mount namespaces with a real tmpfs on /dev/shm, and the
numbers in this file are literals.
"""
import json

import harness
from nccl_test import DEVICE, Place, shoal, use_of

NEWEST = "2.32.3"
POOL = 68423680  # of a rank of NEWEST, in whole pages
CONNECTION = 9650176
NEXT = "2.33.1"  # which nobody knows
SOCKETS = ("--transport", "nccl-socket,tcp")


def pages(size: int) -> int:
    return -(-size // 4096) * 4096


def need_of(report: dict, rung: str) -> dict:
    return next(need for need in report["needs"] if need["rung"] == rung)


def refusal_of(report: dict, rung: str) -> dict:
    return next(refusal for refusal in report["refusals"] if refusal["rung"] == rung)


class Unknown(Place):
    """The stand-in says that it is NEXT, whose pools may be larger than any that is known."""

    def test_a_version_like_the_last_one_starts(self):
        report = self.report("size=64m", "-tp", 4, FAKE_NCCL_VERSION=NEXT)
        use = use_of(report, "nccl-shm")
        self.assertEqual((report["rung"], use["predicted_bytes"], use["used_bytes"]),
                         ("nccl-shm", 4 * CONNECTION, 4 * CONNECTION), report["refusals"])
        self.assertEqual((use["bound"], need_of(report, "nccl-shm")["bound"]), 2 * ("at-least",))
        self.assertIn(f"{NEXT}, which is newer than the last one known, {NEWEST}", use["assumptions"][0])

    def test_more_than_the_least_is_taken_where_it_is(self):
        report = self.report("size=256m", "-tp", 2, *SOCKETS, code=0, FAKE_NCCL_VERSION=NEXT,
                             FAKE_NCCL_POOL_BYTES=100_000_000)
        use = use_of(report, "nccl-socket")
        self.assertEqual((report["rung"], use["predicted_bytes"], use["used_bytes"]),
                         ("nccl-socket", 2 * POOL, 2 * pages(100_000_004)))

    def test_a_larger_pool_than_there_is_room_for_steps_down(self):
        # There is room for two pools of the last known version, and for one of these.
        larger = {"FAKE_NCCL_VERSION": NEXT, "FAKE_NCCL_POOL_BYTES": 100_000_000}
        report = self.report("size=144m", "-tp", 2, *SOCKETS, "--startup-timeout", 20, **larger)
        self.assertEqual(report["rung"], "tcp")
        refusal = refusal_of(report, "nccl-socket")
        self.assertEqual((refusal["phase"], refusal["code"], refusal["shared_memory"]),
                         ("open", "RESOURCE_EXHAUSTED", True), refusal)
        self.assertIn("No space left on device", refusal["reason"])
        done = self.inside("size=144m", shoal("generate", harness.DEMO, "--prompt", "In", "--max-tokens",
                                              2, "--json", "-tp", 2, *DEVICE, *SOCKETS,
                                              "--startup-timeout", 20) + "; ls -A /dev/shm >&2",
                           **larger)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["transport"], "tcp")
        self.assertNotIn("nccl-", done.stderr.splitlines()[-1])

    def test_the_least_is_tried_and_not_computed(self):
        report = self.report("size=64m", "-tp", 2, *SOCKETS, FAKE_NCCL_VERSION=NEXT)
        refusal = refusal_of(report, "nccl-socket")
        self.assertEqual((report["rung"], refusal["phase"], refusal["code"]),
                         ("tcp", "reserve", "RESOURCE_EXHAUSTED"), refusal)
        remedy = next(one for one in report["remedies"] if one["kind"] == "mount")
        self.assertIn(f"with at least {2 * POOL + 256 * 1024} B", remedy["title"])

    def test_doctor_says_unknown(self):
        def doctor(size: str, *flags):
            done = self.inside(size, shoal("doctor", "--nccl-version", NEXT, "-tp", 2, *flags))
            self.assertEqual(done.returncode, 1, done.stderr)
            return done.stdout
        text = doctor("size=64m")
        self.assertRegex(text.splitlines()[0],
                         r"^UNKNOWN: whether 2 ranks of NCCL 2\.33\.1 fit into /dev/shm, which has ")
        self.assertRegex(text, rf"\n  unknown nccl-shm: at least {2 * 2 * CONNECTION} B ")
        self.assertRegex(text, rf"\n  refused nccl-socket: at least {2 * POOL} B ")
        self.assertIn(f"assumed: NCCL {NEXT}, which is newer than the last one known, {NEWEST}", text)
        self.assertRegex(doctor("size=1m").splitlines()[0], "^NO: 2 ranks of NCCL 2.33.1 do not fit")
        plan = json.loads(doctor("size=64m", "--json"))
        self.assertEqual((plan["nccl_version"], plan["nccl_known"], plan["fits"]),
                         (NEXT, False, False))
        self.assertEqual({line["bound"] for line in plan["rungs"]}, {"at-least"})
        lines = {line["rung"]: line for line in plan["rungs"]}
        self.assertIn("is not known", lines["nccl-shm"]["reason"])
        self.assertIn(f"needs at least {2 * POOL} bytes", lines["nccl-socket"]["reason"])
        self.assertEqual(lines["nccl-socket"]["segments"]["pool"], 68420264)


if __name__ == "__main__":
    harness.main()
