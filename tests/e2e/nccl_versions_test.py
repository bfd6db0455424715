"""What is known of NCCL's releases: the tables of docs/nccl.md, the ladder over a stand-in of the
newest release that is known, and over one of a release that nobody knows.

As in nccl_test.py, the environments are mount namespaces with a real tmpfs on /dev/shm, and the
numbers in this file are literals.
"""
import itertools
import json

import breadth
import harness
from docs_test import document, table
from nccl_test import CONNECTION, DEVICE, LEAN, Place, shoal, use_of
from pages import PAGE, of_documents, whole_pages

NEWEST = "2.32.3"
POOL = whole_pages(68420268)  # of a rank of NEWEST
HEADROOM = 256 * 1024  # left free for other programs
NEXT = "2.33.1"  # which nobody knows
SOCKETS = ("--transport", "nccl-socket,tcp")

# The rung that a start takes with the stand-in of NEWEST, and its bytes of /dev/shm, by MiB of
# /dev/shm and ranks. One rank needs no transport.
EXPECTED = {
    1: {1: ("single", 0), 2: ("host-memfd", 0), 4: ("host-memfd", 0), 8: ("host-memfd", 0)},
    4: {1: ("single", 0), 2: ("nccl-shm-lean", 2 * LEAN), 4: ("host-memfd", 0),
        8: ("host-memfd", 0)},
    64: {1: ("single", 0), 2: ("nccl-shm", 2 * 2 * CONNECTION), 4: ("nccl-shm", 4 * CONNECTION),
         8: ("nccl-shm-lean", 8 * LEAN)},
    128: {1: ("single", 0), 2: ("nccl-shm", 2 * 2 * CONNECTION),
          4: ("nccl-shm", 2 * 4 * CONNECTION), 8: ("nccl-shm", 8 * CONNECTION)},
}


def places() -> list[tuple[int, int]]:
    """MiB and ranks: all, or in a quick run those of which each has another outcome."""
    everything = itertools.product(EXPECTED, (1, 2, 4, 8))
    return [(1, 8), (4, 2), (64, 4), (64, 8)] if breadth.NARROW else list(everything)


def need_of(report: dict, rung: str) -> dict:
    return next(need for need in report["needs"] if need["rung"] == rung)


def refusal_of(report: dict, rung: str) -> dict:
    return next(refusal for refusal in report["refusals"] if refusal["rung"] == rung)


class Tables(Place):
    """docs/nccl.md against the program, and what is predicted against what was read."""

    def plan(self, version: str, ranks: int) -> dict:
        """In a /dev/shm with room for all."""
        done = self.inside("size=2g", shoal("doctor", "--nccl-version", version, "-tp", ranks,
                                            "--json"))
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_segments(self):
        rows = table(document("docs/nccl.md"), "nccl segments")
        self.assertEqual(rows[-1][0], NEWEST)
        for version, _, pool, region, count in rows:
            with self.subTest(version=version):
                plan = self.plan(version, 8)
                self.assertTrue(plan["nccl_known"])
                self.assertEqual(plan["rungs"][1]["segments"],
                                 {"data": 9637888, "control": 4096, "pool": int(pool),
                                  "nvls": int(region) or None})
                socket = next(line for line in plan["rungs"] if line["rung"] == "nccl-socket")
                self.assertIn(f"8 files of {int(pool) + int(count)} B",
                              json.dumps(socket["consumers"]))

    def test_rungs(self):
        text = document("docs/nccl.md")
        read = {version: (int(pool), int(count))
                for version, source, pool, _, count in table(text, "nccl segments")
                if source.startswith("library")}
        rows = table(text, "nccl rungs")
        self.assertEqual([(row[0], int(row[1])) for row in rows],
                         list(itertools.product(read, (1, 2, 4, 8))))
        for version, ranks, *cells in rows:
            with self.subTest(version=version, ranks=ranks):
                plan = self.plan(version, int(ranks))
                predicted = {line["rung"]: line["dev_shm_bytes"] for line in plan["rungs"]}
                self.assertEqual(predicted.pop("nccl-p2p"), 0)
                self.assertEqual({line["bound"] for line in plan["rungs"]}, {"exact"})
                pool, count = read[version]
                ring = int(ranks) if int(ranks) > 1 else 0
                half = whole_pages(4096 + count)
                follows = {"nccl-shm": 2 * ring * (whole_pages(9637888 + count) + half),
                           "nccl-shm-lean": ring * (whole_pages(1642496 + count) + half),
                           "nccl-socket": ring * whole_pages(pool + count)}
                self.assertEqual(predicted, follows)
                if of_documents():
                    self.assertEqual([int(cell) for cell in cells],
                                     [size for rung in follows for size in 2 * [follows[rung]]])

    def test_places(self):
        if of_documents():
            self.assertEqual(table(document("docs/nccl.md"), "nccl places"),
                             [[str(size), str(ranks), rung, str(taken), str(taken)]
                              for size, by_ranks in EXPECTED.items()
                              for ranks, (rung, taken) in by_ranks.items()])


