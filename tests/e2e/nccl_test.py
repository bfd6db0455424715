"""The ladder for devices over stand-ins: the real program, a fake CUDA module and a fake NCCL
(tests/fakes).

The environments are mount namespaces with a real tmpfs on /dev/shm. NCCL's use of memory is added
up from its log, the predictions come from the program, and the numbers in this file are literals.
"""
import json
import os
import shlex
import signal
import subprocess
import unittest
from pathlib import Path

import harness
from pages import PAGE, whole_pages

FAKES = Path(harness.SHOAL).resolve().parent / "fakes"
MODULE, NCCL = FAKES / "libemulated_cuda_module.so", FAKES / "libfake_nccl.so"
DEVICE = ["--device", "cuda", "--cuda-module", str(MODULE), "--nccl-library", str(NCCL)]
NAMESPACE = ["unshare", "--mount", "--propagation", "private"] + \
    ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
PROMPT = ["--prompt", "In the beginning", "--max-tokens", "12", "--temperature", "0"]
MIB = 1 << 20

# A connection of one channel and direction, in whole pages of /dev/shm, and one with lean buffers:
# 9650176 and 1654784 B where a page has 4 KiB. Without peer access a ring of N ranks has N of them
# per channel. 256 KiB are left free for other programs.
CONNECTION = whole_pages(9637892) + whole_pages(4100)
LEAN = whole_pages(1642500) + whole_pages(4100)
EXPECTED = {
    64: {2: ("nccl-shm", 2 * 2 * CONNECTION), 3: ("nccl-shm", 3 * 2 * CONNECTION),
         4: ("nccl-shm", 4 * CONNECTION), 8: ("nccl-shm-lean", 8 * LEAN)},
    16: {2: ("nccl-shm-lean", 2 * LEAN), 3: ("nccl-shm-lean", 3 * LEAN),
         4: ("nccl-shm-lean", 4 * LEAN), 8: ("nccl-shm-lean", 8 * LEAN)},
    4: {2: ("nccl-shm-lean", 2 * LEAN), 4: ("host-memfd", 0), 8: ("host-memfd", 0)},
    1: {ranks: ("host-memfd", 0) for ranks in (2, 3, 4, 8)},
}


def namespaces_work() -> bool:
    probe = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "-o",
                            "size=4k", "tmpfs", "/dev/shm"], capture_output=True)
    return probe.returncode == 0


def environment(**variables) -> dict[str, str]:
    clean = {name: value for name, value in harness.environment().items()
             if not name.startswith(("NCCL_", "FAKE_"))}
    return {**clean, **{name: str(value) for name, value in variables.items()}}


def shoal(*words) -> str:
    return shlex.join([harness.SHOAL, *map(str, words)])


def use_of(report: dict, rung: str) -> dict:
    return next(use for use in report["nccl"] if use["rung"] == rung)


@unittest.skipUnless(namespaces_work(), "this kernel forbids mount namespaces here")
class Place(harness.TestCase):
    def inside(self, mount: str, script: str, **variables) -> subprocess.CompletedProcess:
        """Runs the script with sh, with a tmpfs of these options at /dev/shm."""
        return subprocess.run([*NAMESPACE, "sh", "-ec",
                               f"mount -t tmpfs -o {mount} tmpfs /dev/shm\n{script}"],
                              capture_output=True, text=True, errors="replace", timeout=4 * harness.GUARD,
                              env=environment(**variables))

    def report(self, mount: str, *flags, code: int = 1, before: str = ":", **variables) -> dict:
        """Runs doctor and returns its report. Nothing may be left in /dev/shm."""
        done = self.inside(mount,
                           f"{before}; ls -A /dev/shm > /tmp/shoal-names-$$; code=0; "
                           f"{shoal('doctor', *DEVICE, *flags, '--json')} || code=$?; "
                           "ls -A /dev/shm | cmp - /tmp/shoal-names-$$ >&2 || code=99; "
                           "rm /tmp/shoal-names-$$; exit $code", **variables)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout[:2000])
        return json.loads(done.stdout)


