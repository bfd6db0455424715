"""What is found out about devices, as far as a machine without a GPU can show it.

The tests run `--device cuda` over the emulated module of tests/emulator (its environment sets what it
pretends to be), over the real module without a driver, and without any module.
"""
import contextlib
import json
import os
import re
import shutil
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import harness
from emulated_gpu import gpu

FAKES = Path(harness.SHOAL).parent / "fakes"
EMULATED_MODULE = FAKES / "libemulated_cuda_module.so"
FAKE_NCCL = FAKES / "libfake_nccl.so"
REAL_MODULE = Path(harness.SHOAL).parent / "libshoal_cuda.so"
INSUFFICIENT = ("cudaErrorInsufficientDriver: "
                "CUDA driver version is insufficient for CUDA runtime version")
NO_DRIVER_HERE = (not os.path.exists("/proc/driver/nvidia/version")
                  and not os.path.exists("/dev/nvidiactl"))


def start_doctor(*flags, module=EMULATED_MODULE, nccl=FAKE_NCCL, transport="cuda-ipc,tcp", ranks=2,
                 nccl_version="2.28.9", **pretend):
    """Starts `shoal doctor --device cuda` with the variables EMULATED_GPU_<pretend> set."""
    environment = {f"EMULATED_GPU_{name.upper()}": str(value) for name, value in pretend.items()}
    with unittest.mock.patch.dict(os.environ, {**environment, "FAKE_NCCL_VERSION": nccl_version}):
        return harness.start("doctor", "--device", "cuda", "--cuda-module", module,
                             "--nccl-library", nccl, "-tp", ranks,
                             "--transport", transport, "--json", *flags)


def doctor(*flags, **arguments):
    """Runs doctor. Returns (exit code, report, text of stderr)."""
    process = start_doctor(*flags, **arguments)
    out, err = process.communicate(timeout=5 * harness.GUARD)
    return process.returncode, json.loads(out), err.decode()


def memories_of(pid: int) -> int:
    """How many pieces of emulated devices' memory the process has. 0 if it is gone."""
    found = 0
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            found += os.readlink(file).startswith("/memfd:emulated-gpu")
    return found