class Newest(Place):
    def test_every_place(self):
        for size, ranks in places():
            rung, taken = EXPECTED[size][ranks]
            with self.subTest(size=size, ranks=ranks):
                report = self.report(f"size={size}m", "-tp", ranks, code=0 if ranks == 1 else 1,
                                     FAKE_NCCL_VERSION=NEWEST)
                self.assertEqual(report["rung"], rung, report["refusals"])
                for refusal in report["refusals"]:
                    # No rung was tried in vain.
                    self.assertIn(refusal["phase"], ("probe", "budget"), refusal)
                if ranks > 1:
                    self.assertEqual(need_of(report, rung)["dev_shm_bytes"], taken)
                if not rung.startswith("nccl"):
                    continue
                use = use_of(report, rung)
                self.assertEqual((use["predicted_bytes"], use["used_bytes"], use["bound"]),
                                 (taken, taken, "exact"), use)
                self.assertEqual(list(use["transports"]), ["SHM/direct"])
                self.assertTrue(use["version"].startswith(NEWEST), use)

    def test_every_remedy_is_enough_and_a_page_less_is_not(self):
        refused = [(size, ranks) for size, ranks in places()
                   if EXPECTED[size][ranks][0] in ("nccl-shm-lean", "host-memfd")]
        self.assertTrue(refused)
        for size, ranks in refused:
            with self.subTest(size=size, ranks=ranks):
                def report(before: str) -> dict:
                    return self.report(f"size={size}m", "-tp", ranks, before=before,
                                       FAKE_NCCL_VERSION=NEWEST)
                remedy = next(one["text"] for one in report(":")["remedies"]
                              if one["kind"] == "mount")
                needed = ranks * CONNECTION + HEADROOM
                self.assertIn(f"size={needed}", remedy)
                less = remedy.replace(f"size={needed}", f"size={needed - PAGE}")
                enough = report(remedy)
                use = use_of(enough, "nccl-shm")
                self.assertEqual((enough["rung"], use["predicted_bytes"], use["used_bytes"]),
                                 ("nccl-shm", ranks * CONNECTION, ranks * CONNECTION),
                                 enough["refusals"])
                self.assertEqual(report(less)["rung"], "nccl-shm-lean")

    def test_sockets(self):
        report = self.report("size=256m", "-tp", 2, *SOCKETS, code=0, FAKE_NCCL_VERSION=NEWEST)
        use = use_of(report, "nccl-socket")
        self.assertEqual((report["rung"], use["predicted_bytes"], use["used_bytes"]),
                         ("nccl-socket", 2 * POOL, 2 * POOL))
        # Docker's default has no room for one of the two pools.
        report = self.report("size=64m", "-tp", 2, *SOCKETS, FAKE_NCCL_VERSION=NEWEST)
        self.assertEqual((report["rung"], refusal_of(report, "nccl-socket")["phase"]),
                         ("tcp", "budget"))
        self.assertRegex(refusal_of(report, "nccl-socket")["reason"],
                         rf"needs {2 * POOL} B \(130\.[56] MiB\)")
        remedy = next(one["text"] for one in report["remedies"] if one["kind"] == "mount")
        needed = 2 * POOL + HEADROOM
        self.assertIn(f"size={needed}", remedy)
        for size, rung, code in ((needed, "nccl-socket", 0), (needed - PAGE, "tcp", 1)):
            report = self.report("size=64m", "-tp", 2, *SOCKETS, code=code, FAKE_NCCL_VERSION=NEWEST,
                                 before=remedy.replace(f"size={needed}", f"size={size}"))
            self.assertEqual(report["rung"], rung, report["refusals"])


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
                         ("nccl-socket", 2 * POOL, 2 * whole_pages(100_000_004)))

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
                                              "--startup-timeout", 20) +
                           "; test -z \"$(ls -A /dev/shm)\"", **larger)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["transport"], "tcp")

    def test_the_least_is_tried_and_not_computed(self):
        report = self.report("size=64m", "-tp", 2, *SOCKETS, FAKE_NCCL_VERSION=NEXT)
        refusal = refusal_of(report, "nccl-socket")
        self.assertEqual((report["rung"], refusal["phase"], refusal["code"]),
                         ("tcp", "reserve", "RESOURCE_EXHAUSTED"), refusal)
        remedy = next(one for one in report["remedies"] if one["kind"] == "mount")
        self.assertIn(f"with at least {2 * POOL + HEADROOM} B", remedy["title"])

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
        self.assertRegex(lines["nccl-socket"]["reason"],
                         rf"needs at least {2 * POOL} B \(130\.[56] MiB\)")
        self.assertEqual(lines["nccl-socket"]["segments"]["pool"], 68420264)


if __name__ == "__main__":
    harness.main()
