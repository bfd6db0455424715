#!/usr/bin/env python3
"""Two processes exchange 64 KiB through /dev/shm, or through a pipe if it has too little room."""
import mmap
import os
import tempfile

BYTES = 65536


def shared_memory():
    """BYTES that a child shares, or None.

    The space is reserved, because writing to a mapping without it would be a SIGBUS.
    """
    try:
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            os.posix_fallocate(file.fileno(), 0, BYTES)
            return mmap.mmap(file.fileno(), BYTES)
    except OSError as error:
        print(f"no shared memory ({error.strerror}): a pipe instead")
        return None


memory = shared_memory()
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.close(reading)
    message = b"\x5a" * BYTES
    if memory:
        memory[:] = message
    with open(writing, "wb") as pipe:
        pipe.write(b"!" if memory else message)
    os._exit(0)
os.close(writing)
with open(reading, "rb") as pipe:
    came = pipe.read()
assert os.waitpid(child, 0)[1] == 0
assert (memory[:] if memory else came) == b"\x5a" * BYTES