@contextlib.contextmanager
def program_elsewhere():
    """A folder that contains only a copy of the program. It exists while the context is open."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        shutil.copy2(harness.SHOAL, folder / "shoal")
        with unittest.mock.patch.object(harness, "SHOAL", str(folder / "shoal")):
            yield folder


class NoDevices(harness.TestCase):
    """Without a device for every rank no server starts, and doctor ends as it would, with the
    reason as the loader or CUDA reported it. That a transport needs no devices helps nobody.
    """

    def assert_impossible(self, said, **arguments):
        code, report, err = doctor(**arguments)
        self.assertEqual(code, harness.UNAVAILABLE, err)
        self.assertEqual((report["verdict"], report["rung"], report["refusals"]), ("none", None, []))
        for words in said:
            self.assertIn(words, report["failure"])
            self.assertIn(words, err)
        return report

    def test_module_absent(self):
        self.assert_impossible(["/nonexistent/m.so", "No such file", "--cuda-module"],
                               module="/nonexistent/m.so")

    def test_module_not_loadable(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(b"no library\n" * 100)
            file.flush()
            self.assert_impossible([file.name, "invalid ELF header"], module=file.name)

    def test_module_of_another_build(self):
        self.assert_impossible(["of build 9-old", "this program of"], build_id="9-old")

    def test_driver_absent(self):
        report = self.assert_impossible(["no NVIDIA driver is here; the CUDA module ", "580.65.06"],
                                        fail="cudaGetDeviceCount:35")
        # In CUDA's words it is only said in the facts.
        self.assertIn(INSUFFICIENT, report["facts"]["gpu"]["error"])
        self.assertNotIn(INSUFFICIENT, report["failure"])

    def test_driver_too_old(self):
        self.assert_impossible(["CUDA up to 12.8", "too old", "CUDA 13.0", "580.65.06"],
                               driver=12080)

    def test_no_device(self):
        self.assert_impossible(["no CUDA-capable device is detected"], devices=0)

    def test_no_code_for_the_device(self):
        self.assert_impossible(["compute capability 7.0", "80-virtual"], capability="7.0")

    def test_more_ranks_than_devices(self):
        self.assert_impossible(["2 ranks", "2 GPUs, 1 is here", "--ranks-per-gpu 2"], devices=1)

    def test_tensor_cores_that_sum_differently(self):
        self.assert_impossible(["sum differently", "--reproducible=off"], capability="9.0,8.6")
        code, report, err = doctor("--reproducible", "off", capability="9.0,8.6", peers="all",
                                   transport="cuda-ipc")
        self.assertEqual((code, report["rung"]), (0, "cuda-ipc"), err)

    def test_it_ends_as_a_server_does(self):
        codes, said = [], []
        with unittest.mock.patch.dict(os.environ, {"EMULATED_GPU_DEVICES": "0"}):
            for command in (("doctor",), ("doctor", harness.DEMO),
                            ("serve", harness.DEMO, "--port", 0, "--grpc-port", 0)):
                process = harness.start(*command, "--device", "cuda", "--cuda-module",
                                        EMULATED_MODULE, "-tp", 2)
                out, err = process.communicate(timeout=5 * harness.GUARD)
                codes.append(process.returncode)
                said.append((out + err).decode())
        self.assertEqual(codes, [harness.UNAVAILABLE] * 3, said)
        reason = said[-1].split("shoal: error: ")[1].splitlines()[-1]
        self.assertEqual([text.count(reason) for text in said], [1] * 3, said)

    @unittest.skipUnless(NO_DRIVER_HERE, "no driver, as in a container without GPUs")
    def test_a_server_logs_the_remedy_of_doctor(self):
        flags = ("--device", "cuda", "--cuda-module", EMULATED_MODULE, "-tp", 2)
        with unittest.mock.patch.dict(os.environ, KUBERNETES_SERVICE_HOST="10.96.0.1",
                                      EMULATED_GPU_FAIL="cudaGetDeviceCount:35"):
            out, err = harness.start("doctor", *flags, "--json").communicate(timeout=5 * harness.GUARD)
            titles = [remedy["title"] for remedy in json.loads(out)["remedies"]]
            self.assertEqual(len(titles), 1, err)
            for command in (("serve", harness.DEMO, "--port", 0, "--grpc-port", 0),
                            ("generate", harness.DEMO, "--prompt", "In")):
                process = harness.start(*command, *flags, "--log-format", "json")
                err = process.communicate(timeout=5 * harness.GUARD)[1]
                self.assertEqual(process.returncode, harness.UNAVAILABLE, err)
                lines = [json.loads(line) for line in err.splitlines()]
                said = [line["remedy"] for line in lines if line.get("event") == "start_remedy"]
                self.assertEqual((said, lines[-1]["event"]), (titles, "error"), err)

    @unittest.skipUnless(REAL_MODULE.exists() and NO_DRIVER_HERE, "the real module, and no driver")
    def test_the_real_module_without_a_driver(self):
        report = self.assert_impossible(["no NVIDIA driver is here; the CUDA module ", "580.65.06"],
                                        module=REAL_MODULE)
        gpu = report["facts"]["gpu"]
        self.assertEqual(gpu["error_at"], "facts")
        self.assertGreater(gpu["cuda_runtime"], 11000)
        self.assertTrue(gpu["module_architectures"])
        # A module next to the program is found without a flag.
        done = harness.start("doctor", "--device", "cuda", "--json")
        beside = json.loads(done.communicate(timeout=5 * harness.GUARD)[0])
        self.assertEqual(beside["facts"]["gpu"]["module_path"], str(REAL_MODULE))

    def test_none_beside_the_program(self):
        with program_elsewhere() as folder:
            done = harness.start("doctor", "--device", "cuda", "--json", cwd=REAL_MODULE.parent)
            out, err = done.communicate(timeout=5 * harness.GUARD)
        self.assertEqual(done.returncode, harness.UNAVAILABLE, err)
        # The module must not be taken from the working directory, although there may be one.
        self.assertIn(f"{folder}/libshoal_cuda.so", json.loads(out)["failure"])


class Refusals(harness.TestCase):
    """With devices a rung may still be refused. Each refusal gives its reason as the loader or CUDA
    reported it, ranks fall back to a transport that works, and nothing is left.
    """

    def assert_refused(self, said, **arguments):
        code, report, err = doctor(transport="nccl-p2p,tcp", peers="all", **arguments)
        self.assertEqual((code, report["rung"]), (1, "tcp"), err)
        first = report["refusals"][0]
        self.assertEqual((first["rung"], first["phase"]), ("nccl-p2p", "probe"), first)
        for words in said:
            self.assertIn(words, first["reason"])

    def test_nccl_absent(self):
        self.assert_refused(["libnosuchnccl.so", "cannot open shared object file",
                             " (looked in /", "2.27.5"],
                            nccl="libnosuchnccl.so")

    def test_nccl_too_old(self):
        self.assert_refused(["2.23.4", "2.27.5", "libfake_nccl.so"], nccl_version="2.23.4")

    def test_no_rung_at_all(self):
        code, report, err = doctor(transport="cuda-ipc", peers="none")
        self.assertEqual(code, harness.UNAVAILABLE)
        self.assertIsNone(report["rung"])
        self.assertIn(f"does not let {gpu(0)} reach the memory of {gpu(1)}", err)


class Peers(harness.TestCase):
    def test_corruption_vetoes_every_user_of_peer_access(self):
        for rung in ("cuda-ipc", "nccl-p2p"):
            code, report, err = doctor(transport=f"{rung},tcp", peers="all", peer_wrong="*-*")
            self.assertEqual((code, report["rung"]), (1, "tcp"), err)
            self.assertRegex(report["refusals"][0]["reason"],
                             rf"{re.escape(gpu(0))} and {re.escape(gpu(1))}: corrupt \d{{7}} bytes")
        verdict = report["facts"]["gpu"]["verdicts"][0]
        self.assertEqual((verdict["from"], verdict["to"]), (0, 1))
        self.assertRegex(verdict["verdict"], r"^corrupt \d{7} bytes$")

    def test_a_pair_that_hangs_is_named_in_time(self):
        # The start as a whole has more time than this test: only the pair's own time can end it.
        code, report, err = doctor("--startup-timeout", 10 * harness.GUARD, peers="all",
                                   peer_hang="1-0", ranks=3)
        self.assertEqual((code, report["rung"]), (1, "tcp"), err)
        self.assertIn(f"{gpu(1)} and {gpu(0)}: hung", report["refusals"][0]["reason"])
        verdicts = [(v["from"], v["to"], v["verdict"]) for v in report["facts"]["gpu"]["verdicts"]]
        self.assertEqual(verdicts, [(0, 1, "ok"), (0, 2, "ok"), (1, 0, "hung"), (1, 2, "not tried"),
                                    (2, 0, "not tried"), (2, 1, "not tried")])

    def test_nothing_is_left_where_the_front_is_killed_meanwhile(self):
        process = start_doctor(peers="all", peer_hang="0-1")
        # The pair's memory is there, and the kernel that comes next never ends.
        harness.wait_until(lambda: max(map(memories_of, harness.descendants(process.pid)),
                                       default=0) >= 2, "a process that tries the pair")
        process.kill()
        process.communicate()
        harness.wait_until(lambda: not harness.survivors(), "nothing left")

    def test_the_driver_forbids_it(self):
        _, report, _ = doctor(peers="none")
        self.assertIn(f"does not let {gpu(0)} reach the memory of {gpu(1)}",
                      report["refusals"][0]["reason"])


class OnDevices(harness.TestCase):
    def test_ranks_take_their_devices(self):
        code, report, err = doctor(transport="cuda-ipc", peers="all", ranks=3)
        self.assertEqual((code, report["rung"]), (0, "cuda-ipc"), err)
        code, report, err = doctor("--ranks-per-gpu", 4, transport="cuda-ipc", devices=1, ranks=4)
        self.assertEqual((code, report["rung"]), (0, "cuda-ipc"), err)

    def test_a_device_that_fails_later_is_a_refusal(self):
        code, report, err = doctor(peers="all", fail="cudaEventCreateWithFlags:719")
        self.assertEqual((code, report["rung"]), (1, "tcp"), err)
        # Either rank may be the first to fail: at its own event, or at the memory of the other.
        self.assertRegex(report["refusals"][0]["reason"],
                         "unspecified launch failure|invalid resource handle")
        self.assertEqual(report["refusals"][0]["phase"], "open")

    def test_a_device_without_memory_is_no_want_of_shared_memory(self):
        code, report, err = doctor("--on-shm-shortage", "fail",
                                   transport="host-memfd,tcp", fail="cudaMalloc:2")
        self.assertEqual((code, report["rung"]), (1, "tcp"), err)
        refusal = report["refusals"][0]
        self.assertIn("out of memory", refusal["reason"])
        self.assertEqual((refusal["code"], refusal["phase"], refusal["shared_memory"]),
                         ("RESOURCE_EXHAUSTED", "self-test", False))


class OnTheCpu(harness.TestCase):
    """A program that was not asked for devices must ignore a module next to it."""

    def test_module_present_absent_and_broken(self):
        answers = []
        for module in (None, REAL_MODULE if REAL_MODULE.exists() else EMULATED_MODULE, "broken"):
            with program_elsewhere() as folder:
                if module == "broken":
                    (folder / "libshoal_cuda.so").write_bytes(b"broken")
                elif module is not None:
                    shutil.copy2(module, folder / "libshoal_cuda.so")
                done = harness.run("generate", harness.DEMO, "--prompt", "In", "--max-tokens", 4,
                                   "-tp", 2, "--json")
            answers.append(done.stdout)
        self.assertEqual(len(set(answers)), 1, answers)


if __name__ == "__main__":
    harness.main()
