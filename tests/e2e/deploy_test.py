"""What deploy/ promises of its files that no other test sees: Kubernetes would take the pods in a
namespace with the strictest of the PodSecurity standards, "restricted", and the check of /dev/shm
finds out there whether it is large enough.

package_test.py starts what the systemd unit and the container image start.
"""
import errno
import json
import os
import platform
import re
import runpy
import subprocess
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import denied
import harness
import pages
from doctor_test import NAMESPACE, namespaces_work

try:
    import yaml
except ImportError:
    yaml = None

# What the standard allows: https://kubernetes.io/docs/concepts/security/pod-security-standards
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
           "projected", "secret"}
CAPABILITIES = {"NET_BIND_SERVICE"}
SECCOMP = {"RuntimeDefault", "Localhost"}


def violations(pod: dict) -> list[str]:
    """What "restricted" forbids in the spec of a pod."""
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    common = pod.get("securityContext", {})
    found += ["sysctls"] if common.get("sysctls") else []
    for volume in pod.get("volumes", []):
        found += sorted(f"volume {kind}" for kind in volume.keys() - VOLUMES - {"name"})
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = container.get("securityContext", {})
        # A container gets from the pod every setting that it does not have itself.
        context = {**common, **own}
        capabilities = own.get("capabilities", {})
        checks = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities.drop": "ALL" in capabilities.get("drop", []),
            "capabilities.add": CAPABILITIES.issuperset(capabilities.get("add", [])),
            "runAsNonRoot": context.get("runAsNonRoot") is True,
            "runAsUser": context.get("runAsUser") != 0,
            "seccompProfile": context.get("seccompProfile", {}).get("type") in SECCOMP,
            "procMount": own.get("procMount", "Default") == "Default",
            "hostPort": not any("hostPort" in port for port in container.get("ports", [])),
        }
        found += [name for name, ok in checks.items() if not ok]
    return found


def pods_of(file: str) -> list[dict]:
    """The specs of the pods that a file makes."""
    documents = yaml.safe_load_all((harness.ROOT / "deploy" / file).read_text())
    return [document["spec"]["template"]["spec"] for document in documents
            if document["kind"] in ("Deployment", "Job")]


def bytes_of(quantity: str) -> int:
    """What Kubernetes reads in a quantity of memory: bytes, or whole Mi or Gi."""
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi|)", quantity).groups()
    return int(number) << {"": 0, "Mi": 20, "Gi": 30}[unit]


