"""shoal doctor in real environments: mount namespaces with a real tmpfs on /dev/shm.

A closed loop proves the remedy: the test runs what doctor prints, word for word, in the namespace.
After that doctor must find no problem, and with one page less it must find one.
"""
import errno
import json
import os
import re
import resource
import shlex
import subprocess
import unittest
from unittest import mock

import cgroups
import harness
from pages import PAGE, whole_pages

NAMESPACE = ["unshare", "--mount", "--propagation", "private"] + \
    ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])


def namespaces_work() -> bool:
    probe = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "-o",
                            "size=4k", "tmpfs", "/dev/shm"], capture_output=True)
    return probe.returncode == 0


def inside(mount: str, script: str) -> subprocess.CompletedProcess:
    """Runs the script with sh, with a tmpfs of these options at /dev/shm."""
    return subprocess.run(
        [*NAMESPACE, "sh", "-ec", f"mount -t tmpfs -o {mount} tmpfs /dev/shm\n{script}"],
        capture_output=True, text=True, timeout=5 * harness.GUARD, env=harness.environment())


HEADROOM = 256 * 1024  # bytes that are left free for other programs (--shm-headroom)
PEERS = ("nccl-p2p fits, but only for GPUs that reach each other's memory. They are not looked at here, "
         "so that nccl-shm decides.")


def shm_bytes(ranks: int) -> int:
    """What the rung shm takes: two slots and the control words of each rank, in whole pages."""
    return whole_pages(ranks * (2 * 262144 + 256))


def doctor(*flags) -> str:
    return shlex.join([harness.SHOAL, "doctor", *map(str, flags)])