class Sizes(Place):
    def test_each_size_starts_on_the_predicted_rung_with_the_predicted_bytes(self):
        for size, by_ranks in EXPECTED.items():
            for ranks, (rung, bytes_) in by_ranks.items():
                with self.subTest(size=size, ranks=ranks):
                    report = self.report(f"size={size}m", "-tp", ranks)
                    self.assertEqual(report["rung"], rung, report["refusals"])
                    need = next(need for need in report["needs"] if need["rung"] == rung)
                    self.assertEqual(need["dev_shm_bytes"], bytes_)
                    if not rung.startswith("nccl"):
                        continue
                    use = use_of(report, rung)
                    self.assertEqual((use["predicted_bytes"], use["used_bytes"]), (bytes_, bytes_),
                                     use)
                    self.assertEqual(list(use["transports"]), ["SHM/direct"])
                    self.assertEqual(use["assumptions"], [])
                    self.assertTrue(use["version"].startswith("2.28.9"), use)

    def test_a_wrong_prediction_shows(self):
        use = use_of(self.report("size=64m", "-tp", 2, FAKE_NCCL_WRONG_BYTES=PAGE), "nccl-shm")
        self.assertEqual(use["used_bytes"] - use["predicted_bytes"], 2 * 2 * PAGE)

    def test_peers_take_nothing(self):
        report = self.report("size=1m", "-tp", 4, code=0, EMULATED_GPU_PEERS="all")
        use = use_of(report, "nccl-p2p")
        self.assertEqual((report["rung"], use["used_bytes"], use["transports"]),
                         ("nccl-p2p", 0, {"P2P/CUMEM": use["channels"] * 4}))
        report = self.report("size=1m", "-tp", 3, "--transport", "cuda-ipc,host-memfd", code=0,
                             EMULATED_GPU_PEERS="all")
        self.assertEqual(report["rung"], "cuda-ipc")

    def test_silent_corruption_vetoes_peer_access(self):
        report = self.report("size=1m", "-tp", 2, EMULATED_GPU_PEERS="all", EMULATED_GPU_PEER_WRONG="*-*")
        self.assertEqual(report["rung"], "host-memfd")
        self.assertEqual([(r["rung"], r["code"]) for r in report["refusals"][:2]],
                         [("nccl-p2p", "DATA_LOSS"), ("cuda-ipc", "DATA_LOSS")])

    def test_the_librarys_own_sums_need_a_tree_too(self):
        report = self.report("size=256m", "-tp", 2, "--reproducible", "off")
        use = use_of(report, "nccl-shm")
        self.assertEqual((report["rung"], use["predicted_bytes"], use["used_bytes"]),
                         ("nccl-shm", 4 * CONNECTION, 4 * CONNECTION))
        report = self.report("size=512m", "-tp", 4, "--reproducible", "off")
        use = use_of(report, "nccl-shm")
        self.assertLessEqual(use["used_bytes"], use["predicted_bytes"])
        self.assertTrue(use["assumptions"])