class Unit(unittest.TestCase):
    """What the systemd unit sets by itself is only what nobody else has set."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.unit = (harness.ROOT / "deploy" / "shoal.service").read_text()
        # The file of the unit, as if it were installed.
        self.installed = harness.ROOT / "deploy" / "demo.yaml"

    def own(self, text: str) -> Path:
        file = self.folder / "own.yaml"
        file.write_text(text)
        return file

    def served(self, *more: str, **variables: str) -> tuple[str, str]:
        """The model and the number of ranks, with these flags and these lines in
        /etc/default/shoal."""
        environment = dict(re.findall(r"(?m)^Environment=(\w+)=(.*)$", self.unit))
        self.assertEqual(list(environment), ["SHOAL_CONFIG"])
        environment = {"SHOAL_CONFIG": str(self.installed), **variables}
        program, *words = re.search(r"(?m)^ExecStart=(.*)$", self.unit)[1].split()
        self.assertEqual(program, "/usr/bin/shoal")
        with unittest.mock.patch.dict(os.environ, environment):
            shown = json.loads(harness.run(*words, *more, "--print-config", "--json").stdout)
        return shown["model"]["value"], str(shown["tensor-parallel-size"]["value"])

    def test_alone_it_serves_the_demo_model_that_the_package_installs(self):
        package = runpy.run_path(str(harness.ROOT / "scripts" / "package"))
        place = re.search(r"(?m)^Environment=SHOAL_CONFIG=/usr/(.*)$", self.unit)[1]
        self.assertEqual(package["DEB_COPIES"]["deploy/demo.yaml"], place)
        model, ranks = self.served()
        self.assertEqual((model, ranks), ("/usr/" + package["COPIES"]["models/demo"], "2"))

    def test_a_variable_wins_by_whichever_name_of_its_flag(self):
        demo, _ = self.served()
        self.assertEqual(self.served(SHOAL_TP="3"), (demo, "3"))
        self.assertEqual(self.served(SHOAL_TENSOR_PARALLEL_SIZE="4"), (demo, "4"))
        self.assertEqual(self.served(SHOAL_MODEL="/m"), ("/m", "2"))

    def test_a_file_of_ones_own_wins(self):
        own = self.own("model: /mine\ntensor-parallel-size: 5\n")
        self.assertEqual(self.served(SHOAL_CONFIG=str(own)), ("/mine", "5"))
        self.assertEqual(self.served("--config", str(own)), ("/mine", "5"))
        self.assertEqual(self.served(SHOAL_CONFIG=str(own), SHOAL_TP="6"), ("/mine", "6"))


class Image(unittest.TestCase):
    """The step of the Dockerfile that installs the package, run by this machine's shell. Only what
    would change the machine is a stand-in, which says how it was called."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "packages").mkdir()
        for name, answer in (("dpkg", 'if [ "$1" = --print-architecture ]; then echo amd64; '
                                      'else echo "dpkg $*"; test -f "$2"; fi'),
                             ("useradd", 'echo "useradd $*"')):
            tool = self.folder / name
            tool.write_text(f"#!/bin/sh\n{answer}\n")
            tool.chmod(0o755)
        self.text = (harness.ROOT / "deploy" / "Dockerfile").read_text()

    def install(self, *packages: str, version: str = "") -> tuple[int, str, str]:
        for package in packages:
            (self.folder / "packages" / package).touch()
        step = re.search(r"(?m)^RUN --mount=\S+ ((?:.*\\\n)+.*)$", self.text)[1]
        step = step.replace("\\\n", "").replace("/packages/", f"{self.folder}/packages/")
        version = version or re.search(r"(?m)^ARG VERSION=(.+)$", self.text)[1]
        done = subprocess.run(["/bin/sh", "-c", step], capture_output=True, text=True,
                              env={"PATH": f"{self.folder}:/usr/bin:/bin", "VERSION": version})
        return done.returncode, done.stdout, done.stderr

    def installed(self, package: str) -> tuple[int, str, str]:
        return (0, f"dpkg -i {self.folder}/packages/{package}\n"
                   "useradd --system --no-create-home shoal\n", "")

    def test_the_only_package_of_the_machine_is_installed(self):
        self.assertEqual(self.install("shoal_0.1.0_amd64.deb", "shoal_0.1.0_arm64.deb"),
                         self.installed("shoal_0.1.0_amd64.deb"))

    def test_of_several_none_is_guessed(self):
        packages = ("shoal_0.1.0_amd64.deb", "shoal_0.2.0_amd64.deb")
        code, out, err = self.install(*packages)
        self.assertEqual((code, out), (1, ""))
        self.assertIn("--build-arg VERSION=", err)
        for package in packages:
            self.assertIn(package, err)
        self.assertEqual(self.install(version="0.1.0"), self.installed(packages[0]))

    def test_none_is_an_error(self):
        code, out, _ = self.install("shoal_0.1.0_arm64.deb")
        self.assertNotEqual(code, 0)
        self.assertNotIn("useradd", out)