@unittest.skipUnless(namespaces_work(), "this kernel forbids mount namespaces here")
class InSmallPlaces(harness.TestCase):
    def report(self, mount: str, *flags, code: int) -> dict:
        done = inside(mount, doctor(*flags, "--json"))
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(done.stdout)  # fails unless there is exactly one document

    def test_each_size_takes_its_rung(self):
        for ranks in (2, 4, 8):
            shm_need = shm_bytes(ranks)
            for size, rung in (("4k", "memfd"), ("1m", "memfd"), ("16m", "shm"), ("64m", "shm")):
                with self.subTest(ranks=ranks, size=size):
                    # memfd is as good as shm, so that it is no degrade.
                    report = self.report(f"size={size}", "-tp", ranks, code=0)
                    self.assertEqual(report["rung"], rung)
                    self.assertEqual(report["verdict"], "first" if rung == "shm" else "as-good")
                    self.assertFalse(report["degraded"])
                    self.assertEqual(report["needs"][0]["dev_shm_bytes"], shm_need)
                    self.assertEqual([r["rung"] for r in report["refusals"]],
                                     report["order"][:report["order"].index(rung)])
                    if rung != "shm":
                        self.assertTrue(report["refusals"][0]["shared_memory"])
                        self.assertIn(str(shm_need), report["refusals"][0]["reason"])

    def test_what_a_rung_costs_decides_the_exit_code(self):
        for transports, code, verdict, cost in (
                (("shm", "memfd"), 0, "as-good", {"beside": "shm", "8_kib": 1.0, "1_mib": 1.0}),
                (("shm", "shm-lean"), 1, "slower", {"beside": "shm", "8_kib": 1.1, "1_mib": 2.2}),
                (("shm", "tcp"), 1, "slower", {"beside": "shm", "8_kib": 6.0, "1_mib": 2.1})):
            with self.subTest(transports=transports):
                flags = ("--transport", ",".join(transports))
                report = self.report("size=1m", *flags, code=code)
                self.assertEqual((report["verdict"], report["cost"]), (verdict, cost))
                # A policy that names the last rung that may be used accepts those before it.
                policy = ("--min-transport", transports[-1])
                report = self.report("size=1m", *flags, *policy, code=0)
                self.assertEqual((report["verdict"], report["allowed_by"]),
                                 (verdict, " ".join(policy)))
        # The same place gives the same code, however busy the machine is.
        done = inside("size=1m", "for i in 1 2 3 4 5 6; do "
                      f"{doctor('--transport', 'shm,memfd')} > /dev/null; echo $?; done")
        self.assertEqual(done.stdout.split(), ["0"] * 6, done.stderr)

    def test_the_first_line_is_the_verdict(self):
        for mount, flags, line in (
                ("size=16m", (), "OK: 2 ranks use shm, the first choice."),
                ("size=1m", (), "OK: 2 ranks use memfd, which is as good as shm."),
                ("size=1m", ("--transport", "shm,shm-lean"),
                 "SLOWER: 2 ranks use shm-lean instead of shm: in Shoal's benchmarks an all-reduce "
                 "takes 1.1 times as long with 8 KiB and 2.2 times with 1 MiB."),
                ("size=1m", ("--transport", "shm,shm-lean", "--min-transport", "shm-lean"),
                 "SLOWER: 2 ranks use shm-lean instead of shm: in Shoal's benchmarks an all-reduce "
                 "takes 1.1 times as long with 8 KiB and 2.2 times with 1 MiB; "
                 "--min-transport shm-lean allows it."),
                ("size=1m", ("--min-transport", "shm"),
                 "NO: shm does not fit into /dev/shm for 2 ranks, and the policy (--min-transport "
                 "shm) allows nothing else."),
                ("size=1m", ("--transport", "shm"),
                 "NO: none of --transport shm works for 2 ranks; without it, memfd may work."),
                ("size=1m", ("--transport", "shm", "--min-transport", "shm"),
                 "NO: none of --transport shm works for 2 ranks."),
                ("size=1m", ("--transport", "shm", "--on-shm-shortage", "fail"),
                 "NO: none of --transport shm works for 2 ranks.")):
            with self.subTest(line=line):
                self.assertEqual(inside(mount, doctor(*flags)).stdout.splitlines()[0], line)

    def test_it_says_where_the_number_of_ranks_comes_from(self):
        serve, other = " (serve starts 1)", ""
        for flags, said in (((), serve), (("-tp", 2), None), ((harness.DEMO,), None),
                            (("--device", "cuda", "--cuda-module", "/nosuch"), serve),
                            (("--nccl-version", "2.27"), other),
                            (("--nccl-version", "2.27", "-tp", 2), None)):
            with self.subTest(flags=flags):
                out = harness.start("doctor", *flags).communicate()[0].decode()
                self.assertEqual("ranks unless -tp says otherwise" in out, said is not None, out)
                if said is not None:
                    self.assertIn(f"\n2 ranks unless -tp says otherwise{said}\n", out)

    def test_what_fills_the_mount_is_named(self):
        fill = ("mkdir /dev/shm/cache; head -c 700000 /dev/zero > /dev/shm/cache/largest; "
                "head -c 90000 /dev/zero > /dev/shm/small; "
                "touch -d '3 hours ago' /dev/shm/cache/largest; ")
        done = inside("size=1m", fill + doctor())
        self.assertRegex(done.stdout, r"the largest files in /dev/shm:\n"
                         rf"  {whole_pages(700000)} B \({whole_pages(700000) // 1024} KiB\)  /dev/shm/cache/largest of user root \(0\), "
                         rf"last written 3 h ago\n  {whole_pages(90000)} B \({whole_pages(90000) // 1024} KiB\)  /dev/shm/small ")
        report = json.loads(inside("size=1m", fill + doctor("--json")).stdout)
        self.assertEqual([file["path"] for file in report["facts"]["dev_shm"]["largest_files"]],
                         ["/dev/shm/cache/largest", "/dev/shm/small"])

    def test_remedies_name_their_ranks_and_a_round_size(self):
        for ranks, size in ((2, "2m"), (8, "8m")):
            exact = shm_bytes(ranks) + HEADROOM
            report = self.report("size=1m", "-tp", ranks, code=0)
            title = next(r["title"] for r in report["remedies"] if r["kind"] == "mount")
            self.assertRegex(title, rf"too small for {ranks} ranks: .*{exact} B .*, or {size}$")

    def test_the_remedy_closes_the_loop(self):
        for ranks in (2, 3, 8):
            for headroom in ("0", "64k", "1m"):
                with self.subTest(ranks=ranks, headroom=headroom):
                    # Without the policy memfd would do as well, and so nothing would be wrong.
                    flags = ("-tp", ranks, "--shm-headroom", headroom, "--min-transport", "shm")
                    report = self.report("size=1m", *flags, code=harness.UNAVAILABLE)
                    remedy = next(r for r in report["remedies"]
                                  if r["kind"] == "mount")
                    done = inside("size=1m", f"{remedy['text']}\n{doctor(*flags)}")
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    size = int(re.search(r"size=(\d+)", remedy["text"])[1])
                    less = remedy["text"].replace(f"size={size}", f"size={size - PAGE}")
                    done = inside("size=1m", f"{less}\n{doctor(*flags)} && exit 9 || exit $?")
                    self.assertEqual(done.returncode, harness.UNAVAILABLE,
                                     done.stdout + done.stderr)

    def test_what_has_the_place_of_the_directory_makes_room(self):
        for make, there in (("touch /dev/shm", "which is no directory"),
                            ("ln -s /no/such /dev/shm", "which is no directory"),
                            ("true", "which is missing")):
            with self.subTest(make=make):
                place = ("mount -t tmpfs tmpfs /dev\nmknod /dev/null c 1 3 || touch /dev/null\n"
                         f"{make}\n")
                flags = ("--min-transport", "shm")
                done = inside("size=1m", place + doctor(*flags, "--json"))
                self.assertEqual(done.returncode, harness.UNAVAILABLE, done.stderr)
                report = json.loads(done.stdout)
                self.assertIn(there, report["refusals"][0]["reason"])
                remedy = next(r for r in report["remedies"] if r["kind"] == "mount")
                done = inside("size=1m", f"{place}{remedy['text']}\n{doctor(*flags)}")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_policy(self):
        for flag, value in (("--on-shm-shortage", "fail"), ("--min-transport", "shm")):
            done = inside("size=1m", doctor(flag, value))
            self.assertEqual(done.returncode, harness.UNAVAILABLE)
            self.assertRegex(done.stdout, rf"(?s)\ANO: shm does not fit .*the policy \({flag}[= ]{value}\) "
                             rf"allows .*\nremedy \(flags\): leave out {flag}[= ]{value}: memfd may work "
                             "then, which is as good as shm\nremedy ")
            # The reason is said once, and the report that an error would point to is this one.
            self.assertEqual(done.stdout.count(" left free for others; "), 1, done.stdout)
            for words in ("shoal: error", "left free for others", "shoal doctor prints"):
                self.assertNotIn(words, done.stderr)
        self.assertEqual(inside("size=1m", doctor("--min-transport", "memfd")).returncode, 0)
        self.assertEqual(inside("size=1m", doctor("--min-transport", "tcp")).returncode, 0)
        none = inside("size=1m", doctor("--transport", "shm", "--json"))
        self.assertEqual(none.returncode, harness.UNAVAILABLE)
        self.assertEqual(json.loads(none.stdout)["rung"], None)
        self.assertRegex(none.stderr, r"none of --transport shm works for 2 ranks \(tried shm\); "
                                      "without it, memfd may work")

    def test_serving_says_what_was_refused(self):
        generate = [harness.SHOAL, "generate", str(harness.DEMO), "--prompt", "In", "--max-tokens", "4",
                    "--temperature", "0", "-tp", "2", "--json"]
        # One that costs nothing is a note, and what it says needs nothing to be done.
        remedy, nothing = "What would make shm work here", "Nothing needs to be done."
        for flags, rung, says, omits, refused in (
                (("--log-level", "info"), "memfd", nothing, remedy,
                 r" INFO .*transport shm refused \(budget\), trying memfd, which is as good: "
                 rf".*{shm_bytes(2)}"),
                (("--transport", "shm,tcp"), "tcp", remedy, nothing,
                 rf" WARNING .*transport shm refused \(budget\), trying tcp: .*{shm_bytes(2)}")):
            with self.subTest(flags=flags):
                done = inside("size=1m", shlex.join([*generate, *flags]))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(done.stdout)["transport"], rung)
                self.assertRegex(done.stderr, refused)
                self.assertIn(says, done.stderr)
                self.assertNotIn(omits, done.stderr)
        self.assertEqual(inside("size=1m", shlex.join(generate)).stderr, "", "nothing is lost")
        done = inside("size=1m", shlex.join([*generate, "--on-shm-shortage", "fail"]))
        self.assertEqual(done.returncode, harness.UNAVAILABLE, done.stderr)


@unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ, "a sanitizer takes memory of its own")
class InLittleMemory(harness.TestCase):
    def test_what_the_arithmetic_grants_is_enough(self):
        # A want of memory that it does not see would be a rank that the kernel kills.
        try:
            group = cgroups.MemoryLimit(8 << 20)
        except OSError as error:
            self.skipTest(str(error))
        self.addCleanup(group.remove)
        for flags in (("-tp", 8), ("-tp", 4, "--transport", "tcp"), ("-tp", 16)):
            with self.subTest(flags=flags):
                group.file.write_text(str(group.limit))
                for _ in range(5):  # some pages more or less are in use every time
                    done = harness.start("doctor", *flags, "--json",
                                         preexec_fn=lambda: group.add(os.getpid()))
                    out, err = done.communicate()
                    self.assertIn(done.returncode, (0, harness.UNAVAILABLE), err)
                    report = json.loads(out)
                    if done.returncode == 0:
                        break
                    group.file.write_text(str(cgroups.limit_of_remedy(report)))
                self.assertEqual(done.returncode, 0, err)


class Here(harness.TestCase):
    def test_the_report_for_each_number_of_ranks(self):
        for ranks in (1, 2, 4, 8):
            done = harness.start("doctor", "-tp", ranks, "--json")
            out, err = done.communicate()
            self.assertIn(done.returncode, (0, 1), err)
            report = json.loads(out)
            self.assertEqual(report["tp"], ranks)
            self.assertEqual(set(report) >= {"rung", "refusals", "needs", "facts", "remedies"},
                             True)

    def test_open_files_are_counted_before_ranks_start(self):
        # tcp over 8 ranks takes 5 descriptors of the front itself, 3 for each rank, and 3 more
        # while the last one is started. One less must fail.
        for limit, code in ((32, 0), (31, harness.UNAVAILABLE)):
            done = harness.start("doctor", "-tp", 8, "--transport", "tcp", "--json",
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                                       (limit, limit)))
            out, err = done.communicate()
            self.assertEqual(done.returncode, code, err)
            report = json.loads(out)
            self.assertEqual(report["needs"][0]["descriptors"], 32)
            if code == 0:
                continue
            refusal = report["refusals"][0]
            self.assertEqual((refusal["phase"], refusal["code"]), ("budget", "RESOURCE_EXHAUSTED"))
            self.assertIn("32 open files; the limit is 31", refusal["reason"])
            self.assertIn("ulimit -n 1024", [remedy["text"] for remedy in report["remedies"]])

    def test_a_start_that_fails_for_another_reason_says_so(self):
        # With 16 files no rank over shm can be started, and no transport was refused.
        def few_files():
            resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
        done = harness.start("doctor", "-tp", 2, "--json", preexec_fn=few_files)
        out, err = done.communicate()
        self.assertEqual(done.returncode, harness.UNAVAILABLE, err)
        report = json.loads(out)
        self.assertEqual((report["rung"], report["refusals"]), (None, []))
        self.assertEqual(report["error"]["code"], "RESOURCE_EXHAUSTED")
        self.assertEqual(report["error"]["causes"][-1]["errno"], errno.EMFILE)
        self.assertIn("ulimit -n 1024", [remedy["text"] for remedy in report["remedies"]])
        done = harness.start("doctor", "-tp", 2, preexec_fn=few_files)
        out = done.communicate()[0].decode()
        self.assertRegex(out.splitlines()[0], "^NO: 2 ranks could not be started: ")
        self.assertNotIn("no transport works", out)

    def test_needs_as_json(self):
        done = harness.run("doctor", "--needs", "--json")
        needs = json.loads(done.stdout)
        shm = next(rung for rung in needs["rungs"] if rung["rung"] == "shm")
        self.assertEqual(needs["page_bytes"], PAGE)
        self.assertEqual(shm["dev_shm_bytes"],
                         {str(ranks): shm_bytes(ranks) for ranks in (2, 3, 4, 8, 16)})
        newest = next(one for one in needs["nccl"] if one["version"] == "2.28.9")
        self.assertEqual((newest["shm_bytes"]["2"], newest["socket_bytes"]["2"]),
                         (2 * (whole_pages(9637892) + whole_pages(4100)), 2 * whole_pages(34210180)))

    def test_an_nccl_version_comes_with_its_settings(self):
        done = harness.run("doctor", "--nccl-version", "2.27", "--json")
        plan = json.loads(done.stdout)
        lean = next(rung for rung in plan["rungs"] if rung["rung"] == "nccl-shm-lean")
        self.assertIn("NCCL_BUFFSIZE=1048576", lean["settings"])
        text = harness.run("doctor", "--nccl-version", "2.27").stdout.decode()
        self.assertRegex(text.splitlines()[0], r"^OK: 2 ranks of NCCL 2\.27\.7 \(2\.27: its last known patch\) fit into /dev/shm")
        for line in ("NCCL_NVLS_ENABLE=0", "NCCL_MAX_CTAS=2", "NCCL_SOCKET_IFNAME='=lo'"):
            self.assertIn(f"  export {line}\n", text)

    def test_the_settings_of_a_plan_are_those_that_it_counts_with(self):
        """Also a variable of the user's that takes the place of one of ours."""
        plan = ("doctor", "--nccl-version", "2.28.9", "--json")
        with mock.patch.dict(os.environ, NCCL_MAX_NCHANNELS="1", NCCL_BUFFSIZE="2097152"):
            first = json.loads(harness.run(*plan).stdout)
        shm = next(rung for rung in first["rungs"] if rung["rung"] == "nccl-shm")
        self.assertIn("NCCL_MAX_NCHANNELS=1", shm["settings"])
        self.assertIn("NCCL_BUFFSIZE=2097152", shm["settings"])
        self.assertFalse([line for line in shm["settings"] if line.endswith("=")])
        with mock.patch.dict(os.environ, dict(line.split("=", 1) for line in shm["settings"])):
            again = json.loads(harness.run(*plan).stdout)
        same = next(rung for rung in again["rungs"] if rung["rung"] == "nccl-shm")
        self.assertEqual(same["dev_shm_bytes"], shm["dev_shm_bytes"])

    def test_the_plan_says_each_reason_once(self):
        with mock.patch.dict(os.environ, NCCL_SHM_DISABLE="1"):
            done = harness.start("doctor", "--nccl-version", "2.27")
            out = done.communicate()[0].decode()
        self.assertEqual(done.returncode, 1, out)
        verdict = re.match(r"NO: 2 ranks of NCCL \S+ \([^)]*\) cannot use nccl-shm: (.*)\n", out)
        self.assertIsNotNone(verdict, out)
        self.assertEqual(out.count(verdict[1]), 1, out)
        self.assertRegex(out, r"\n  refused nccl-shm: .*(\n      .*)*\n      for the same reason as "
                              r"above\n")
        self.assertEqual(out.splitlines()[1:3], [PEERS, "2 ranks unless -tp says otherwise"])

    def test_the_verb_of_a_plan_agrees_with_the_ranks(self):
        for version, flags, verdict in (
                ("2.27", ("-tp", 1), r"OK: 1 rank of NCCL 2\.27\.7 \(2\.27: its last known patch\) fits into /dev/shm, "),
                ("2.99", ("-tp", 1), r"UNKNOWN: whether 1 rank of NCCL 2\.99\S* fits into /dev/shm, "),
                ("2.27", ("-tp", 1, "--communicators", 2),
                 r"OK: 2 communicators of 1 rank of NCCL 2\.27\.7 \(2\.27: its last known patch\) fit into /dev/shm, ")):
            with self.subTest(version=version, flags=flags):
                done = harness.run("doctor", "--nccl-version", version, *flags,
                                   code=int(verdict.startswith("UNKNOWN")))
                self.assertRegex(done.stdout.decode(), r"\A" + verdict)

    def test_a_plan_says_what_keeps_ranks_from_using_peers(self):
        with mock.patch.dict(os.environ, NCCL_P2P_DISABLE="1"):
            out = inside("size=1m", doctor("--nccl-version", "2.27") + " || true").stdout
        self.assertRegex(out, r"\ANO: 2 ranks of NCCL 2\.27\.7 \(2\.27: its last known patch\) do not fit .*\n"
                              r"2 ranks unless -tp says otherwise\n  refused nccl-p2p: .*"
                              r"(\n      .*)*\n      NCCL_P2P_DISABLE=1 of the environment forbids nccl-p2p "
                              r"under Shoal's settings \(Shoal sets it to 0\): unset NCCL_P2P_DISABLE there ")

    def test_where_only_lean_buffers_of_nccl_fit_their_settings_are_printed(self):
        plan = ("--nccl-version", "2.27", "-tp", 8)
        for mount, verdict, rung, line in (
                ("size=64m", "SLOWER: 8 ranks of NCCL 2.27.7 (2.27: its last known patch) fit only with the settings of "
                 "nccl-shm-lean into /dev/shm, which has ", "nccl-shm-lean",
                 "export NCCL_BUFFSIZE=1048576"),
                ("size=8m", "NO: 8 ranks of NCCL 2.27.7 (2.27: its last known patch) do not fit into /dev/shm, which has ",
                 "nccl-shm", "export NCCL_NVLS_ENABLE=0")):
            with self.subTest(mount=mount):
                done = inside(mount, doctor(*plan))
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertTrue(done.stdout.startswith(verdict), done.stdout)
                self.assertEqual(done.stdout.splitlines()[1], PEERS)
                self.assertIn(f"\nthe figures of {rung} hold with these settings", done.stdout)
                self.assertIn(f"\n  {line}\n", done.stdout)
                self.assertEqual("NCCL_BUFFSIZE" in done.stdout, rung == "nccl-shm-lean")
                self.assertEqual("\neither leave /dev/shm as it is and export the settings of nccl-shm-lean "
                                 "below,\nor enlarge /dev/shm " in done.stdout, rung == "nccl-shm-lean")

    def test_the_log_shows_that_the_transport_is_proven_before_weights_are_loaded(self):
        done = harness.start("generate", harness.DEMO, "--prompt", "In", "--max-tokens", 2,
                             "-tp", 2, "--log-level", "info")
        err = done.communicate()[1].decode()
        steps = re.findall(r"start: ([a-z-]+) took (\d+\.\d+) s", err)
        self.assertEqual([name for name, _ in steps],
                         ["probe", "spawn", "open", "self-test", "load", "touch", "warm-up"], err)
        verified = re.search(r"transport shm for 2 ranks: .*verified in (\d+\.\d+) s", err)
        self.assertLess(verified.start(), err.index("start: load took"))
        # The verification alone, without what came after it. The rank measures it, and the front, which
        # may be late, the phases: it cannot end later than the last of them.
        phases = sum(float(seconds) for name, seconds in steps[:4])
        self.assertLessEqual(float(verified[1]), phases + 0.01)

    def test_facts_are_said(self):
        done = harness.start("doctor", "--json")
        facts = json.loads(done.communicate()[0])["facts"]
        self.assertTrue(facts["dev_shm"]["exists"])
        self.assertLess(facts["gather_ms"], 20000, "a probe without a deadline")


if __name__ == "__main__":
    harness.main()
