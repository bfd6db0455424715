"""What each static library includes, compared with what its shoal_library() call declares in DEPS.

A header belongs to the library of the nearest folder above it that has a CMakeLists.txt. DEPS must
name the library of every header that the folder's own files include, and nothing else, so that a
folder's CMakeLists.txt can be read as the list of what it depends on. `python3
tests/lint/cmake_targets.py [ROOT]` prints the right DEPS of every library.
"""
import re
import sys
from pathlib import Path

SOURCES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
LIBRARY = re.compile(r"^shoal_library\((\w+)\s+SOURCES\s+([^)]*?)\s*(?:\bDEPS\s+([^)]*?)\s*)?\)",
                     re.MULTILINE)
# Libraries from outside the tree and generated code, by the prefix of their includes. The longest
# prefix counts.
OUTSIDE = {
    "nlohmann/": "nlohmann_json::nlohmann_json", "pcre2.h": "PkgConfig::PCRE2",
    "utf8proc.h": "PkgConfig::UTF8PROC", "prometheus/": "prometheus-cpp::core",
    "boost/": "boost_headers", "CLI/": "CLI11::CLI11", "yaml-cpp/": "shoal_yaml_cpp", "dlfcn.h": "${CMAKE_DL_LIBS}",
    "grpcpp/": "gRPC::grpc++",
    "grpc/": "gRPC::grpc++",
    "grpcpp/ext/proto_server_reflection_plugin.h": "gRPC::grpc++_reflection",
    "google/protobuf/": "shoal_proto",
    "google_rpc.pb.h": "shoal_proto", "openengine/": "shoal_proto", "shoal/": "shoal_proto",
    "kserve/": "shoal_proto", "vllm/": "shoal_proto",
    "openssl/": "OpenSSL::SSL", "openssl/evp.h": "OpenSSL::Crypto",
    "zlib.h": "ZLIB::ZLIB",
}
# A library that passes its own dependencies on to its dependents makes a second mention
# unnecessary. shoal_proto depends on these.
IMPLIED = {"shoal_proto": {"gRPC::grpc++"}}
# May always be declared, because no single include shows that the code needs it.
FREE = {"Threads::Threads"}


class Library:
    def __init__(self, name: str, folder: str, sources: list[str], deps: list[str]):
        self.name, self.folder, self.sources, self.deps = name, folder, sources, deps


def read_libraries(root: Path) -> list[Library]:
    found = []
    for lists in sorted(root.rglob("CMakeLists.txt")):
        folder = lists.parent.relative_to(root).as_posix()
        if folder.split("/")[0] in {"build", "tests", ".git"}:
            continue
        for name, sources, deps in LIBRARY.findall(lists.read_text()):
            found.append(Library(name, folder, sources.split(), deps.split()))
    return found


def owner_of(path: str, root: Path, by_folder: dict[str, Library]) -> Library | None:
    """The library that owns the header.

    None if it is outside the tree, or belongs to a target that is not a shoal_library(), such as
    the CUDA module.
    """
    parts = path.split("/")[:-1]
    while parts and not (root / "/".join(parts) / "CMakeLists.txt").exists():
        parts.pop()
    return by_folder.get("/".join(parts))


def files_of(library: Library, root: Path, by_folder: dict[str, Library]) -> list[Path]:
    """The sources and headers of the library.

    Sources that no shoal_library() names belong to another target of the folder and do not count.
    """
    named = {(root / library.folder / source).resolve() for source in library.sources}
    files = []
    for file in sorted((root / library.folder).rglob("*")):
        path = file.relative_to(root).as_posix()
        if file.suffix in SOURCES and owner_of(path, root, by_folder) is library:
            if file.suffix in {".h", ".cuh"} or file.resolve() in named:
                files.append(file)
    return files


def includes_of(library: Library, root: Path, by_folder: dict[str, Library]) -> dict[str, str]:
    """The libraries that it should declare, each with one include as the reason."""
    wanted: dict[str, str] = {}
    for file in files_of(library, root, by_folder):
        for target in INCLUDE.findall(file.read_text()):
            owner = owner_of(target, root, by_folder) if (root / target).exists() else None
            outside = max((prefix for prefix in OUTSIDE if target.startswith(prefix)), key=len,
                          default=None)
            name = owner.name if owner else OUTSIDE[outside] if outside else None
            if name and name != library.name:
                wanted.setdefault(name, f'{file.relative_to(root).as_posix()} includes "{target}"')
    for name, implied in IMPLIED.items():
        if name in wanted:
            wanted = {dep: why for dep, why in wanted.items() if dep not in implied}
    return wanted


def check_libraries(root: Path) -> list[str]:
    libraries = read_libraries(root)
    by_folder = {library.folder: library for library in libraries}
    found = []
    for library in libraries:
        where = f"{library.folder}/CMakeLists.txt"
        if by_folder[library.folder] is not library:
            found.append(f"{where}: {library.name}: a folder has one library")
            continue
        wanted = includes_of(library, root, by_folder)
        found += [f"{where}: {library.name} does not declare {name}, but {why}"
                  for name, why in wanted.items() if name not in library.deps]
        found += [f"{where}: {library.name} declares {name}, which none of its files includes"
                  for name in library.deps if name not in wanted and name not in FREE]
        listed = {source for source in library.sources if source.startswith("../")}
        found += [f"{where}: {library.name} compiles {source} of another folder"
                  for source in sorted(listed)]
    return found


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    libraries = read_libraries(root)
    by_folder = {library.folder: library for library in libraries}
    for library in libraries:
        print(library.name, *sorted(includes_of(library, root, by_folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
