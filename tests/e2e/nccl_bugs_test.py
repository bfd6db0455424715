"""What doctor and a start say of NCCL's known bugs, the one size of /dev/shm for all that NCCL takes,
and the settings for other engines. The library is the stand-in of tests/fakes, which says that it is
of any version.
"""
import json
import os
import subprocess
import unittest
import unittest.mock

import harness
from doctor_test import doctor, inside, namespaces_work
from nccl_test import CONNECTION, DEVICE, PROMPT, Place, shoal, use_of
from pages import PAGE, whole_pages

ORDER = ("--transport", "nccl-p2p,nccl-socket,tcp")
COUNTED = "; its pages count against resources.limits.memory"


def documents(*flags) -> dict:
    out, err = harness.start("doctor", *flags, "--json").communicate()
    return json.loads(out)


def text(*flags) -> str:
    return harness.start("doctor", *flags).communicate()[0].decode()


def sources(bugs: list[dict]) -> set[str]:
    return {bug["source"] for bug in bugs}


class ForOtherEngines(harness.TestCase):
    def test_bugs_are_named_up_to_the_version_that_mends_them(self):
        for source, bad, good in (("llama.cpp#24489", "2.27.4", "2.27.5"),
                                  ("nccl#2198", "2.31.1", "2.31.2"),
                                  ("sglang#37768", "2.30.4", "2.30.7"),
                                  ("release notes 2.28.7", "2.28.3", "2.28.7"),
                                  ("nccl#2257", "2.30.7", "2.31.2")):
            with self.subTest(source):
                found = [[bug for bug in documents("--nccl-version", version)["known_bugs"]
                          if source in bug["source"]] for version in (bad, good)]
                self.assertEqual([len(bugs) for bugs in found], [1, 0])
                self.assertEqual(found[0][0]["first_good"], good)
                self.assertIn(f"move to {good}", text("--nccl-version", bad))

    def test_one_without_a_repair_says_what_does_without_it(self):
        [bug] = [bug for bug in documents("--nccl-version", "2.32.3")["known_bugs"]
                 if "nccl#2077" in bug["source"]]
        self.assertEqual((bug["first_bad"], bug["first_good"], bug["condition"], bug["avoid"]),
                         ("2.29.2", None, "nvls", "NCCL_NVLS_ENABLE=0"))
        self.assertRegex(text("--nccl-version", "2.32.3"),
                         r"\n  from 2\.29\.2 on: init fails with .*\n      NCCL_NVLS_ENABLE=0 above "
                         r"avoids it\n")

    def test_each_comes_with_its_condition_and_the_engines(self):
        [bug] = [bug for bug in documents("--nccl-version", "2.25.1")["known_bugs"]
                 if bug["severity"] == "refuse"]
        self.assertEqual((bug["condition"], bug["first_bad"], bug["rungs"]), ("threads", None, []))
        self.assertIn("llama.cpp", bug["engines"])
        printed = text("--nccl-version", "2.25.1")
        for line in ("\nknown bugs of NCCL 2.25.1:\n", "\n  before 2.27.5: an all-reduce reaches",
                     "only if ranks are threads of one process", "Shoal does not use this version",
                     "\n  move to 2.31.2: it repairs every bug above that has a repair. It brings these "
                     "of its own:\n"):
            self.assertIn(line, printed)
        # What its ranks do not use they cannot meet anything of.
        self.assertNotIn("Shoal's ranks on", printed)


