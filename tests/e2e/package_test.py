"""The packages of scripts/package must run on systems where nothing was compiled: package_test.py
FOLDER [TEST...]

FOLDER holds a .tar.gz, a .deb and a wheel. They are tried in an empty root (which has only the
libraries of glibc and g++), in a fresh virtual environment, with dpkg, and with scripts/demo.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock
import zipfile
from pathlib import Path

import harness

PACKAGES = Path(sys.argv[1])
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13)}
FROM_THE_SYSTEM = re.compile(r"(ld-linux-[\w-]+|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so\.\d+")
REQUEST = ("--prompt", "In the beginning", "--max-tokens", "8", "--seed", "5", "-tp", "2", "--json")


def package(pattern: str) -> Path:
    found = list(PACKAGES.glob(pattern))
    assert len(found) == 1, f"{PACKAGES}: {found} for {pattern}"
    return found[0]


def answer(text: bytes) -> list[int]:
    return json.loads(text)["token_ids"]


def expected():
    """The answer of the program from which the packages were made."""
    return answer(harness.run("generate", harness.DEMO, *REQUEST).stdout)


class PackageCase(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)

    def unpacked(self) -> Path:
        """The tree of the .tar.gz, unpacked by tar itself."""
        subprocess.run(["tar", "-xzf", package("*.tar.gz"), "-C", self.work], check=True)
        (tree,) = self.work.glob("shoal-*")
        return tree

    def call(self, *command, code=0, **popen) -> bytes:
        """What it prints. self.err is what it prints on stderr."""
        done = subprocess.run([str(word) for word in command],
                              capture_output=True, timeout=300, **popen)
        self.err = done.stderr.decode(errors="replace")
        self.assertEqual(done.returncode, code, (done.stdout + \
                         done.stderr).decode(errors="replace")[-2000:])
        return done.stdout


class Tree(PackageCase):
    def elf_files(self, tree: Path) -> list[Path]:
        return [file for file in tree.rglob("*") if file.is_file()
                and file.read_bytes()[:4] == b"\x7fELF"]

    def asked_versions(self, file: Path) -> set[str]:
        """The versions of glibc and g++ symbols without which a file cannot start."""
        text = self.call("readelf", "--version-info", "--wide", file).decode()
        needs = text.partition("Version needs section")[2]
        return set(re.findall(r"Name: ((?:GLIBC|GLIBCXX|CXXABI)_\S+)", needs))

    def test_no_symbol_is_too_new(self):
        tree = self.unpacked()
        files = self.elf_files(tree)
        self.assertGreater(len(files), 20)
        self.assertIn("GLIBC_2.34", self.asked_versions(tree / "bin" / "shoal"))
        for file in files:
            for name in self.asked_versions(file):
                library, _, version = name.partition("_")
                # A version without a number, such as GLIBC_ABI_DT_RELR, requires a newer loader.
                self.assertRegex(version, r"^[\d.]+$", file.name)
                self.assertLessEqual(tuple(map(int, version.split("."))),
                                     NEWEST[library], f"{file.name} needs {name}")

    def test_libraries_are_found_from_their_own_place(self):
        tree = self.unpacked()
        inside = {file.name for file in (tree / "lib" / "shoal").iterdir()}
        self.assertFalse([name for name in inside if FROM_THE_SYSTEM.match(name)
                          or re.match(r"lib(cuda|cudart|cublas\w*|nccl|nv\w+)\b", name)])
        for file in self.elf_files(tree):
            dynamic = self.call("readelf", "--dynamic", "--wide", file).decode()
            place = "$ORIGIN/../lib/shoal" if file.parent.name == "bin" else "$ORIGIN"
            self.assertEqual(re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic), [place],
                             file.name)
            for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
                self.assertTrue(needed in inside or FROM_THE_SYSTEM.fullmatch(needed),
                                f"{file.name} needs {needed}")

    def test_every_library_has_its_licence(self):
        tree = self.unpacked()
        licences = tree / "share" / "doc" / "shoal" / "licenses"
        named = {folder.name for folder in licences.iterdir()}
        for library in (tree / "lib" / "shoal").iterdir():
            stem = library.name.split(".so")[0].removeprefix("lib").split("_")[0].rstrip("+")
            stem = {"crypto": "ssl", "z": "zlib", "gpr": "grpc", "upb": "grpc", "address": "grpc",
                    "shoal": "cuda", "cares": "c-ares"}.get(stem, stem)
            self.assertTrue([name for name in named if stem in name], f"{library.name}: {named}")
        for text in licences.glob("*/copyright"):
            self.assertGreater(text.stat().st_size, 200, text)
            for common in re.findall(r"/usr/share/common-licenses/([\w.-]*\w)", text.read_text()):
                self.assertTrue((licences / "common" / common).exists(),
                                f"{text} points to {common}")
        self.assertTrue((tree / "share/doc/shoal/LICENSE").exists())

    def test_all_three_hold_the_same_files(self):
        with tarfile.open(package("*.tar.gz")) as archive:
            entries = archive.getmembers()
        self.assertEqual({(entry.uid, entry.gid) for entry in entries}, {(0, 0)})
        self.assertEqual(len({entry.mtime for entry in entries}),
                         1, "one date for all: the commit's")
        tar = {entry.name.partition("/")[2] for entry in entries if entry.isfile()}
        listed = subprocess.run(f"dpkg-deb --fsys-tarfile '{package('*.deb')}' | tar -t",
                                shell=True, check=True,
                                capture_output=True, text=True).stdout.split()
        deb = {name.removeprefix("./usr/").replace("vendor-completions", "site-functions")
               for name in listed if not name.endswith("/")}
        places = {"scripts": "bin/", "data": ""}
        wheel = {re.sub(r"^[^/]*\.data/(\w+)/", lambda match: places[match[1]], name)
                 if ".data/" in name else f"share/shoal/python/{name}"
                 for name in zipfile.ZipFile(package("*.whl")).namelist()
                 if ".dist-info/" not in name}
        self.assertEqual(deb - tar, {"lib/systemd/system/shoal.service", "share/shoal/demo.yaml"})
        self.assertEqual(tar - deb, set())
        self.assertEqual(wheel, tar)
        self.assertLessEqual(
            {f"share/shoal/models/demo/{file.name}" for file in harness.DEMO.iterdir()
             if file.is_file() and file.suffix != ".py"} |
            {f"share/shoal/{file.relative_to(harness.ROOT)}"
             for file in (harness.ROOT / "proto").rglob("*.proto")} |
            {"share/shoal/python/openengine/v1/services_pb2_grpc.py",
             "share/shoal/python/shoal/v1/transport_pb2.py", "share/doc/shoal/README.md",
             "share/doc/shoal/docs/operations.md", "share/doc/shoal/deploy/kubernetes.yaml",
             "share/doc/shoal/examples/client.py", "share/doc/shoal/examples/grpcurl.md"}, tar)
        self.assertEqual([name for name in tar if name.endswith("/train.py")], [])


class Same(PackageCase):
    def test_the_same_build_gives_the_same_bytes(self):
        self.call(harness.ROOT / "scripts/package", "--build", Path(harness.SHOAL).parent, "--out",
                  self.work / "again")
        for pattern in ("*.tar.gz", "*.deb", "*.whl"):
            self.assertEqual((self.work / "again" / package(pattern).name).read_bytes(),
                             package(pattern).read_bytes(), package(pattern).name)


class EmptyRoot(PackageCase):
    # $1 is the root, and the other arguments are a command in it. Every container has /proc,
    # /dev/null and /dev/shm.
    ENTER = ('for name in null urandom; do '
             'mount --bind /dev/$name "$1/dev/$name" || exit 3; done; '
             'mount --rbind /proc "$1/proc" && '
             'mount -t tmpfs -o size=64m tmpfs "$1/dev/shm" || exit 3; '
             'root=$1; shift; exec chroot "$root" "$@"')

    def into(self, root: Path, *command) -> dict:
        """The arguments of a process that runs the command in the root."""
        own = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        return {"args": ["unshare", *own, "--mount", "--propagation", "private", "sh", "-c", self.ENTER,
                         "sh", str(root), *command],
                "env": {**harness.environment(), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}}

    def inside(self, root: Path, *command, code=0) -> bytes:
        process = self.into(root, *command)
        return self.call(*process["args"], code=code, env=process["env"])

    def make_root(self, tree: Path) -> Path:
        root = self.work / "root"
        for folder in ("proc", "dev/shm", "tmp", "opt"):
            (root / folder).mkdir(parents=True)
        for name in ("null", "urandom"):
            (root / "dev" / name).touch()
        for line in self.call("ldd", tree / "bin" / "shoal").decode().splitlines():
            match = re.search(r"(/\S+) \(0x", line)
            if match and FROM_THE_SYSTEM.fullmatch(Path(match[1]).name):
                (root / match[1].removeprefix("/")).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(match[1], root / match[1].removeprefix("/"))
        self.assertEqual(len([file for file in root.rglob("*.so*") if file.is_file()]), 5,
                         "libc, libm, two of g++, ld")
        tree.rename(root / "opt" / "shoal")
        return root

    def compute_on_devices(self, root: Path, program: str, module: Path):
        """A machine that has only a driver. Its devices are emulated, by a module that lies where
        the real one would."""
        emulated = Path(harness.SHOAL).parent / "fakes" / "libemulated_cuda_module.so"
        shutil.copy(emulated, module)
        request = (*REQUEST[:3], "2", *REQUEST[4:], "--device", "cuda")
        command = (program, "generate", "/opt/shoal/share/shoal/models/demo", *request)
        with unittest.mock.patch.dict(os.environ, {"EMULATED_GPU_PEERS": "all"}):
            out = self.inside(root, *command)
            # Out here there may be a real NCCL, which finds no driver.
            wanted = harness.run("generate", harness.DEMO, *request, "--cuda-module", emulated,
                                 "--transport", "cuda-ipc").stdout
            self.assertEqual(json.loads(out)["transport"], "cuda-ipc")
            self.assertEqual(answer(out), answer(wanted))
            self.serve_on_devices(root, program, (*REQUEST[:3], "2", *REQUEST[4:6]), answer(wanted))
            out = self.inside(root, *command, "--transport", "nccl-p2p,cuda-ipc",
                              "--reproducible", "off")
        self.assertEqual(json.loads(out)["transport"], "cuda-ipc")
        self.check_where_it_looked(self.err)

    def check_where_it_looked(self, log: str):
        """NCCL and cuBLASLt are never in a package, but the loader looks there too."""
        looked = (r": cannot open shared object file: .*\(looked in .*/opt/shoal/\S*lib/shoal, "
                  r".*ldconfig lists\)")
        self.assertRegex(log, "transport nccl-p2p refused .*NCCL cannot be loaded: "
                              rf"libnccl\.so\.2{looked}")
        for name in (r"libcublasLt\.so\.13", r"libcublasLt\.so\.12"):
            self.assertRegex(log, "own kernels compute every product, because .*cuBLASLt cannot be "
                                  rf"loaded: {name}{looked}")

    def serve_on_devices(self, root: Path, program: str, request: tuple, wanted: list[int]):
        """The whole server comes with the package, and its gRPC with it. The client is out here."""
        with subprocess.Popen(**self.into(root, program, "serve", "/opt/shoal/share/shoal/models/demo",
                                          "-tp", "2", "--device", "cuda", "--grpc-port", "0"),
                              stdout=subprocess.PIPE) as server:
            try:
                fields = harness.ready_fields(server.stdout.readline().decode())
                self.assertEqual((fields["transport"], fields["kernels"]), ("cuda-ipc", "cuda"))
                client = harness.start("client", "--server", fields["grpc"], *request, "--json")
                out, err = client.communicate(timeout=harness.GUARD)
                self.assertEqual(client.returncode, 0, err)
                self.assertEqual(answer(out), wanted)
                server.terminate()
                self.assertEqual(server.wait(), 0)
            finally:
                server.kill()

    def test_it_runs(self):
        allowed = ["unshare", *([] if os.getuid() == 0 else ["--user", "--map-root-user"]),
                   "--mount", "true"]
        if subprocess.run(allowed, capture_output=True).returncode != 0:
            raise unittest.SkipTest("no namespaces here")
        root = self.make_root(self.unpacked())
        program = "/opt/shoal/bin/shoal"
        found = json.loads(self.inside(root, program, "--version", "--json"))
        module = root / "opt/shoal/lib/shoal/libshoal_cuda.so"
        self.assertEqual(found["cuda_module"] is not None, module.exists())
        if module.exists():
            self.assertEqual(found["cuda_module"].get("build_id"), found["build_id"], found)
        out = self.inside(root, program, "generate", "/opt/shoal/share/shoal/models/demo", *REQUEST)
        self.assertEqual(answer(out), expected())
        self.compute_on_devices(root, program, module)
        # The reverse check: without the package's libraries the program does not start, so it did
        # use them before.
        (root / "opt/shoal/lib").rename(root / "opt/shoal/elsewhere")
        self.inside(root, program, "--version", code=127)


class Wheel(PackageCase):
    def test_pip_puts_it_on_the_path(self):
        venv = self.work / "venv"
        self.call("/usr/bin/python3", "-m", "venv", venv)
        pip = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
        self.call(*pip, "install", "--no-index", "--quiet", package("*.whl"))
        path = {**harness.environment(), "PATH": f"{venv}/bin:{os.environ['PATH']}"}
        self.assertEqual(Path(self.call("sh", "-c", "command -v shoal", env=path).decode().strip()),
                         venv / "bin/shoal")
        out = self.call("sh", "-c", 'exec shoal "$@"', "sh", "generate",
                        venv / "share/shoal/models/demo", *REQUEST, env=path)
        self.assertEqual(answer(out), expected())
        # Debian's Python, for this environment has neither grpcio nor protobuf.
        (place,) = venv.glob("lib/python*/site-packages")
        self.call("/usr/bin/python3", "-c", "import openengine.v1.services_pb2_grpc as services\n"
                  "import shoal.v1.transport_pb2_grpc as transport\n"
                  "print(services.InferenceStub, transport.TransportStub)",
                  env={**path, "PYTHONPATH": str(place)})
        metadata = next(place.glob("shoal-*.dist-info/METADATA")).read_text()
        head, _, description = metadata.partition("\n\n")
        self.assertRegex(head, r"(?m)^Requires-Python: >=3\.\d+$")
        self.assertTrue(description.endswith((harness.ROOT / "README.md").read_text()))
        self.assertEqual(list(venv.glob("share/shoal/models/**/__pycache__")), [])
        self.call(*pip, "check")
        self.call(*pip, "uninstall", "--quiet", "--yes", "shoal")
        self.assertEqual([str(file) for file in venv.rglob("*shoal*") if file.is_file()], [])


class Deb(PackageCase):
    def serve_as(self, root: Path, words: list[str], environment: dict[str, str]) -> harness.Server:
        """A server that is started by these words, but in another root, and on free ports."""
        def inside(text: str) -> str:
            return re.sub(r"^/usr/", f"{root}/usr/", text)
        program, command, *flags = map(inside, words)
        self.assertEqual(command, "serve")
        environment = {name: inside(value) for name, value in environment.items()}
        if "SHOAL_CONFIG" in environment:
            own = self.work / "config.yaml"
            own.write_text(re.sub("(?m)(?<=: )/usr/", f"{root}/usr/",
                                  Path(environment["SHOAL_CONFIG"]).read_text()))
            environment["SHOAL_CONFIG"] = str(own)
        with unittest.mock.patch.dict(os.environ, environment), \
                unittest.mock.patch.object(harness, "SHOAL", program):
            server = harness.Server("--port=0", *flags)
        self.addCleanup(server.kill)
        return server

    def check_the_unit(self, root: Path):
        """The unit starts what is installed, and a client in Python needs nothing else of Shoal."""
        text = (root / "usr/lib/systemd/system/shoal.service").read_text()
        server = self.serve_as(root, re.search(r"(?m)^ExecStart=(.*)$", text)[1].split(),
                               dict(re.findall(r"(?m)^Environment=(\w+)=(.*)$", text)))
        ready = server.wait_ready()
        self.assertEqual((ready["model"], ready["tp"]), ("demo", "2"))
        out = self.call("/usr/bin/python3", root / "usr/share/doc/shoal/examples/client.py",
                        ready["grpc"], "In the beginning",
                        env={**harness.environment(), "no_proxy": "*",
                             "PYTHONPATH": str(root / "usr/share/shoal/python"),
                             "PYTHONDONTWRITEBYTECODE": "1"}).decode()
        self.assertTrue(out.endswith("\n(60 tokens, FINISH_REASON_LENGTH)\n"), out)
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.rest())

    def check_the_image(self, root: Path):
        """The Dockerfile installs a file of this name, and its default command works."""
        text = (harness.ROOT / "deploy" / "Dockerfile").read_text()
        pattern = re.search(r"set -- /packages/(.+\.deb);", text)[1]
        pattern = pattern.replace("${VERSION}", re.search(r"(?m)^ARG VERSION=(.+)$", text)[1])
        own = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True)
        self.assertEqual(package("*.deb"), package(
            pattern.replace("$(dpkg --print-architecture)", own.stdout.strip())))
        (entry,), words = (json.loads(re.search(rf"(?m)^{name} (.*)$", text)[1])
                           for name in ("ENTRYPOINT", "CMD"))
        server = self.serve_as(root, [f"/usr/bin/{entry}", *words], {})
        self.assertEqual(server.wait_ready()["tp"], "2")
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.rest())

    def test_dpkg_installs_runs_and_removes_it(self):
        root = self.work / "root"
        for folder in ("info", "updates", "triggers"):
            (root / "var/lib/dpkg" / folder).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        # The root has no libc6 package of its own to satisfy the dependency.
        dpkg = ["dpkg", f"--root={root}", "--force-not-root", "--force-script-chrootless",
                f"--log={self.work}/log"]
        path = {**harness.environment(), "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
        self.call(*dpkg, "--force-depends", "--install", package("*.deb"), env=path)
        state = self.call(*dpkg, "--status", "shoal", env=path).decode()
        self.assertIn("Status: install ok installed", state)
        self.assertIn("Depends: libc6 (>= 2.34), libgcc-s1 (>= 11), libstdc++6 (>= 11)", state)
        self.assertEqual(self.call(*dpkg, "--verify", "shoal", env=path), b"",
                         "a file is not what md5sums says")
        out = self.call(root / "usr/bin/shoal", "generate", root / "usr/share/shoal/models/demo",
                        *REQUEST, env=path)
        self.assertEqual(answer(out), expected())
        self.check_the_unit(root)
        self.check_the_image(root)
        self.call(*dpkg, "--remove", "shoal", env=path)
        self.assertFalse((root / "usr").exists(), "something is left")


class Demo(PackageCase):
    def test_from_each_package_to_text(self):
        texts = set()
        for pattern in ("*.tar.gz", "*.deb", "*.whl"):
            out = self.call(harness.ROOT / "scripts/demo", "--package", package(pattern),
                            env=harness.environment()).decode()
            self.assertIn("Done: the server stopped with exit code 0", out)
            texts.add(out.split("In the beginning ...\n")[1].split("\n== ")[0])
        self.assertEqual(len(texts), 1, "three packages of one build answer alike")
        self.assertGreater(len(texts.pop()), 100)

    def test_what_is_no_package_is_refused(self):
        other = self.work / "shoal.zip"
        other.touch()
        self.call(harness.ROOT / "scripts/demo", "--package", other, code=64)
        self.call(harness.ROOT / "scripts/demo", "--package", self.work / "none.deb", code=66)


if __name__ == "__main__":
    harness.main(arguments=(sys.argv[1],))