class Seeds(Place):
    """Failures of NCCL in small environments that users have reported.

    Each must be refused with its reason and a remedy, and the program must start.
    """

    def test_9637888_bytes_at_four_ranks(self):
        # Two channels, as NCCL's search finds them. Their 8 connections do not fit into 64 MiB.
        two = {"NCCL_MIN_NCHANNELS": 2, "NCCL_MAX_NCHANNELS": 2}
        report = self.report("size=64m", "-tp", 4, **two)
        self.assertEqual(report["rung"], "nccl-shm-lean")
        refusal = next(r for r in report["refusals"] if r["rung"] == "nccl-shm")
        self.assertEqual(refusal["phase"], "budget")
        self.assertIn(str(8 * CONNECTION), refusal["reason"])
        self.assertTrue(refusal["shared_memory"])
        remedy = next(r for r in report["remedies"] if r["kind"] == "mount")
        self.assertIn(f"size={8 * CONNECTION + 256 * 1024}", remedy["text"])
        # Without these settings, the ladder uses as many channels as there is room for.
        self.assertEqual(self.report("size=64m", "-tp", 4)["rung"], "nccl-shm")

    def test_a_segment_that_cannot_be_had_after_all(self):
        # The segments are larger than any formula predicts, so NCCL fails in its first collective
        # while its peers spin.
        report = self.report("size=64m", "-tp", 2, "--startup-timeout", 20,
                             FAKE_NCCL_WRONG_BYTES=40 * MIB)
        self.assertEqual(report["rung"], "host-memfd", report["refusals"])
        refusal = next(r for r in report["refusals"] if r["rung"] == "nccl-shm")
        self.assertEqual((refusal["phase"], refusal["code"]),
                         ("open", "RESOURCE_EXHAUSTED"), refusal)
        self.assertIn("No space left on device", refusal["reason"])
        self.assertIn("No space left on device", use_of(report, "nccl-shm")["last_error"])

    def test_a_file_size_limit_that_each_file_is_within(self):
        # 4 segments of 9637892 B would not fit into one file of 20 MiB (sh counts in 512 B), but
        # each has its own file.
        report = self.report("size=256m", "-tp", 2, before="ulimit -f 40960")
        use = use_of(report, "nccl-shm")
        self.assertEqual((report["rung"], use["used_bytes"]),
                         ("nccl-shm", 4 * CONNECTION), report["refusals"])
        report = self.report("size=256m", "-tp", 2, before="ulimit -f 16384")
        refusal = next(r for r in report["refusals"] if r["rung"] == "nccl-shm")
        self.assertEqual((refusal["phase"], report["rung"]), ("budget", "nccl-shm-lean"), refusal)
        self.assertIn(f"8388608 B (8.0 MiB) and needs {whole_pages(9637892)} B",
                      next(r for r in report["remedies"] if r["kind"] == "ulimit")["title"])

    def test_33030532_bytes_over_sockets(self):
        order = ("--transport", "nccl-socket,tcp")
        pools = 2 * whole_pages(33030532)
        report = self.report("size=64m", "-tp", 2, *order, code=0, FAKE_NCCL_VERSION="2.27.7")
        use = use_of(report, "nccl-socket")
        self.assertEqual((report["rung"], use["predicted_bytes"], use["used_bytes"]),
                         ("nccl-socket", pools, pools))
        # With one MiB in use, and with the pool of 2.28, it does not fit.
        report = self.report("size=64m", "-tp", 2, *order,
                             before="head -c 1048576 /dev/zero > /dev/shm/other",
                             FAKE_NCCL_VERSION="2.27.7")
        self.assertEqual(report["rung"], "tcp")
        self.assertIn(str(pools), report["refusals"][0]["reason"])
        self.assertIn("proxy-ops pool", json.dumps(report["needs"][0]["dev_shm"]))
        remedy = next(r for r in report["remedies"] if r["kind"] == "mount")
        self.assertIn(f"size={pools + MIB + 256 * 1024}", remedy["text"])
        report = self.report("size=64m", "-tp", 2, *order)
        self.assertIn(str(2 * whole_pages(34210180)), report["refusals"][0]["reason"])

    def test_a_pods_64_mebibytes(self):
        report = self.report("size=64m", "-tp", 8, KUBERNETES_SERVICE_HOST="10.0.0.1")
        self.assertEqual(report["rung"], "nccl-shm-lean")
        self.assertEqual(report["facts"]["container"], "kubernetes")
        remedy = next(r for r in report["remedies"] if r["kind"] == "kubernetes")
        self.assertIn(f'sizeLimit: "{8 * CONNECTION + 256 * 1024}"', remedy["text"])

    def test_an_init_that_hangs(self):
        report = self.report("size=64m", "-tp", 2, "--startup-timeout", 20, FAKE_NCCL_HANG="init")
        self.assertEqual(report["rung"], "host-memfd")
        refusal = next(r for r in report["refusals"] if r["rung"] == "nccl-shm")
        self.assertEqual((refusal["phase"], refusal["code"]),
                         ("open", "DEADLINE_EXCEEDED"), refusal)
        for rank in (0, 1):
            self.assertRegex(refusal["reason"],
                             rf"rank {rank} \(open, ncclCommInitRankConfig has not ended after \d+ "
                             r"ms; NCCL's last error: socketFinalizeAccept: wrong magic [^)]*\) waits")

    def test_permissions(self):
        report = self.report("size=64m,ro", "-tp", 2)
        self.assertEqual(report["rung"], "host-memfd")
        refusal = next(r for r in report["refusals"] if r["rung"] == "nccl-shm")
        self.assertIn(refusal["phase"], ("budget", "reserve"))
        self.assertRegex(refusal["reason"], "[Rr]ead-only")
        remedy = next(r for r in report["remedies"] if r["kind"] == "mount")
        done = self.inside("size=64m,ro",
                           f"{remedy['text']}\n{shoal('doctor', *DEVICE, '-tp', 2, '--json')} || "
                           "[ $? = 1 ]")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["rung"], "nccl-shm")


    def test_ranks_of_one_gpu_have_sockets_alone(self):
        order = ("--ranks-per-gpu", 2, "--transport", "nccl-p2p,nccl-shm,nccl-socket,tcp")
        report = self.report("size=128m", "-tp", 2, *order, EMULATED_GPU_DEVICES=1)
        use = use_of(report, "nccl-socket")
        self.assertEqual((report["rung"], use["used_bytes"], use["predicted_bytes"]),
                         ("nccl-socket", 2 * whole_pages(34210180), 2 * whole_pages(34210180)))
        self.assertIn("share a GPU", report["refusals"][0]["reason"])


