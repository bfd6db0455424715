"""Compiles a small library that stands in for libnccl.so.2. It has the functions that create
segments, in the same number of sources, and they create them in the same way. The rest of NCCL is
not there.
"""
import dataclasses
import subprocess
from pathlib import Path

COMMON = r'''
#define _GNU_SOURCE 1
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN void note(const char* file, int line, const char* text, ...);
#define WARN(text, ...) note(__FILE__, __LINE__, text, __VA_ARGS__)
HIDDEN int OPEN(char* path, PATH_BYTES size_t size, void** memory, void** device, int references,
                void** handle);
'''
SHMUTILS = COMMON + r'''
HIDDEN int OPEN(char* path, PATH_BYTES size_t size, void** memory, void** device, int references,
                void** handle) {
  const size_t length = size + COUNT_BYTES;
  const bool create = references > 0;
  void* mapped = nullptr;
  int fd = create ? mkstemp(path) : open(path, O_RDWR);
  if (fd < 0 || (create && LENGTHEN != 0)) {
    WARN("Error: failed to extend %s to %ld bytes\n", path, length);
    goto fail;
  }
  mapped = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) goto fail;
  if (create) *reinterpret_cast<int*>(static_cast<char*>(mapped) + size) = references;
  if (device) *device = mapped;
  *memory = mapped;
  *handle = path;
  return 0;
fail:
  WARN("Error while %s shared memory segment %s (size %ld)\n", create ? "creating" : "attaching to",
       path, size);
  return 2;
}
'''
# As since 2.30: the functions that the callers know hands its arguments on.
WRAPPER = COMMON + r'''
HIDDEN int ncclOsShmOpen(char* path, PATH_BYTES size_t size, void** memory, void** device,
                         int references, void** handle);
HIDDEN int ncclShmOpen(char* path, PATH_BYTES size_t size, void** memory, void** device,
                       int references, void** handle) {
  void* inner = nullptr;
  const int result = ncclOsShmOpen(path, PATH_VALUE size, memory, device, references, &inner);
  *handle = inner;
  return result;
}
'''
CALLERS = COMMON + r'''
struct State { void* pool; void* handle; int ranks; size_t size; int wide; };
extern "C" __attribute__((visibility("default"))) int create_NAME(State* state) {
  char path[] = "/dev/shm/nccl-123456";
  const int result = ncclShmOpen(path, PATH_VALUE CREATE_SIZE, &state->pool, nullptr, state->ranks, &state->handle);
  if (result) WARN("%d\n", result);
  return result;
}
extern "C" __attribute__((visibility("default"))) int attach_NAME(State* state, const char* suffix) {
  char path[sizeof("/dev/shm/nccl-123456")];
  snprintf(path, sizeof(path), "/dev/shm/nccl-%.6s", suffix);
  size_t size = ATTACH_SIZE;
  CHANGE;
  const int result = ncclShmOpen(path, PATH_VALUE size, &state->pool, nullptr, -1, &state->handle);
  if (result) WARN("%d\n", result);
  return result;
}
'''
NOTES = COMMON + r'''
HIDDEN void note(const char* file, int line, const char*, ...) { printf("%s:%d\n", file, line); }
extern "C" __attribute__((visibility("default"))) const char* version_text() {
  return "NCCL version VERSION";
}
'''


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the stand-in looks like. The sizes are C++ expressions, in which `state` may stand."""
    create: str = "12345"  # the size with which proxy.cc creates the pool
    attach: str | None = None  # and attaches to it; None: the same
    other: str = "8192"  # the size of a segment of another source
    change: str = ""  # a statement before the attaching call
    names_path_size: bool = True  # since 2.24 the size of the path is an argument before the size
    wrapped: bool = False  # since 2.30
    lengthen: str = "fallocate(fd, 0, 0, length)"
    count_bytes: int = 4
    version: str = "2.99.1+cuda13.0"
    proxy_source: str = "proxy.cc"


def sources_of(shape: Shape) -> dict[str, str]:
    """The text of each source by its name."""
    def callers(name: str, create: str, attach: str, change: str) -> str:
        return (CALLERS.replace("NAME", name).replace("CREATE_SIZE", create)
                .replace("ATTACH_SIZE", attach).replace("CHANGE", change)
                .replace("OPEN", "ncclShmOpen"))
    attach = shape.create if shape.attach is None else shape.attach
    sources = {
        "shmutils.cc": SHMUTILS.replace("OPEN", "ncclOsShmOpen" if shape.wrapped else "ncclShmOpen")
        .replace("LENGTHEN", shape.lengthen).replace("COUNT_BYTES", str(shape.count_bytes)),
        shape.proxy_source: callers("pool", shape.create, attach, shape.change),
        "p2p.cc": callers("other", shape.other, shape.other, ""),
        "notes.cc": NOTES.replace("VERSION", shape.version).replace("OPEN", "ncclShmOpen"),
    }
    if shape.wrapped:
        sources["wrapper.cc"] = WRAPPER.replace("OPEN", "ncclShmOpen")
    path_bytes, path_value = ("size_t path_bytes,", "sizeof(path),") if shape.names_path_size \
        else ("", "")
    if shape.wrapped and shape.names_path_size:
        sources["wrapper.cc"] = sources["wrapper.cc"].replace("PATH_VALUE", "path_bytes,")
    return {name: text.replace("PATH_BYTES", path_bytes).replace("PATH_VALUE", path_value)
            for name, text in sources.items()}


def build(compiler: str, folder: Path, shape: Shape, *flags: str) -> Path:
    """Compiles every source by itself, as NCCL is, so that no call is resolved beforehand."""
    for name, text in sources_of(shape).items():
        (folder / name).write_text(text)
    library = folder / "libnccl.so.2"
    subprocess.run([compiler, "-std=c++20", "-O2", "-fPIC", "-shared", *flags, "-o", library,
                    *(name for name in sources_of(shape))], cwd=folder, check=True)
    return library