class Settings(harness.TestCase):
    def test_a_shell_reads_those_of_one_rung_as_they_are_and_json_has_all(self):
        odd = "it's $HOME ~ *"
        with unittest.mock.patch.dict(os.environ, NCCL_TOPO_FILE=odd):
            printed = text("--nccl-version", "2.27")
            rungs = documents("--nccl-version", "2.27")["rungs"]
        self.assertIn("\n  # only if these GPUs cannot reach each other's memory: it turns P2P (NVLink) off\n"
                      "  export NCCL_P2P_DISABLE=1\n", printed)
        self.assertIn("\nthe figures of nccl-shm hold with these settings, for any engine; "
                      "--json has those of the others:\n", printed)
        settings = {rung["rung"]: rung["settings"] for rung in rungs}
        self.assertEqual(len(settings), 4)
        for rung, lines in settings.items():
            self.assertIn(f"NCCL_TOPO_FILE={odd}", lines, rung)
        exports = [line for line in printed.splitlines() if line.startswith("  export ")]
        # On a line of its own, because zsh takes no comment behind a command that somebody types.
        self.assertIn("\n  # \"=lo\" means exactly lo\n  export NCCL_SOCKET_IFNAME='=lo'\n", printed)
        done = subprocess.run(["/bin/sh", "-c", "\n".join([*exports, "env"])],
                              env={"PATH": os.environ["PATH"], "HOME": "/x"},
                              stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual({line for line in done.stdout.splitlines() if line.startswith("NCCL_")},
                         set(settings["nccl-shm"]))

    @unittest.skipUnless(namespaces_work(), "this kernel forbids mount namespaces here")
    def test_peers_that_are_left_on_do_not_change_whether_a_plan_fits(self):
        with unittest.mock.patch.dict(os.environ, NCCL_P2P_DISABLE="0"):
            out = inside("size=64m", doctor("--nccl-version", "2.27")).stdout
            small = inside("size=1m", doctor("--nccl-version", "2.27") + " || echo =$?").stdout
        self.assertRegex(out, r"\AOK: 2 ranks of NCCL .*\nnote: NCCL_P2P_DISABLE=0 of the environment: "
                              r"Shoal's own ranks need it unset or 1 for every transport but nccl-p2p; another engine uses "
                              r"P2P where its GPUs can, and needs no more of /dev/shm then\n")
        self.assertRegex(small, r"(?s)\ANO: 2 ranks of NCCL [^\n]* do not fit .*\nnote: .*\n=1\n\Z")


class OneSize(harness.TestCase):
    def test_bytes_per_communicator_and_consumer_add_up(self):
        # How many channels fit would depend on this machine.
        with unittest.mock.patch.dict(os.environ, NCCL_MAX_CTAS="1"):
            one, three = (documents("--nccl-version", "2.28.9", "-tp", 4, *more)
                          for more in ((), ("--communicators", 3)))
        self.assertEqual((one["communicators"], three["communicators"]), (1, 3))
        for alone, all_ in zip(one["rungs"], three["rungs"]):
            self.assertEqual(all_["dev_shm_bytes"], 3 * alone["dev_shm_bytes"])
            self.assertEqual(all_["dev_shm_bytes_per_communicator"], alone["dev_shm_bytes"])
            self.assertEqual(sum(c["bytes"] for c in all_["consumers"] if c["in_dev_shm"]),
                             all_["dev_shm_bytes"])
            self.assertEqual([(c["what"], c["bytes_per_communicator"]) for c in all_["consumers"]],
                             [(c["what"], c["bytes"]) for c in alone["consumers"]])
            self.assertEqual(all_["nccl"]["predicted_bytes"], alone["dev_shm_bytes"])
        # Sockets take the most: a pool for each of 4 ranks.
        pool = whole_pages(34210180)
        self.assertEqual(three["shm_size"]["bytes"], 3 * 4 * pool + 262144)
        self.assertEqual(three["shm_size"]["round"], {"docker": "512m", "kubernetes": "512Mi"})
        printed = text("--nccl-version", "2.28.9", "-tp", 4, "--communicators", 3)
        self.assertRegex(printed, r"^(OK|SLOWER|NO): 3 communicators of 4 ranks of NCCL 2\.28\.9 ")
        self.assertIn("\nsize of a new, empty /dev/shm that suffices for every transport of 3 communicators "
                      "of 4 ranks (with the 256 KiB of --shm-headroom):\n", printed)
        self.assertRegex(printed, rf"nccl-socket: {12 * pool} B .* for each of 3 communicators\n"
                         rf" +{4 * pool} B \(13\d\.\d MiB\) for each of 3 communicators  proxy-ops pool")
        for line in (f"docker: --shm-size={12 * pool + 262144}b  # or 512m",
                     f'kubernetes: sizeLimit: "{12 * pool + 262144}"  # bytes, or 512Mi{COUNTED}'):
            self.assertIn(f"\n  {line}\n", printed)

    @unittest.skipUnless(namespaces_work(), "this kernel forbids mount namespaces here")
    def test_the_size_closes_the_loop(self):
        for flags, all_fit in (
                (("--nccl-version", "2.28.9", "-tp", 2, "--communicators", 2),
                 lambda plan: all(rung["fits"] for rung in plan["rungs"])),
                (("-tp", 3, "--transport", "shm,shm-lean,tcp"),
                 lambda report: report["rung"] == "shm")):
            with self.subTest(flags):
                size = documents(*flags)["shm_size"]["bytes"]
                for mount, fits in ((size, True), (size - PAGE, False)):
                    done = inside(f"size={mount}", doctor(*flags, "--json") + " || [ $? = 1 ]")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(all_fit(json.loads(done.stdout)), fits, mount)

    def test_of_an_unknown_version_it_is_the_least(self):
        size = documents("--nccl-version", "2.99", "-tp", 2)["shm_size"]
        self.assertEqual(size["bound"], "at-least")
        self.assertIn(f'  docker: {size["docker"]}  # at least, or ',
                      text("--nccl-version", "2.99", "-tp", 2))

    def test_there_is_none_where_nothing_is_taken(self):
        self.assertIsNone(documents("--transport", "tcp")["shm_size"])
        self.assertNotIn("--shm-size", text("--transport", "tcp"))


class SeveralCommunicators(Place):
    def plan(self, mount: str, communicators: int) -> tuple[int, dict]:
        """What doctor says of this many communicators of 2 ranks: its exit code, the rungs by name."""
        done = self.inside(mount, shoal("doctor", "--nccl-version", "2.28.9", "-tp", 2, "--communicators",
                                        communicators, "--json"))
        rungs = {rung["rung"]: rung for rung in json.loads(done.stdout)["rungs"]}
        return done.returncode, rungs

    def test_the_channels_are_those_with_which_all_fit(self):
        each = 2 * CONNECTION  # of one channel of 2 ranks
        for communicators, channels in ((1, 2), (2, 1)):
            code, rungs = self.plan("size=64m", communicators)
            shm = rungs["nccl-shm"]
            self.assertEqual((code, shm["fits"], shm["nccl"]["predicted_channels"]),
                             (0, True, channels))
            self.assertEqual((shm["dev_shm_bytes"], shm["nccl"]["predicted_bytes"]),
                             (communicators * channels * each, channels * each))
            self.assertIn(f"NCCL_MAX_CTAS={channels}", shm["settings"])
            # One communicator of the stand-in takes its share under the settings of the plan.
            settings = dict(setting.split("=", 1) for setting in shm["settings"])
            report = self.report("size=64m", "-tp", 2, "--transport", "nccl-shm,tcp", code=0, **settings)
            use = use_of(report, "nccl-shm")
            self.assertEqual((use["channels"], use["used_bytes"]), (channels, channels * each))

    def test_where_one_fits_and_two_do_not_the_next_rung_is_told(self):
        each = 2 * CONNECTION
        mount = f"size={2 * each + 262144 - PAGE}"  # a page too little for two
        self.assertEqual([self.plan(mount, communicators)[0] for communicators in (1, 2)], [0, 1])
        rungs = self.plan(mount, 2)[1]
        self.assertEqual((rungs["nccl-shm"]["fits"], rungs["nccl-shm-lean"]["fits"]), (False, True))
        self.assertEqual(rungs["nccl-shm"]["dev_shm_bytes"], 2 * each)


class OfTheLibraryThatIsHere(Place):
    def test_all_are_reported_and_what_concerns_our_ranks_is_logged(self):
        report = self.report("size=64m", "-tp", 2, *ORDER, code=0, FAKE_NCCL_VERSION="2.27.5",
                             EMULATED_GPU_PEERS="all")
        bugs = {bug["condition"]: bug for bug in report["nccl_known_bugs"]}
        self.assertEqual(bugs["before-blackwell"]["rungs"], ["nccl-p2p", "nccl-socket"])
        self.assertEqual(bugs["windows"]["rungs"], [])
        self.assertEqual(report["nccl_known_bugs"][0]["condition"], "before-blackwell")
        generate = shoal("generate", harness.DEMO, *PROMPT, "-tp", 2, *DEVICE, *ORDER)
        logged = {version: self.inside("size=64m", generate, FAKE_NCCL_VERSION=version,
                                       EMULATED_GPU_PEERS="all") for version in ("2.27.5", "2.27.7")}
        for done in logged.values():
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(logged["2.27.5"].stderr, r"NCCL 2\.27\.5 of .*libfake_nccl\.so has a known "
                         r"bug: init fails .*; move to 2\.27\.7 ")
        self.assertEqual(logged["2.27.5"].stderr.count("known bug"), 1)
        self.assertNotIn("known bug", logged["2.27.7"].stderr)

    def test_a_library_that_is_refused_is_named_with_its_bugs(self):
        done = self.inside("size=64m", shoal("doctor", *DEVICE, "-tp", 2, *ORDER, "--json")
                           + " || [ $? = 1 ]", FAKE_NCCL_VERSION="2.25.1")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual((report["rung"], report["facts"]["gpu"]["nccl_version"]), ("tcp", 22501))
        self.assertEqual(report["nccl_known_bugs"][0]["severity"], "refuse")
        self.assertIn("2.25.1", report["refusals"][0]["reason"])
        self.assertRegex(done.stderr, r"NCCL 2\.25\.1 of .*libfake_nccl\.so is not used, because of "
                         r"a known bug: .*; move to 2\.27\.5 ")
        printed = self.inside("size=64m", shoal("doctor", *DEVICE, "-tp", 2, *ORDER)
                              + " || [ $? = 1 ]", FAKE_NCCL_VERSION="2.25.1").stdout
        self.assertIn("\nknown bugs of NCCL 2.25.1:\n", printed)

    def test_the_users_settings_decide_what_can_be_met(self):
        report = self.report("size=64m", "-tp", 2, NCCL_CUMEM_HOST_ENABLE=1)
        bugs = [bug for bug in report["nccl_known_bugs"] if bug["condition"] == "cumem-host"]
        self.assertEqual(len(bugs), 2)
        for bug, source in zip(bugs, ("nccl#1838", "nccl#2190")):
            self.assertIn(source, bug["source"])
            self.assertEqual((bug["rungs"], bug["first_good"], bug["avoid"]),
                             (["nccl-shm", "nccl-shm-lean"], None, "NCCL_CUMEM_HOST_ENABLE=0"))


if __name__ == "__main__":
    harness.main()