class Settings(Place):
    def test_the_users_settings_win_and_are_told(self):
        report = self.report("size=64m", "-tp", 2, NCCL_BUFFSIZE=1048576, NCCL_DEBUG="WARN")
        use = use_of(report, "nccl-shm")
        self.assertEqual(use["predicted_bytes"], 2 * 2 * (CONNECTION - 3 * MIB))
        self.assertFalse(use["logged"])
        outcome = {one["name"]: one for one in use["settings"]}
        self.assertEqual((outcome["NCCL_DEBUG"]["winner"], outcome["NCCL_DEBUG"]["value"]),
                         ("user's won", "WARN"))
        self.assertEqual(outcome["NCCL_CUMEM_HOST_ENABLE"]["winner"], "set")
        self.assertIn({"name": "NCCL_BUFFSIZE", "value": "1048576", "source": "the environment"},
                      use["user_settings"])

    def test_a_setting_that_forbids_a_rung(self):
        report = self.report("size=64m", "-tp", 2, NCCL_P2P_DISABLE=1, EMULATED_GPU_PEERS="all")
        self.assertEqual(report["rung"], "cuda-ipc")
        self.assertIn("NCCL_P2P_DISABLE=1 of the environment", report["refusals"][0]["reason"])

    def test_values_that_are_no_utf8(self):
        # os.environ represents the byte 0xff like this. JSON has no such byte.
        report = self.report("size=64m", "-tp", 2, NCCL_TOPO_FILE="/nowhere/\udcff")
        use = use_of(report, "nccl-shm")
        self.assertEqual(report["rung"], "nccl-shm")
        self.assertIn({"name": "NCCL_TOPO_FILE", "value": "/nowhere/\ufffd",
                       "source": "the environment"}, use["user_settings"])
        report = self.report("size=64m", "-tp", 2, NCCL_BUFFSIZE="1\udcff")
        refusal = next(r for r in report["refusals"] if r["rung"] == "nccl-shm")
        self.assertIn("1\ufffd", refusal["reason"])
        plan = self.inside("size=64m", shoal("doctor", "--device", "cuda", "--nccl-version", "2.27",
                                             "-tp", 2, "--json") + " || [ $? = 1 ]",
                           NCCL_TOPO_FILE="/nowhere/\udcff")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("/nowhere/\ufffd", json.dumps(json.loads(plan.stdout), ensure_ascii=False))

    def test_a_file_of_settings(self):
        conf = "/tmp/shoal-nccl-$$.conf"
        for line, wanted in (("NCCL_SHM_DISABLE=1", "conf:2 forbids nccl-shm"),
                             ("NCCL_COMM_BLOCKING=0", "=0 of .*conf:2 forbids nccl-shm"),
                             ("NCCL_BUFFSIZE=much", "conf:2")):
            with self.subTest(line=line):
                done = self.inside("size=64m",
                                   f"trap 'rm -f {conf}' EXIT; export NCCL_CONF_FILE={conf}; "
                                   f"printf '# mine\\n{line}\\n' > {conf}; "
                                   f"{shoal('doctor', *DEVICE, '--json')} || [ $? = 1 ]")
                self.assertEqual(done.returncode, 0, done.stderr)
                report = json.loads(done.stdout)
                self.assertEqual(report["rung"], "host-memfd")
                refusal = next(r for r in report["refusals"] if r["rung"] == "nccl-shm")
                self.assertRegex(refusal["reason"], wanted)