class Kubernetes(unittest.TestCase):
    def setUp(self):
        self.pods = pods_of("kubernetes.yaml")

    def test_the_pods_run_the_image_that_the_dockerfile_names(self):
        """Without a tag, or with another policy, a node asks a registry for what it has."""
        version = re.search(r"project\(shoal VERSION (\S+)",
                            (harness.ROOT / "CMakeLists.txt").read_text())[1]
        image = f"shoal:{version}"
        for file in ("kubernetes.yaml", "shm-check.yaml"):
            [container] = pods_of(file)[0]["containers"]
            self.assertEqual((container["image"], container["imagePullPolicy"]),
                             (image, "IfNotPresent"), file)
            self.assertIn(f"kind load docker-image {image}\n",
                          (harness.ROOT / "deploy" / file).read_text())
        # The Dockerfile begins with the commands, which both pages have too.
        build, run, rest = [line[2:] for line in (harness.ROOT / "deploy" / "Dockerfile")
                            .read_text().split("\n")[:3]]
        self.assertIn(f" -t {image} ", build)
        self.assertIn(f" {image} ", run)
        for page in ("README.md", "deploy/README.md"):
            self.assertIn(f"\n{build}\n{run}\n{rest}\n", (harness.ROOT / page).read_text(), page)

    def test_the_pods_are_restricted(self):
        for file in ("kubernetes.yaml", "shm-check.yaml"):
            pods = pods_of(file)
            self.assertEqual(len(pods), 1, file)
            self.assertEqual(violations(pods[0]), [], file)

    def test_the_memory_limit_covers_dev_shm_and_the_processes(self):
        for file in ("kubernetes.yaml", "shm-check.yaml"):
            with self.subTest(file):
                [pod] = pods_of(file)
                [container] = pod["containers"]
                [volume] = pod["volumes"]
                # Pasting the remedy for a pod then changes this volume, and adds none on its path.
                self.assertEqual(volume["name"], "dshm")
                self.assertEqual(container["volumeMounts"],
                                 [{"name": "dshm", "mountPath": "/dev/shm"}])
                resources = container["resources"]
                self.assertEqual(resources["requests"], resources["limits"])
                room = (bytes_of(resources["limits"]["memory"])
                        - bytes_of(volume["emptyDir"]["sizeLimit"]))
                self.assertGreaterEqual(room, 512 << 20)

    def test_a_server_that_drains_is_not_taken_for_dead(self):
        """Readiness asks for what turns red then, and liveness for what stays green, which
        http_ends_test.py and tests/server/grpc/grpc_lifecycle_test.cc see."""
        [container] = self.pods[0]["containers"]
        asked = [container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")]
        self.assertEqual(asked, ["/health", "/health/live"])
        grpc_port = next(port["containerPort"] for port in container["ports"] if port["name"] == "grpc")
        self.assertIn(f"grpc: {{ port: {grpc_port}, service: liveness }}",
                      (harness.ROOT / "deploy" / "kubernetes.yaml").read_text())

    def test_the_rules_see_what_is_missing(self):
        [pod] = self.pods
        [container] = pod["containers"]
        container["securityContext"] = {"capabilities": {"add": ["SYS_PTRACE"]}}
        container["ports"][0]["hostPort"] = 80
        pod.update(securityContext={}, hostIPC=True)
        pod["volumes"].append({"name": "models", "hostPath": {"path": "/models"}})
        self.assertEqual(violations(pod), [
            "hostIPC", "volume hostPath", "allowPrivilegeEscalation", "capabilities.drop",
            "capabilities.add", "runAsNonRoot", "seccompProfile", "hostPort"])


# Starts "$@" with a /dev/shm of $1 bytes.
PLACE = """
mount -t tmpfs -o size="$1" tmpfs /dev/shm
shift
exec "$@"
"""


@unittest.skipIf(yaml is None, "this Python has no yaml (Debian: python3-yaml)")
@unittest.skipUnless(namespaces_work() and platform.machine() == "x86_64",
                     "a place like a pod's is made with namespaces and x86-64's seccomp filters")
class ShmCheck(harness.TestCase):
    def setUp(self):
        super().setUp()
        [pod] = pods_of("shm-check.yaml")
        [self.container] = pod["containers"]
        [volume] = pod["volumes"]
        self.assertEqual((volume["emptyDir"]["medium"], self.container["volumeMounts"]),
                         ("Memory", [{"name": volume["name"], "mountPath": "/dev/shm"}]))
        self.size = int(volume["emptyDir"]["sizeLimit"])

    def in_a_pod(self, size: int) -> subprocess.CompletedProcess:
        """Runs what the container runs, where no namespace can be made, with such a /dev/shm."""
        [variable] = self.container["env"]
        inside = ["python3", "-c", "import denied, os, sys\n"
                  f"denied.deny(denied.UNSHARE, {errno.EPERM})()\n"
                  "os.execvp(sys.argv[1], sys.argv[1:])", harness.SHOAL, *self.container["args"]]
        environment = {**harness.environment(), variable["name"]: variable["value"],
                       "PYTHONPATH": str(Path(denied.__file__).parent),
                       "PATH": f"{Path(harness.SHOAL).resolve().parent}:{os.environ['PATH']}"}
        return subprocess.run([*NAMESPACE, "sh", "-ec", PLACE, "sh", str(size), *inside],
                              env=environment, capture_output=True, text=True,
                              timeout=5 * harness.GUARD, stdin=subprocess.DEVNULL)

    @unittest.skipUnless(pages.of_documents(), "the manifest is for pages of 4 KiB")
    def test_it_asks_for_what_doctor_says(self):
        words = self.container["args"][-1].split("shoal ", 2)[1].split("\n")[0].split()
        plan = json.loads(harness.start(*words, "--json").communicate()[0])
        self.assertEqual(self.size, plan["shm_size"]["bytes"])
        [variable] = self.container["env"]
        self.assertEqual(int(variable["value"]), self.size)

    def test_it_completes_if_there_is_room(self):
        done = self.in_a_pod(self.size)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("1 passed, 0 failed", done.stdout)

    def test_it_fails_if_a_page_is_missing(self):
        done = self.in_a_pod(self.size - pages.PAGE)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("No space left on device", done.stderr)


if __name__ == "__main__":
    harness.main()