class Running(Place):
    def test_the_same_text_as_one_rank_on_the_cpu(self):
        alone = json.loads(harness.run("generate", harness.DEMO, *PROMPT, "--json").stdout)
        for size, ranks, rung in (("64m", 2, "nccl-shm"), ("1m", 3, "host-memfd")):
            with self.subTest(rung=rung):
                done = self.inside(f"size={size}", shoal("generate", harness.DEMO, *PROMPT,
                                                         "--json", "-tp", ranks, *DEVICE))
                self.assertEqual(done.returncode, 0, done.stderr)
                answer = json.loads(done.stdout)
                self.assertEqual(answer.pop("transport"), rung)
                self.assertEqual(answer, {name: value for name, value in alone.items()
                                          if name != "transport"})

    def test_a_rank_that_fails_leaves_nobody_and_nothing(self):
        # A rank that somebody else has stopped is not a fault of the transport, so the start fails.
        for fault, code, rung in (("1:self-test:fail", 1, "nccl-shm-lean"),
                                  ("0:open:fail", 1, "nccl-shm-lean"),
                                  ("1:self-test:stop", harness.UNAVAILABLE, None)):
            with self.subTest(fault=fault):
                report = self.report("size=64m", "-tp", 3, "--startup-timeout",
                                     24, code=code, SHOAL_TEST_FAULT=fault)
                self.assertEqual(report["rung"], rung)

    def test_a_killed_rank_is_started_again_over_nccl(self):
        # Use the host's own /dev/shm, because the lean rung fits almost everywhere.
        server = self.serve(harness.DEMO, "-tp", 2, *DEVICE, "--transport", "nccl-shm-lean,tcp")
        self.assertEqual(server.wait_ready()["transport"], "nccl-shm-lean")
        os.kill(server.workers(2)[1], signal.SIGKILL)
        harness.wait_until(lambda: "starting the ranks again" in server.err.text(),
                           "the answer to a kill")
        out, err = server.client("--prompt", "In", "--max-tokens", "4").communicate()
        self.assertTrue(out, err)
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())

    def test_a_front_that_leaves_at_once_leaves_no_file_of_nccl(self):
        # NCCL's pools for sockets keep their names for as long as the ranks live.
        server = self.serve(harness.DEMO, "-tp", 2, *DEVICE, "--transport", "nccl-socket,tcp",
                            wrapper=("env", "SHOAL_TEST_FAULT=1:load:stop"))
        names = lambda: list(Path("/dev/shm").glob("nccl-*"))  # noqa: E731
        harness.wait_until(names, "NCCL's files")
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())
        self.assertEqual(names(), [])
        self.assertNotIn("SIGKILL", server.err.rest())

    def test_a_second_signal_leaves_no_file_of_nccl(self):
        server = self.serve(harness.DEMO, "-tp", 2, *DEVICE, "--transport", "nccl-socket,tcp",
                            wrapper=("env", "SHOAL_TEST_FAULT=1:load:stop"))
        names = lambda: list(Path("/dev/shm").glob("nccl-*"))  # noqa: E731
        harness.wait_until(names, "NCCL's files")
        for number in (signal.SIGTERM, signal.SIGINT):
            server.process.send_signal(number)
        self.assertIn(server.end(), (0, 128 + signal.SIGINT, 128 + signal.SIGTERM), server.err.text())
        self.assertEqual(names(), [])

    def test_what_nccl_would_need_without_a_gpu(self):
        done = self.inside("size=64m", shoal("doctor", "--device", "cuda", "--nccl-version", "2.27",
                                             "-tp", 8, "--json") + " || [ $? = 1 ]")
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads(done.stdout)
        self.assertEqual((plan["nccl_version"], plan["tp"], plan["fits"]), ("2.27.7", 8, False))
        needs = {line["rung"]: (line["dev_shm_bytes"], line["fits"]) for line in plan["rungs"]}
        self.assertEqual(needs,
                         {"nccl-p2p": (0, True), "nccl-shm": (8 * CONNECTION, False),
                          "nccl-shm-lean": (8 * LEAN, True),
                          "nccl-socket": (8 * whole_pages(33030532), False)})
        pools = 2 * whole_pages(34210180)
        text = self.inside("size=512m", shoal("doctor", "--device", "cuda", "--nccl-version",
                                              "2.28.9", "-tp", 2)).stdout
        self.assertRegex(text,
                         rf"fits +nccl-socket: {pools} B .65\.\d MiB.\n +{pools} B .65\.\d MiB. +"
                         r"proxy-ops pool for Socket: 2 files of 34210180 B \(32\.6 MiB\)")


if __name__ == "__main__":
    harness.main()
